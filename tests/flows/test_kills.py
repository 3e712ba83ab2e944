"""Kill -9 at random moments of every stage of a real run, start it again each time, and look at what came out."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tasks.eagle3.spec import TrainingResult, TrainingSpec
from tasks.recipe import from_json
from tasks.system import guard
from tasks.system.engine_child import run_in_engine
from tasks.system.files import sha256_of
from tasks.system.manifest import MANIFEST_NAME, read_valid_manifest
from tasks.system.processes import STOP
from tests.conftest import PROJECT
from tests.flows.live import PrefectServer

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault, pytest.mark.fault("kill-anywhere")]

TINY = {
    # CPUs without AVX-512 emulate bfloat16, at a quarter of the speed.
    "target.dtype": "float32",
    "training.autocast": "float32",
    "prompts.training_samples": 92,
    "prompts.validation_samples": 4,
    "prompts.evaluation_samples": 20,
    "inference.max_new_tokens": 24,
    "inference.in_flight": 16,
    "extraction.shard_bytes": 4_000_000,
    "training.epochs": 3,
    "training.checkpoint_every_seconds": 2,
    "training.validate_every_steps": 40,
    "evaluation.max_new_tokens": 12,
}
# How often a run is killed in a stage, the file that shows that the stage has begun, and how long after that it
# is killed at most: long enough to reach its end.
KILLS = {
    "server-load": (2, "server.log", 25.0),
    "inference": (4, "inference", 6.0),
    "extraction": (5, "extract.json.progress.jsonl", 25.0),
    "training": (6, "train.json.progress.jsonl", 12.0),
    "evaluation": (3, "evaluation-none.log", 40.0),
}
# Where their products are. Fast cores finish a stage before it has been killed so often; it is then made anew.
PRODUCTS = {"extraction": "states", "training": "trained", "evaluation": "evaluations"}
ALL_GONE_SECONDS = 45.0
"""Above every grace time."""


class NightRun:
    """A run in its own data root, started as a user does, killed as no user would.

    The API is the test's own: each start with one of its own would take longer for it than for what is killed.
    """

    def __init__(self, root: Path, seed: int, server: PrefectServer) -> None:
        self.root, self.random, self.server = root, random.Random(seed), server
        self.killed: Counter[str] = Counter()
        self.log = root / "flow.log"

    @property
    def data(self) -> Path:
        return self.root / "data"

    def start(self, refresh: str | None = None) -> subprocess.Popen:
        command = [str(PROJECT / ".venv" / "bin" / "hero-run"), "run", "smollm2-cpu", "--data-root", str(self.data)]
        command += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
        command += ["--refresh", refresh] if refresh else []
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, env=self.server.environment, stdout=log, stderr=log, start_new_session=True
            )

    def log_folder(self) -> Path | None:
        """Of the newest run."""
        folders = sorted((self.data / "logs").glob("*")) if (self.data / "logs").exists() else []
        return folders[-1] if folders else None

    def answers(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.data.glob("answers/*/journal.jsonl"))

    def finished(self, kind: str) -> bool:
        return any(self.data.glob(f"{kind}/*/{MANIFEST_NAME}"))

    def kill_in(self, stage: str) -> None:
        """Start, wait for the stage to begin, wait a random time, and kill; the stage may have ended by then."""
        _, marker, longest_seconds = KILLS[stage]
        earlier, answers = self.log_folder(), self.answers()
        flow = self.start(stage if stage in PRODUCTS and self.finished(PRODUCTS[stage]) else None)
        deadline = time.monotonic() + 300
        while True:
            folder = self.log_folder()
            if folder != earlier and folder is not None:
                begun = self.answers() > answers if marker == "inference" else (folder / marker).exists()
                if begun or (marker == "inference" and self.finished("responses")):
                    break
            assert flow.poll() is None, f"the run ended before {stage}:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{stage} did not begin:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        time.sleep(self.random.uniform(0, longest_seconds))
        self.kill(flow, with_guards=self.random.random() < 0.3)
        self.killed[stage] += 1

    def kill(self, flow: subprocess.Popen, with_guards: bool) -> None:
        """SIGKILL for the flow; its guards must end the rest, unless they are killed too."""
        below = [known for pid in guard.descendants(flow.pid) if (known := guard.identity(pid))]
        guards = [pid for pid, _ in below if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(flow.pid, signal.SIGKILL)
        for pid in guards if with_guards else []:
            os.kill(pid, signal.SIGKILL)
        flow.wait()
        if with_guards:
            return  # the next start ends what is left
        deadline = time.monotonic() + ALL_GONE_SECONDS
        while left := [pid for pid, started in below if guard.identity(pid) == (pid, started)]:
            assert time.monotonic() < deadline, f"{left} outlived the flow that started them"
            time.sleep(0.1)

    def finish(self) -> str:
        """Start once more and let it end."""
        flow = self.start()
        assert flow.wait(900) == 0, self.log.read_text()[-5000:]
        return self.log.read_text().splitlines()[-1]

    def product(self, kind: str) -> Path:
        (folder,) = [path.parent for path in self.data.glob(f"{kind}/*/{MANIFEST_NAME}")]
        return folder


@pytest.fixture(scope="module")
def night(tmp_path_factory, prefect_server):
    """Twenty kills, then a run to the end."""
    seed = int(os.environ.get("HERO_RUN_KILL_SEED", time.time_ns() % 10_000))
    night = NightRun(tmp_path_factory.mktemp("night"), seed, prefect_server)
    night.seed = seed
    for stage, (times, _, _) in KILLS.items():
        for _ in range(times):
            night.kill_in(stage)
    night.last_line = night.finish()
    return night


def test_the_run_ends_with_its_verdict_after_twenty_kills(night, happened):
    assert night.killed.total() == 20
    assert re.match("verdict: (better|not-better|cannot-tell) ", night.last_line)
    happened(f"killed {dict(night.killed)} (seed {night.seed}), then: {night.last_line.partition(' drafter=')[0]}")


def test_no_answer_is_lost_or_doubled(night, happened):
    wanted = TINY["prompts.training_samples"] + TINY["prompts.validation_samples"]
    (journal,) = night.data.glob("answers/*/journal.jsonl")
    for path in (journal, night.product("responses") / "responses.jsonl"):
        ids = [json.loads(line)["sample_id"] for line in path.read_text().splitlines()]
        assert len(ids) == len(set(ids)) == wanted
    happened(f"{wanted} prompts, {wanted} answers in the journal and in the set, none twice")


def test_every_sample_has_its_states_and_every_shard_is_what_was_written(night, happened):
    folder = night.product("states")
    manifest = read_valid_manifest(folder)
    wanted = TINY["prompts.training_samples"] + TINY["prompts.validation_samples"]
    assert manifest.facts["samples"] + len(manifest.facts["skipped"]) == wanted
    shards = [entry for entry in manifest.files if entry.path.endswith(".safetensors")]
    assert all(sha256_of(folder / entry.path) == entry.sha256 for entry in shards)
    happened(
        f"{len(shards)} shards with {manifest.facts['samples']} samples, each with the checksum it was written with"
    )


def test_the_weights_are_those_of_a_training_that_was_never_interrupted(night, engine_python, tmp_path, happened):
    STOP.clear()
    trained = night.product("trained")
    log_folder = max(night.data.glob("logs/*/train.json")).parent
    spec = dataclasses.replace(
        from_json(TrainingSpec, (log_folder / "train.json").read_text()), out_folder=tmp_path / "again"
    )
    run_in_engine(engine_python, "tasks.eagle3.train", spec, TrainingResult, tmp_path / "log", lambda _: None, {})
    for name in ("base/model.safetensors", "best/model.safetensors"):
        assert sha256_of(spec.out_folder / name) == sha256_of(trained / name)
    happened(f"sha256 of best/model.safetensors: {sha256_of(trained / 'best/model.safetensors')[:16]} both times")


def test_no_process_is_left(night):
    ours = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            ours += [words] if str(night.root) in words else []
    assert ours == [] and not list(night.data.rglob("*.processes.json"))


def test_a_run_after_that_finds_everything_finished(night, happened):
    folders = {path: path.stat().st_mtime_ns for path in night.data.glob(f"*/*/{MANIFEST_NAME}")}
    assert night.finish() == night.last_line
    assert folders == {path: path.stat().st_mtime_ns for path in night.data.glob(f"*/*/{MANIFEST_NAME}")}
    happened("nothing was made again")


@pytest.fixture(scope="module")
def without_a_shard(night):
    """The finished run, one shard deleted, started again."""
    folder = night.product("states")
    shards = sorted(folder.glob("*.safetensors"))
    before = {path.name: (path.stat().st_mtime_ns, sha256_of(path)) for path in shards}
    gone = shards[len(shards) // 2]
    gone.unlink()
    night.finish()
    after = {path.name: (path.stat().st_mtime_ns, sha256_of(path)) for path in sorted(folder.glob("*.safetensors"))}
    return gone.name, before, after


@pytest.mark.fault("bad-shard")
def test_a_deleted_shard_is_made_again_alone(without_a_shard):
    gone, before, after = without_a_shard
    assert {name for name in before if before[name] != after.get(name)} == {gone}
    assert before.keys() == after.keys()


@pytest.mark.fault("bad-shard")
def test_a_shard_that_was_made_again_has_the_same_bytes_so_nothing_after_it_is(night, without_a_shard, happened):
    gone, before, after = without_a_shard
    assert after[gone][1] == before[gone][1]
    assert len(list(night.data.glob(f"trained/*/{MANIFEST_NAME}"))) == 1
    happened(f"{gone} was captured anew with the same sha256; training and evaluation stayed as they were")
