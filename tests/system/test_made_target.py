"""A target that is made from a package: once."""

from pathlib import Path

import pytest

from tasks.system import target
from tasks.system.dequantise import DequantiseResult
from tasks.system.run import Run
from tests.system.small_data_root import small_run


@pytest.fixture
def made(monkeypatch) -> list[Path]:
    """Folders that were filled in the engine's place, with the names that it lists."""
    folders: list[Path] = []

    def make(_python, _module, spec, *_others):
        folders.append(spec.out_folder)
        (spec.out_folder / "model.safetensors").write_bytes(b"weights")
        return DequantiseResult(files=sorted(path.name for path in spec.out_folder.iterdir()))

    monkeypatch.setattr(target, "run_in_engine", make)
    return folders


def ensure(run: Run) -> Path:
    return target.ensure_target(run, lambda *_: pytest.fail("nothing is to be fetched"))


def test_a_target_that_was_made_is_used_by_the_next_start(tmp_path, made):
    run = small_run(tmp_path)
    ensure(run)
    ensure(run)
    assert len(made) == 1


def test_a_target_that_was_made_again_is_used_by_the_next_start(tmp_path, made):
    run = small_run(tmp_path)
    (ensure(run) / "model.safetensors").write_bytes(b"other bytes")
    ensure(run)
    ensure(run)
    assert len(made) == 2
