"""Two nights of a real run: ended by a deadline in the middle of inference, and gone on with to the verdict."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.test_end_to_end import LAST_LINE, TINY, free_port

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault, pytest.mark.fault("deadline")]

SAMPLES = 60
CHANGES = {
    **TINY,
    "prompts.training_samples": SAMPLES - 4,
    "prompts.evaluation_samples": 8,
    "inference.max_new_tokens": 96,
    "evaluation.max_new_tokens": 12,
}
ONE_BY_ONE = {"inference.in_flight": 1}
"""So slow that no machine has all answers at the deadline."""
DEADLINE_SECONDS = 110
"""Above a load of the target on two busy cores, and some answers."""


@dataclass
class Night:
    """One `hero-run run` and what it left."""

    code: int
    printed: str
    log: str
    answers: list[str]
    """Ids in the journal."""

    @property
    def last_line(self) -> str:
        return self.printed.splitlines()[-1]

    @property
    def states(self) -> dict[str, str]:
        """Of its task runs."""
        return dict(re.findall(r"Task run '([a-z-]+)' - Finished in state (\w+)", self.log))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("nights")


@pytest.fixture(scope="module")
def night(root, real_target):
    """Starts the run once more, in the same data root."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(root / "prefect")
    source = json.dumps({"kind": "folder", "name": str(real_target)})

    def run(*arguments: str, **changes: object) -> Night:
        command = [sys.executable, "-m", "flows.cli", "run", "smollm2-cpu", "--data-root", str(root / "data")]
        command += ["--ui-port", str(free_port()), "--set", f"target.source={source}", *arguments]
        command += [word for name, value in {**CHANGES, **changes}.items() for word in ("--set", f"{name}={value}")]
        done = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=1500
        )
        journals = (root / "data").glob("answers/*/journal.jsonl")
        ids = [json.loads(line)["sample_id"] for path in journals for line in path.read_text().splitlines()]
        return Night(done.returncode, done.stdout, done.stderr, ids)

    return run


@pytest.fixture(scope="module")
def first(night):
    return night("--stop-after", f"{DEADLINE_SECONDS}s", **ONE_BY_ONE)


@pytest.fixture(scope="module")
def second(night, first):
    return night()


def test_a_run_ends_at_its_deadline_in_the_middle_of_inference_and_not_as_a_failure(first, happened):
    said = re.fullmatch(r"deadline: inference (\d+) %, goes on at the next start", first.last_line)
    assert first.code == 0 and said, first.printed + first.log
    assert int(said[1]) == round(100 * len(first.answers) / SAMPLES) and 0 < len(first.answers) < SAMPLES
    assert first.states["inference"] == "Deadline" and "Traceback" not in first.log
    assert "faults on the way: none" in first.printed
    happened(f"after {DEADLINE_SECONDS} s: {first.last_line}")


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


def test_the_next_start_goes_on_to_the_verdict_with_every_answer_there_once(second, first, root, happened):
    assert second.code == 0 and LAST_LINE.fullmatch(second.last_line), second.printed + second.log
    assert second.answers[: len(first.answers)] == first.answers
    (responses,) = (root / "data").glob("responses/*/responses.jsonl")
    finished = [json.loads(line)["sample_id"] for line in responses.read_text().splitlines()]
    for ids in (second.answers, finished):
        assert len(ids) == len(set(ids)) == SAMPLES
    happened(f"asked the other {SAMPLES - len(first.answers)}, all {SAMPLES} once: {second.last_line[:60]}")


def test_it_repeats_nothing_that_was_finished(second):
    assert second.states["drafter-download"] == "Cached"
