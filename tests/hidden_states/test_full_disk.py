"""A volume that fills up while hidden states are written, on a real one of a megabyte. Needs torch, no vLLM."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.errors import NotEnoughDisk
from tasks.hidden_states import index
from tasks.hidden_states.index import INDEX_NAME, append_record, recover
from tasks.hidden_states.shards import ShardWriter
from tests.hidden_states.small_store import (
    STORE,
    make_sample,
    plan,
    read_all,
    shard_files,
    write,
)


def fill(folder: Path, reserve_bytes: int) -> None:
    """Write until the volume is full."""
    writer = ShardWriter(folder, STORE, reserve_bytes)
    kept = {record.file for record in writer.records}
    for file, group in plan(range(200)).items():
        if file not in kept:
            writer.write(file, [make_sample(number, tokens=200) for number in group])


def enlarge(volume: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=2m", str(volume)], check=True)


@pytest.mark.fault("disk-fills")
@pytest.mark.fault("full-disk-in-every-stage")
def test_writing_stops_before_the_volume_is_full_and_goes_on_when_there_is_room(small_volume):
    reserve_bytes = 200_000
    with pytest.raises(NotEnoughDisk, match=r"needs [\d,]+ B and must leave 200,000 B.*volume has [\d,]+ B free"):
        fill(small_volume, reserve_bytes)
    status = os.statvfs(small_volume)
    assert status.f_bavail * status.f_frsize >= reserve_bytes
    before = read_all(small_volume)
    assert len(before) > 5
    enlarge(small_volume)
    with pytest.raises(NotEnoughDisk):
        fill(small_volume, reserve_bytes)
    assert read_all(small_volume) > before


@pytest.mark.fault("disk-fills")
@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_fills_up_while_a_shard_is_written_leaves_no_half_shard(small_volume, monkeypatch):
    monkeypatch.setattr(ShardWriter, "_guard", lambda self, size_bytes: None)
    with pytest.raises(NotEnoughDisk):
        fill(small_volume, 0)
    assert not list(small_volume.glob("*.partial"))
    assert len(read_all(small_volume)) > 5


def take_the_rest(volume: Path) -> None:
    """Fill a volume to the last byte."""
    with (volume / "other").open("wb", buffering=0) as out, pytest.raises(OSError):
        while True:
            out.write(b"x" * 4096)


@pytest.mark.fault("disk-fills")
@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_fills_up_before_the_index_line_leaves_a_whole_index_and_no_stray_shard(
    small_volume, monkeypatch
):
    writer = ShardWriter(small_volume, STORE, 0)
    number = 0
    # The index grows into a second block, which the volume then refuses.
    while (small_volume / INDEX_NAME).exists() is False or (small_volume / INDEX_NAME).stat().st_size < 3000:
        writer.write(f"shard-{number}.safetensors", [make_sample(number)])
        number += 1
    listed = (small_volume / INDEX_NAME).read_bytes()

    def append_to_a_full_volume(folder: Path, record: index.ShardRecord) -> None:
        take_the_rest(folder)
        append_record(folder, replace(record, rejected={"long": "x" * 5000}))

    monkeypatch.setattr("tasks.hidden_states.shards.append_record", append_to_a_full_volume)
    with pytest.raises(NotEnoughDisk, match=r"needs [\d,]+ B.*has [\d,]+ B free"):
        writer.write("shard-last.safetensors", [make_sample(number)])
    assert (small_volume / INDEX_NAME).read_bytes() == listed
    assert not (small_volume / "shard-last.safetensors").exists()
    monkeypatch.undo()
    (small_volume / "other").unlink()
    writer.write("shard-last.safetensors", [make_sample(number)])
    assert len(read_all(small_volume)) == number + 1


@pytest.mark.fault("disk-fills")
def test_an_index_that_cannot_be_rewritten_is_a_full_disk_and_stays_as_it_was(small_volume):
    write(small_volume, range(40))
    shard_files(small_volume)[3].unlink()
    listed = (small_volume / INDEX_NAME).read_bytes()
    take_the_rest(small_volume)
    with pytest.raises(NotEnoughDisk, match=r"filled up while .*index.jsonl"):
        recover(small_volume)
    assert (small_volume / INDEX_NAME).read_bytes() == listed
