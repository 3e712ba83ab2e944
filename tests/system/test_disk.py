"""Free space is asked first, and a refusal has both numbers."""

import subprocess

import pytest

from tasks.errors import BadInput, NotEnoughDisk
from tasks.system.disk import free_bytes, readable_bytes, require, require_writable


def test_what_fits_is_let_through(small_volume):
    require(small_volume / "not" / "there" / "yet", 500_000, 100_000, "a test")


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_refusal_has_need_reserve_free_and_path(small_volume):
    message = rf"a test needs 1 MB and 100 kB are kept in reserve, but {small_volume} has 1.05 MB free"
    with pytest.raises(NotEnoughDisk, match=message):
        require(small_volume / "states", 1_000_000, 100_000, "a test")


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_full_volume_is_named(small_volume):
    (small_volume / "filler").write_bytes(b"x" * free_bytes(small_volume))
    with pytest.raises(NotEnoughDisk, match=rf"{small_volume}.* full volume"):
        require_writable(small_volume / "data")


def test_a_read_only_volume_is_named(small_volume):
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    with pytest.raises(BadInput, match=rf"{small_volume}.*cannot be written: Read-only file system"):
        require_writable(small_volume / "data")


def test_a_data_root_below_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written: Not a directory"):
        require_writable(tmp_path / "file" / "data")


def test_a_writable_root_is_made_and_left_empty(tmp_path):
    require_writable(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (5_401_804_800_000, "5.4 TB"),
        (269_060_552, "269 MB"),
    ],
)
def test_bytes_are_decimal_with_three_digits(count, text):
    assert readable_bytes(count) == text
