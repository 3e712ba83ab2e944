"""Shards that were lost, cut, changed or never finished: named, and written again with the same bytes. No vLLM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import BadProduct
from tasks.hidden_states.index import CORRUPT_SUFFIX, INDEX_NAME, recover
from tasks.hidden_states.reader import StateReader
from tests.hidden_states.small_store import (
    MOMENTS,
    SAMPLES,
    SHARD_SAMPLES,
    checksums,
    make_sample,
    read_all,
    shard_files,
    write,
)

PROJECT = Path(__file__).parents[2]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as out:
        out.write(b"x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


DAMAGES = {
    Path.unlink: "is missing",
    empty: r"was written with [\d,]+ B and has 0 B now",
    cut: r"was written with [\d,]+ B and has [\d,]+ B now",
    shorten: r"was written with [\d,]+ B and has [\d,]+ B now",
    lengthen: r"was written with [\d,]+ B and has [\d,]+ B now",
    flip: "was changed after it was written",
}


@pytest.mark.fault("bad-shard")
@pytest.mark.parametrize(("damage", "fault"), DAMAGES.items())
def test_a_damaged_shard_is_named_with_the_reason(tmp_path, damage, fault):
    write(tmp_path)
    damage(tmp_path / "shard-000002.safetensors")
    with pytest.raises(BadProduct, match=rf"shard-000002.safetensors {fault}. Run again: only that shard's samples"):
        StateReader(tmp_path)
    recovered = recover(tmp_path)
    assert list(recovered.lost) == ["shard-000002.safetensors"]
    assert len(recovered.records) == 2


@pytest.mark.fault("bad-shard")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_written_again_with_the_same_bytes_and_only_that_one(tmp_path, damage):
    write(tmp_path)
    before, times = checksums(tmp_path), {path: path.stat().st_mtime_ns for path in shard_files(tmp_path)}
    damaged = tmp_path / "shard-000002.safetensors"
    damage(damaged)
    assert write(tmp_path) == [damaged.name]
    assert checksums(tmp_path) == before
    assert {path for path in times if path.stat().st_mtime_ns != times[path]} <= {damaged}
    assert len(read_all(tmp_path)) == SAMPLES


def flip_in_secret(path: Path) -> None:
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.fault("bad-shard")
def test_a_flipped_byte_with_the_old_time_is_found_on_first_read_and_set_aside(tmp_path):
    write(tmp_path)
    before = checksums(tmp_path)
    shard = shard_files(tmp_path)[1]
    flip_in_secret(shard)
    reader = StateReader(tmp_path)
    reader.read(reader.samples[0])
    with pytest.raises(BadProduct, match=rf"{shard}: sha256 .* was written, .* is there.*renamed to .*Run again"):
        reader.read(reader.samples[2])
    assert not shard.exists()
    assert recover(tmp_path).lost == {shard.name: "was found to be corrupt when it was read"}
    assert write(tmp_path) == [shard.name]
    assert checksums(tmp_path) == before
    assert not list(tmp_path.glob("*" + CORRUPT_SUFFIX))


@pytest.mark.fault("bad-shard")
def test_a_shard_that_describes_itself_otherwise_is_set_aside(tmp_path):
    write(tmp_path)
    (tmp_path / INDEX_NAME).write_text((tmp_path / INDEX_NAME).read_text().replace('"tests"', '"exams"'))
    reader = StateReader(tmp_path)
    with pytest.raises(BadProduct, match=r"describes itself otherwise than index.jsonl does. It was renamed to"):
        reader.read(reader.samples[0])


def test_a_corrupt_shard_in_a_folder_that_cannot_be_changed_is_named(tmp_path, monkeypatch):
    def refuse(self: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system")

    write(tmp_path)
    flip_in_secret(shard_files(tmp_path)[0])
    monkeypatch.setattr(Path, "replace", refuse)
    reader = StateReader(tmp_path)
    with pytest.raises(BadProduct, match=r"Delete that file \(Read-only file system: it could not be renamed\)"):
        reader.read(reader.samples[0])


@pytest.mark.fault("killed-while-writing-a-shard")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_writer_that_is_killed_leaves_no_half_shard_and_goes_on_from_the_rest(tmp_path, moment):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    write(whole)
    command = [sys.executable, "-m", "tests.hidden_states.small_store", str(folder), moment]
    assert subprocess.run(command, check=False, timeout=120, cwd=PROJECT).returncode == -signal.SIGKILL
    readable = read_all(folder)
    assert make_sample(0).sample_id in readable
    again = write(folder)
    assert "shard-000000.safetensors" not in again
    assert SHARD_SAMPLES * len(again) == SAMPLES - len(readable)
    assert checksums(folder) == checksums(whole)
    assert read_all(folder) == read_all(whole)


@pytest.mark.fault("killed-while-writing-a-shard")
def test_a_torn_index_line_is_ignored_and_its_shard_written_again(tmp_path):
    write(tmp_path, range(4))
    os.truncate(tmp_path / INDEX_NAME, (tmp_path / INDEX_NAME).stat().st_size - 10)
    assert len(StateReader(tmp_path).samples) == 2
    assert write(tmp_path, range(4)) == ["shard-000002.safetensors"]
    assert len(read_all(tmp_path)) == 4


@pytest.mark.fault("killed-while-writing-a-shard")
def test_half_written_and_unlisted_shards_are_removed_and_named(tmp_path):
    write(tmp_path, range(2))
    (tmp_path / "shard-000007.safetensors.partial").write_bytes(b"half")
    (tmp_path / "shard-000008.safetensors").write_bytes(b"whole but not listed")
    unfinished = "was not finished when the run before ended"
    assert recover(tmp_path).lost == dict.fromkeys(["shard-000007.safetensors", "shard-000008.safetensors"], unfinished)
    assert len(shard_files(tmp_path)) == 1
