"""The whole flow on a tiny setting of the demo's recipe: real vLLM, real states, real training, real acceptance."""

import json
import os
import re
import socket
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.vllm

TINY = {
    # CPUs without AVX-512 emulate bfloat16, at a quarter of the speed.
    "target.dtype": "float32",
    "training.autocast": "float32",
    "prompts.training_samples": 40,
    "prompts.validation_samples": 4,
    "prompts.evaluation_samples": 20,
    "inference.max_new_tokens": 48,
    "training.epochs": 1,
    "evaluation.max_new_tokens": 24,
}
STAGES = ("server-load", "drafter-download", "inference", "server-stop", "extraction", "training", "evaluation")
LAST_LINE = re.compile(
    r"verdict: (better|not-better|cannot-tell) acceptance_length=(\d\.\d+) base=(\d\.\d+) prompts=(\d+) drafter=(/.+)"
)


@dataclass
class Call:
    """One `hero-run run` and what it left."""

    code: int
    printed: str
    log: str
    data_root: Path

    def products(self, kind: str) -> Path:
        """The only folder of this kind."""
        (folder,) = (self.data_root / kind).iterdir()
        return folder

    def manifest(self, kind: str) -> dict:
        return json.loads((self.products(kind) / "manifest.json").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """Runs the flow as a user does, in one data root."""
    root = tmp_path_factory.mktemp("hero")
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(root / "prefect")

    def run() -> Call:
        command = [str(PROJECT / ".venv" / "bin" / "hero-run"), "run", "smollm2-cpu", "--data-root", str(root / "data")]
        command += ["--ui-port", str(free_port())]
        command += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
        return Call(done.returncode, done.stdout, done.stderr, root / "data")

    return run


@pytest.fixture(scope="module")
def first(call):
    return call()


@pytest.fixture(scope="module")
def second(call, first):
    return call()


def test_a_completed_run_exits_zero_and_ends_with_the_verdict(first):
    assert first.code == 0, first.log
    assert LAST_LINE.fullmatch(first.printed.splitlines()[-1]), first.printed


def test_the_drafter_of_the_last_line_is_a_checkpoint(first):
    folder = Path(LAST_LINE.fullmatch(first.printed.splitlines()[-1])[5])
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


def test_the_acceptance_length_is_one_plus_accepted_over_drafts(first):
    said = LAST_LINE.fullmatch(first.printed.splitlines()[-1])
    arm = first.manifest("evaluations")["facts"]["arms"][2]
    assert float(said[2]) == pytest.approx(1 + arm["accepted_tokens"] / arm["drafts"], abs=5e-4)


def test_the_counters_are_the_sum_of_what_vllm_says_of_each_request(first):
    steps, accepted = defaultdict(int), defaultdict(int)
    for line in (first.products("evaluations") / "per_prompt.jsonl").read_text().splitlines():
        prompt = json.loads(line)
        steps[prompt["arm"]] += sum(prompt["accepted"])
        accepted[prompt["arm"]] += sum(j * n for j, n in enumerate(prompt["accepted"]))
    for arm in first.manifest("evaluations")["facts"]["arms"][1:]:
        assert (steps[arm["name"]], accepted[arm["name"]]) == (arm["drafts"], arm["accepted_tokens"])


def test_every_prompt_has_its_answer_and_its_states(first):
    facts = first.manifest("states")["facts"]
    assert (facts["samples"], facts["skipped"]) == (44, {})


def test_no_evaluation_prompt_was_answered_for_training(first):
    lines = (first.products("evaluations") / "per_prompt.jsonl").read_text().splitlines()
    evaluated = {json.loads(line)["sample_id"] for line in lines}
    responses = (first.products("responses") / "responses.jsonl").read_text().splitlines()
    assert len(evaluated) == 20 and not evaluated & {json.loads(line)["sample_id"] for line in responses}


def test_no_process_is_left(first):
    def command_line(entry: Path) -> str:
        try:
            return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""

    ours = [command_line(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    assert not [line for line in ours if str(first.data_root.parent) in line]


@pytest.mark.fault("one-task-per-stage")
def test_the_second_run_has_every_stage_cached(second):
    states = dict(re.findall(r"Task run '([a-z-]+)' - Finished in state (\w+)", second.log))
    assert states == {"preflight": "Completed", **dict.fromkeys(STAGES, "Cached")}


def test_the_second_run_starts_no_engine(second):
    # A run makes its log folder with the first child that it starts.
    assert len(list((second.data_root / "logs").iterdir())) == 1


def test_the_second_run_prints_the_same_table(first, second):
    assert second.printed.splitlines()[-10:] == first.printed.splitlines()[-10:]
