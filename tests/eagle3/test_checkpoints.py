"""Checkpoints: only whole ones of this training count, and two are kept."""

import pytest
import torch

from tasks.eagle3.checkpoints import Checkpoints


def state(step):
    return {"step": step, "weight": torch.full((4,), float(step))}


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1}, reserve_bytes=0)
    for step in (1, 2, 3):
        checkpoints.save(step, state(step))
    assert checkpoints.load_newest()["step"] == 3
    assert sorted(p.stem for p in tmp_path.glob("*.pt")) == ["step-00000002", "step-00000003"]


@pytest.mark.fault("resume-is-exact")
def test_a_damaged_one_is_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1}, reserve_bytes=0)
    checkpoints.save(1, state(1))
    checkpoints.save(2, state(2))
    newest = tmp_path / "step-00000002.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert checkpoints.load_newest()["step"] == 1


@pytest.mark.fault("resume-is-exact")
def test_one_whose_facts_were_not_written_is_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1}, reserve_bytes=0)
    checkpoints.save(1, state(1))
    (tmp_path / "step-00000001.json").unlink()
    assert checkpoints.load_newest() is None


def test_one_of_another_training_is_passed_over(tmp_path):
    Checkpoints(tmp_path, {"learning_rate": 1}, reserve_bytes=0).save(1, state(1))
    assert Checkpoints(tmp_path, {"learning_rate": 2}, reserve_bytes=0).load_newest() is None


def test_what_does_not_count_pushes_out_nothing_that_does(tmp_path):
    Checkpoints(tmp_path, {"a": 0}, reserve_bytes=0).save(9, state(9))
    checkpoints = Checkpoints(tmp_path, {"a": 1}, reserve_bytes=0)
    checkpoints.save(1, state(1))
    (tmp_path / "step-00000008.pt").write_bytes(b"torn, and without its facts")
    checkpoints.save(2, state(2))
    assert sorted(p.stem for p in tmp_path.glob("*.pt")) == ["step-00000001", "step-00000002"]


def test_what_a_killed_save_left_is_removed_at_the_next_start(tmp_path):
    (tmp_path / "step-00000002.pt.partial").write_bytes(b"half")
    Checkpoints(tmp_path, {"a": 1}, reserve_bytes=0)
    assert not list(tmp_path.iterdir())
