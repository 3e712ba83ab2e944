"""Nights of a real run: ended by a deadline in the middle of inference, finished with what there is, then the rest."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.test_end_to_end import LAST_LINE, TINY, free_port

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault, pytest.mark.fault("deadline")]

SAMPLES = 300
CHANGES = {
    **TINY,
    "prompts.training_samples": SAMPLES - 4,
    "inference.max_new_tokens": 48,
    "training.epochs": 1,
    "evaluation.max_new_tokens": 12,
}
TWO_BY_TWO = {"inference.in_flight": 2}
"""So slow that no machine has all answers at the deadline."""
DEADLINE_SECONDS = 150
"""Above a load of the target on two busy cores, and some answers."""


@dataclass
class Night:
    """One `hero-run run` and what it left."""

    code: int
    seconds: float
    printed: str
    log: str
    answers: list[str]
    """Ids in the journal."""

    @property
    def last_line(self) -> str:
        return self.printed.splitlines()[-1]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("nights")


@pytest.fixture(scope="module")
def night(root):
    """Starts the run once more, in the same data root."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(root / "prefect")

    def run(*arguments: str, **changes: object) -> Night:
        command = [sys.executable, "-m", "flows.cli", "run", "smollm2-cpu", "--data-root", str(root / "data")]
        command += ["--ui-port", str(free_port()), *arguments]
        command += [word for name, value in {**CHANGES, **changes}.items() for word in ("--set", f"{name}={value}")]
        began = time.monotonic()
        done = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1500
        )
        ids = [json.loads(line)["sample_id"] for path in journals(root) for line in path.read_text().splitlines()]
        return Night(done.returncode, time.monotonic() - began, done.stdout, done.stderr, ids)

    return run


def journals(root: Path) -> list[Path]:
    return list((root / "data").glob("answers/*/journal.jsonl"))


def facts(root: Path, kind: str) -> list[dict]:
    """Of all finished stages of a kind, the oldest first."""
    manifests = sorted((root / "data" / kind).glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text())["facts"] for path in manifests]


def task_states(night: Night) -> dict[str, str]:
    return dict(re.findall(r"Task run '([a-z-]+)' - Finished in state (\w+)", night.log))


@pytest.fixture(scope="module")
def first(night):
    return night("--stop-after", f"{DEADLINE_SECONDS}s", **TWO_BY_TWO)


@pytest.fixture(scope="module")
def second(night, first):
    """Its deadline has come when it begins, so it asks nothing: it finishes with the answers of the first."""
    return night("--stop-after", "1s", "--then", "finish")


@pytest.fixture(scope="module")
def third(night, second):
    return night("--refresh", "inference")


def test_a_run_ends_at_its_deadline_in_the_middle_of_inference_and_not_as_a_failure(first, happened):
    said = re.fullmatch(r"deadline: inference (\d+) %, goes on at the next start", first.last_line)
    assert first.code == 0 and said, first.printed + first.log
    assert int(said[1]) == round(100 * len(first.answers) / SAMPLES) and 0 < len(first.answers) < SAMPLES
    assert "faults on the way: none" in first.printed
    happened(f"after {DEADLINE_SECONDS} s: {first.last_line}")


def test_its_stage_has_not_failed_either(first):
    assert task_states(first)["inference"] == "Deadline" and "Traceback" not in first.log


def test_nothing_of_it_is_left(first, root):
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            left += [line] if str(root) in line else []
    assert left == []


def test_a_run_can_finish_with_the_answers_so_far(second, first, root, happened):
    assert second.code == 0 and LAST_LINE.fullmatch(second.last_line), second.printed + second.log
    assert second.answers == first.answers
    (responses,) = facts(root, "responses")
    answered = responses["training_samples"] + responses["validation_samples"]
    assert (answered, responses["unasked_prompts"]) == (len(first.answers), SAMPLES - len(first.answers))
    (states,) = facts(root, "states")
    assert states["samples"] + len(states["skipped"]) == answered
    happened(f"finished with {answered} of {SAMPLES} answers: {second.last_line.partition(' drafter=')[0]}")


def test_it_loads_no_server_for_what_it_has_no_time_to_ask(second):
    assert "there is no time to ask more prompts, so no server is loaded" in second.log


def test_refreshed_it_asks_the_others_and_every_answer_is_there_once(third, first, root, happened):
    assert third.code == 0 and LAST_LINE.fullmatch(third.last_line), third.printed + third.log
    assert len(third.answers) == len(set(third.answers)) == SAMPLES
    assert third.answers[: len(first.answers)] == first.answers
    (responses,) = facts(root, "responses")
    assert (responses["training_samples"] + responses["validation_samples"], responses["unasked_prompts"]) == (
        SAMPLES,
        0,
    )
    happened(f"asked the other {SAMPLES - len(first.answers)}, all {SAMPLES} once: {third.last_line[:60]}")


def test_the_states_of_more_answers_are_others(third, root):
    assert len(facts(root, "states")) == 2
