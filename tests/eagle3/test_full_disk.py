"""Volumes without room: training stops before they are full, keeps what it has, and goes on to the same bytes."""

from dataclasses import replace

import pytest
import torch
from small_trainings import exported_sha256, newest_step, run, with_training

from tasks.eagle3.export import save_checkpoint
from tasks.errors import NotEnoughDisk
from tasks.system import disk
from tasks.system.disk import free_bytes

pytestmark = pytest.mark.usefixtures("reported_every_step")

RESERVE_BYTES = 200_000


@pytest.fixture
def small(spec, small_volume):
    """The training with its products on the small volume, every step saved."""
    return replace(
        with_training(spec, checkpoint_every_seconds=1e-9),
        out_folder=small_volume / "out",
        reserve_bytes=RESERVE_BYTES,
    )


@pytest.fixture
def filler(small_volume):
    """Somebody else's file."""
    return small_volume / "filler"


def fill(filler, left_bytes):
    """Let somebody else's file grow until this much is free."""
    with filler.open("ab") as out:
        out.write(b"x" * max(0, free_bytes(filler) - left_bytes))


def fill_after(step, filler, left_bytes):
    def after(done):
        if done == step:
            fill(filler, left_bytes)
        return False

    return after


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_checkpoint_leaves_the_reserve_and_training_goes_on_to_the_same_bytes(small, spec, filler, happened):
    message = r"the checkpoint after step 5 needs \d+ kB and 200 kB are kept in reserve, but .*out/checkpoints has"
    with pytest.raises(NotEnoughDisk, match=message) as caught:
        run(small, fill_after(5, filler, RESERVE_BYTES + 10_000))
    assert "Free some space and run again: training goes on from the last checkpoint" in str(caught.value)
    assert free_bytes(filler) >= RESERVE_BYTES - 8_000  # the curve, which says where it stopped, is in the reserve
    assert newest_step(small) == 4
    filler.unlink()
    run(small)
    run(spec)
    assert exported_sha256(small) == exported_sha256(spec)
    happened("training: refused at the checkpoint of step 5, the one of step 4 kept, went on to the same weights")


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_fills_up_within_a_checkpoint_costs_only_that_one(small, spec, filler, monkeypatch, happened):
    with monkeypatch.context() as patched, pytest.raises(NotEnoughDisk, match="step 5 .* filled up while it was"):
        patched.setattr(disk, "require", lambda *_: None)
        run(small, fill_after(5, filler, 60_000))
    assert not list(small.out_folder.rglob("*.partial"))
    assert newest_step(small) == 4
    filler.unlink()
    run(small)
    run(spec)
    assert exported_sha256(small) == exported_sha256(spec)
    happened("training: full in the middle of a checkpoint, nothing half left, went on to the same weights")


@pytest.mark.fault("full-disk-in-every-stage")
def test_an_export_leaves_the_reserve(small, filler):
    filler.write_bytes(b"")
    fill(filler, RESERVE_BYTES + 10_000)
    with pytest.raises(
        NotEnoughDisk, match=r"the drafter in .*out/base needs [\d.]+ kB and 200 kB are kept in reserve"
    ):
        run(small)
    assert not list((small.out_folder / "base").iterdir())
    filler.unlink()
    run(small)


@pytest.mark.fault("full-disk-in-every-stage")
def test_an_export_in_whose_middle_the_volume_fills_up_leaves_the_earlier_one(small_volume, monkeypatch):
    folder = small_volume / "drafter"
    save_checkpoint(folder, {"x": torch.zeros(10_000)}, {"version": 1}, reserve_bytes=0)
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr(disk, "require", lambda *_: None)
    with pytest.raises(NotEnoughDisk, match=r"the drafter in .*drafter needs 2\.07 MB .* filled up while it was"):
        save_checkpoint(folder, {"x": torch.ones(500_000)}, {"version": 2}, reserve_bytes=0)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == before
