"""The whole flow in windows on a tiny setting of the demo's recipe: real vLLM, and the bytes on disk all the while."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.recipes import named
from tasks.recipe import changed
from tasks.system.plan.layouts import peak_bytes
from tasks.system.plan.needs import hand_over_bytes, store_bytes, training_bytes
from tasks.system.plan.tokens import counted_tokens
from tests.conftest import PROJECT
from tests.flows.test_end_to_end import LAST_LINE, TINY, free_port
from tests.system.disk_peak import Peak

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault]

COUNT = 3
CHANGES = {**TINY, "prompts.training_samples": 120, "prompts.validation_samples": 6, "extraction.windows": COUNT}


@dataclass
class Call:
    """One run and what it left."""

    code: int
    printed: str
    log: str
    data_root: Path
    peak: Peak
    """Of states, and of states and trainings together."""

    def manifests(self, kind: str, name: str) -> list[dict]:
        return [json.loads(path.read_text()) for path in (self.data_root / kind).glob(f"*/{name}")]


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    root = tmp_path_factory.mktemp("windows")
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(root / "prefect")

    def run() -> Call:
        command = [sys.executable, "-m", "flows.cli", "run", "smollm2-cpu", "--data-root", str(root / "data")]
        command += ["--ui-port", str(free_port())]
        command += [word for name, value in CHANGES.items() for word in ("--set", f"{name}={value}")]
        with Peak(root / "data" / "states", root / "data" / "trained") as peak:
            done = subprocess.run(
                command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=3000
            )
        return Call(done.returncode, done.stdout, done.stderr, root / "data", peak)

    return run


@pytest.fixture(scope="module")
def first(call):
    return call()


@pytest.fixture(scope="module")
def second(call, first):
    return call()


def test_a_run_in_windows_ends_with_a_verdict(first):
    assert first.code == 0, first.log
    assert LAST_LINE.fullmatch(first.printed.splitlines()[-1]), first.printed


def test_all_states_were_used_up(first):
    assert not list((first.data_root / "states").glob("*/*.safetensors"))
    assert len(first.manifests("states", "consumed.json")) == COUNT


def test_every_sample_was_captured_and_the_held_out_ones_in_every_window(first):
    samples = [manifest["facts"]["samples"] for manifest in first.manifests("states", "consumed.json")]
    assert sum(samples) == 120 + COUNT * 6 and all(count > 30 for count in samples)


def test_only_the_last_training_is_left(first):
    assert len(first.manifests("trained", "consumed.json")) == COUNT - 1
    assert len(first.manifests("trained", "manifest.json")) == 1
    assert not list((first.data_root / "trained").glob("*/hand-over/*.pt"))


def planned_bytes(call: Call) -> tuple[int, int]:
    """Of states at once, and of states, checkpoints and exports together."""
    nested: dict[str, dict[str, int]] = {}
    for name, value in CHANGES.items():
        group, field = name.split(".")
        nested.setdefault(group, {})[field] = value
    recipe = changed(named("smollm2-cpu"), nested)
    facts = recipe.target.snapshot
    (responses,) = call.manifests("responses", "manifest.json")
    tokens = counted_tokens(responses["facts"])
    states = peak_bytes(store_bytes(recipe, facts, "bf16", tokens.total, tokens.samples), tokens, COUNT)
    return states, states + training_bytes(recipe, facts) + hand_over_bytes(recipe, facts)


def test_at_most_one_windows_states_were_on_disk_as_planned(first, happened):
    planned, _ = planned_bytes(first)
    happened(f"at most {first.peak.each[0]:,} bytes of states at once, {planned:,} were planned")
    assert first.peak.each[0] == pytest.approx(planned, rel=0.05)


def test_states_and_trainings_together_took_no_more_than_planned(first):
    _, planned = planned_bytes(first)
    assert first.peak.all <= planned


@pytest.mark.fault("one-task-per-stage")
def test_the_second_run_has_every_stage_of_every_window_cached(second):
    states = Counter(re.findall(r"Task run '([a-z-]+)' - Finished in state (\w+)", second.log))
    assert states["extraction", "Cached"] == states["training", "Cached"] == COUNT
    assert {state for (name, state) in states if name != "preflight"} == {"Cached"}
    assert second.printed.splitlines()[-1] and second.code == 0


def test_the_second_run_says_the_same(first, second):
    assert second.printed.splitlines()[-1] == first.printed.splitlines()[-1]
