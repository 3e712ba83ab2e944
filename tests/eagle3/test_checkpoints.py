"""Checkpoints: only whole ones of this training count, and two are kept."""

import torch

from tasks.eagle3.checkpoints import Checkpoints


def state(step):
    return {"step": step, "weight": torch.full((4,), float(step))}


def test_the_newest_is_loaded_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1})
    for step in (1, 2, 3):
        checkpoints.save(step, state(step))
    assert checkpoints.load_newest()["step"] == 3
    assert sorted(p.stem for p in tmp_path.glob("*.pt")) == ["step-00000002", "step-00000003"]


def test_a_damaged_one_is_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1})
    checkpoints.save(1, state(1))
    checkpoints.save(2, state(2))
    newest = tmp_path / "step-00000002.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert checkpoints.load_newest()["step"] == 1


def test_one_whose_facts_were_not_written_is_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"a": 1})
    checkpoints.save(1, state(1))
    (tmp_path / "step-00000001.json").unlink()
    assert checkpoints.load_newest() is None


def test_one_of_another_training_is_passed_over(tmp_path):
    Checkpoints(tmp_path, {"learning_rate": 1}).save(1, state(1))
    assert Checkpoints(tmp_path, {"learning_rate": 2}).load_newest() is None


def test_nothing_is_left_after_deleting(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", {})
    checkpoints.save(1, state(1))
    (tmp_path / "checkpoints" / "step-00000002.pt.partial").touch()
    checkpoints.delete()
    assert not (tmp_path / "checkpoints").exists()
