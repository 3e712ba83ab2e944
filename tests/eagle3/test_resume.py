"""Killed, stopped or torn at any moment, a training goes on and ends with the same bytes."""

import json
import os
import random
import signal
import time
from dataclasses import replace

import pytest
from small_trainings import STEPS, curve, exported_sha256, newest_step, run, start_child, with_training

from tasks.eagle3.checkpoints import Checkpoints
from tasks.eagle3.train import train
from tasks.eagle3.trainer import Trainer
from tasks.errors import DeadlineReached, Stopped
from tasks.system.child import EXIT_STOPPED, Reporter

KILLS = 5


@pytest.fixture
def every_step_saved(spec):
    return with_training(spec, checkpoint_every_seconds=1e-9)


def kill_after(child, is_time, delay_seconds=0.0):
    """SIGKILL once it is time; fails when the child ends before."""
    while not is_time():
        assert child.poll() is None, "the training ended before it was killed"
        time.sleep(0.001)
    time.sleep(delay_seconds)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the training ended before it was killed"


@pytest.mark.slow_fault
@pytest.mark.fault("resume-is-exact")
@pytest.mark.fault("kill-anywhere")
def test_killed_at_random_steps_it_ends_with_the_same_bytes(every_step_saved, tmp_path, happened):
    """First before any checkpoint, then at random steps, also within a save; real processes throughout."""
    whole = with_training(every_step_saved, epochs=60, validate_every_steps=40)
    broken = replace(whole, out_folder=tmp_path / "broken")
    assert start_child(whole).wait() == 0
    steps = sorted(random.sample(range(1, 70), KILLS - 1))
    kill_after(start_child(broken), (broken.out_folder / "base" / "config.json").exists)
    for step in steps:
        kill_after(start_child(broken), lambda step=step: newest_step(broken) >= step, random.uniform(0, 0.03))
    assert start_child(broken).wait() == 0
    assert exported_sha256(broken) == exported_sha256(whole)
    assert curve(broken) == curve(whole)
    sha256 = exported_sha256(broken)["best/model.safetensors"][:8]
    happened(
        f"killed before the first checkpoint and after steps {steps} of {len(curve(whole)) - 1}, same weights {sha256}"
    )


@pytest.mark.fault("resume-is-exact")
def test_sigterm_saves_and_exits(spec, happened):
    """No save is due before the end, so the checkpoint is the signal's."""
    long = with_training(spec, epochs=300, validate_every_steps=1000, checkpoint_every_seconds=3600.0)
    child = start_child(long)
    progress = long.out_folder.with_suffix(".json.progress.jsonl")
    while not (progress.exists() and '"training"' in progress.read_text()):
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == EXIT_STOPPED == 143
    outcome = json.loads(long.out_folder.with_suffix(".json.outcome.json").read_text())
    step = newest_step(long)
    assert outcome["error"] == "Stopped" and f"training stopped after step {step} of" in outcome["message"]
    happened(f"SIGTERM: {outcome['message'].partition(';')[0]}, checkpoint {step} is there, exit code 143")


@pytest.mark.fault("resume-is-exact")
def test_wound_down_after_every_step_it_ends_with_the_same_bytes(spec, tmp_path):
    """Each start is winding down from its beginning: it makes the step that it is at, saves, and ends."""
    broken, said = replace(spec, out_folder=tmp_path / "broken"), []
    run(spec)
    for _ in range(STEPS - 1):
        with pytest.raises(DeadlineReached) as reached:
            train(broken, Reporter(tmp_path / "progress", wind_down_at_seconds=0.0))
        said.append(str(reached.value))
    train(broken, Reporter(tmp_path / "progress", wind_down_at_seconds=0.0))
    assert said == [f"training {10 * step} %" for step in range(1, STEPS)]
    assert exported_sha256(broken) == exported_sha256(spec)
    assert curve(broken) == curve(spec)


@pytest.mark.fault("resume-is-exact")
@pytest.mark.usefixtures("reported_every_step")
def test_a_torn_newest_checkpoint_costs_only_its_own_steps(every_step_saved, tmp_path, capsys):
    broken = replace(every_step_saved, out_folder=tmp_path / "broken")
    run(every_step_saved)
    with pytest.raises(Stopped):
        run(broken, lambda step: step == 6)
    newest = broken.out_folder / "checkpoints" / "step-00000006.pt"
    os.truncate(newest, newest.stat().st_size // 2)
    run(broken)
    assert f"{newest} is not whole" in capsys.readouterr().out
    assert exported_sha256(broken) == exported_sha256(every_step_saved)
    assert curve(broken) == curve(every_step_saved)


@pytest.mark.fault("resume-is-exact")
def test_ended_before_its_first_checkpoint_it_makes_the_same_base_and_map(spec, tmp_path, monkeypatch):
    broken = replace(spec, out_folder=tmp_path / "broken")
    run(spec)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "run", interrupted)
        run(broken)
    assert (broken.out_folder / "base" / "config.json").exists() and not (broken.out_folder / "best").exists()
    run(broken)
    assert exported_sha256(broken) == exported_sha256(spec)


@pytest.mark.fault("resume-is-exact")
def test_ended_before_its_products_were_listed_it_trains_and_saves_nothing_again(spec, monkeypatch):
    result = run(spec)
    before, drawn = exported_sha256(spec), curve(spec)
    (spec.out_folder / "best" / "config.json").unlink()
    monkeypatch.setattr(Trainer, "_optimizer_step", interrupted)
    monkeypatch.setattr(Checkpoints, "save", interrupted)
    assert run(spec) == result and result.steps == STEPS
    assert exported_sha256(spec) == before and curve(spec) == drawn


def interrupted(*_):
    raise KeyboardInterrupt
