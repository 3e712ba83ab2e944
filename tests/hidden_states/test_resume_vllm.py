"""Interrupted extractions with a real vLLM: the shards are those of an uninterrupted one, byte by byte.

What can share the session's engine does; only what is killed is a process of its own.
"""

import dataclasses
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import DeadlineReached, Stopped
from tasks.hidden_states.index import read_index
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.hidden_states.windows import Window
from tasks.recipe import to_json
from tasks.system import guard
from tasks.system.child import Reporter, read_outcome
from tasks.system.processes import Child, log_tail
from tasks.system.responses import Response
from tests.hidden_states.samples import STEP_TOKENS, make_spec, run_capture, shortened
from tests.hidden_states.small_store import checksums

pytestmark = pytest.mark.vllm


def small_spec(target_folder: Path, responses: list[Response], folder: Path) -> ExtractionSpec:
    """Twelve short samples in four shards or so."""
    samples = [r for n in range(4) for r in shortened(responses[3 * n : 3 * n + 3], 6 + 9 * n)]
    short = [dataclasses.replace(r, prompt_token_ids=r.prompt_token_ids[:8]) for r in samples]
    return make_spec(target_folder, short, folder, max_batched_tokens=STEP_TOKENS, shard_bytes=450_000)


@pytest.fixture(scope="module")
def finished(engine, target_folder, responses, tmp_path_factory):
    """The folder of a capture that nothing interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    spec = small_spec(target_folder, responses, folder)
    assert run_capture(engine, spec, folder).made_shards >= 3
    return spec.out_folder


@pytest.fixture
def uninterrupted(finished):
    """Checksums of the small set's shards."""
    return checksums(finished)


@pytest.mark.fault("bad-shard")
def test_a_deleted_and_a_corrupt_shard_are_made_again_alone_with_the_same_bytes(
    engine, target_folder, responses, finished, uninterrupted, tmp_path
):
    spec = small_spec(target_folder, responses, tmp_path)
    shutil.copytree(finished, spec.out_folder)
    first, second, *_ = sorted(spec.out_folder.glob("shard-*"))
    first.unlink()
    os.truncate(second, 1000)
    work = run_capture(engine, spec, tmp_path)
    assert work.lost.keys() == {first.name, second.name}
    assert (work.made_shards, work.kept_shards) == (2, len(uninterrupted) - 2)
    assert checksums(spec.out_folder) == uninterrupted


class StoppedReporter(Reporter):
    """Asks for a stop after some looks at it, as SIGTERM does."""

    looks = 0

    @property
    def stop_requested(self) -> bool:
        self.looks += 1
        return self.looks > 3

    @stop_requested.setter
    def stop_requested(self, value: bool) -> None:
        pass


@pytest.mark.fault("killed-while-writing-a-shard")
def test_a_stop_in_the_middle_loses_one_shard_and_changes_no_byte(
    engine, target_folder, responses, uninterrupted, tmp_path
):
    spec = small_spec(target_folder, responses, tmp_path)
    with pytest.raises(Stopped, match=r"with \d of \d shards to go; the others are on disk"):
        run_capture(engine, spec, tmp_path, StoppedReporter(tmp_path / "progress.jsonl"))
    assert 0 < len(checksums(spec.out_folder)) < len(uninterrupted)
    run_capture(engine, spec, tmp_path)
    assert checksums(spec.out_folder) == uninterrupted


class WindingDown(Reporter):
    """Winds down after so many shards."""

    shards = 1

    @property
    def is_winding_down(self) -> bool:
        self.shards -= 1
        return self.shards < 0


def test_winding_down_ends_the_shard_at_work_begins_no_other_and_changes_no_byte(
    engine, target_folder, responses, uninterrupted, tmp_path
):
    spec = small_spec(target_folder, responses, tmp_path)
    with pytest.raises(DeadlineReached) as reached:
        run_capture(engine, spec, tmp_path, WindingDown(tmp_path / "progress.jsonl"))
    assert len(checksums(spec.out_folder)) == 1 and re.fullmatch(r"extraction [1-9]\d? %", str(reached.value))
    run_capture(engine, spec, tmp_path)
    assert checksums(spec.out_folder) == uninterrupted


def test_winding_down_of_a_window_says_which(engine, target_folder, responses, tmp_path):
    whole = small_spec(target_folder, responses, tmp_path)
    with pytest.raises(DeadlineReached, match="^extraction 0 % of window 2 of 3$"):
        run_capture(engine, dataclasses.replace(whole, window=Window(1, 3)), tmp_path, Reporter(tmp_path / "p", 0.0))


def start_child(spec: ExtractionSpec, folder: Path) -> Child:
    (folder / "extract.json").write_text(to_json(spec))
    command = [sys.executable, "-m", "tasks.hidden_states.extract", str(folder / "extract.json")]
    return Child(command, folder / "extract.log", spec.extraction.engine.environment, grace_seconds=60.0)


def wait_for_shards(child: Child, spec: ExtractionSpec, number: int) -> None:
    deadline = time.monotonic() + 300
    while len(read_index(spec.out_folder)) < number:
        assert child.exit is None, child.exit
        assert time.monotonic() < deadline, log_tail(child.log_path)
        time.sleep(0.02)


@pytest.mark.fault("killed-while-writing-a-shard")
def test_a_killed_and_a_stopped_child_lose_nothing_and_change_no_byte(
    target_folder, responses, uninterrupted, tmp_path
):
    spec = small_spec(target_folder, responses, tmp_path)
    child = start_child(spec, tmp_path)
    wait_for_shards(child, spec, 1)
    for pid in guard.descendants(child.pid):
        os.kill(pid, signal.SIGKILL)
    child.stop()
    assert len(read_index(spec.out_folder)) < len(uninterrupted)
    child = start_child(spec, tmp_path)
    wait_for_shards(child, spec, len(uninterrupted) - 1)
    child.stop()  # SIGTERM; it may have been finished already
    child = start_child(spec, tmp_path)
    assert child_result(child).kept_shards >= len(uninterrupted) - 1
    assert checksums(spec.out_folder) == uninterrupted


@pytest.mark.fault("cancelled-in-any-stage")
def test_a_child_that_is_stopped_while_it_loads_the_target_ends_by_itself(target_folder, responses, tmp_path):
    spec = small_spec(target_folder, responses, tmp_path)
    child = start_child(spec, tmp_path)
    deadline = time.monotonic() + 120
    while "are to be captured" not in log_tail(child.log_path):
        assert child.exit is None and time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0)
    child.stop()
    with pytest.raises(Stopped, match="while vLLM was loading the target"):
        read_outcome(tmp_path / "extract.json")


def child_result(child: Child) -> ExtractionResult:
    deadline = time.monotonic() + 300
    while (ended := child.exit) is None:
        assert time.monotonic() < deadline, log_tail(child.log_path)
        time.sleep(0.1)
    assert ended.code == 0, ended.log_tail
    return ExtractionResult(**read_outcome(child.log_path.with_name("extract.json")))
