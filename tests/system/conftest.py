"""What the tests of downloads share."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.system.processes import STOP


@pytest.fixture
def hub_site(monkeypatch, tmp_path):
    """No token, cache or switch of the machine's own."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    STOP.clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def two_megabytes(tmp_path) -> Iterator[Path]:
    """A tmpfs of two megabytes."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(volume)], check=False, capture_output=True
    )
    if mount.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield volume
    subprocess.run(["umount", str(volume)], check=True)
