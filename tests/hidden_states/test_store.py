"""The store on disk: round trip, recovery, guard, sizes. Needs torch, no vLLM."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tasks.errors import BadProduct, NotEnoughDisk
from tasks.hidden_states import index
from tasks.hidden_states.index import CORRUPT_SUFFIX, INDEX_NAME, append_record, read_index, recover, sort_index
from tasks.hidden_states.layout import StoreFormat, expected_store_bytes
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import ShardWriter
from tasks.system.files import sha256_of
from tests.hidden_states.small_store import LAYERS, MOMENTS, SAMPLES, SHARD_SAMPLES, STORE, D, make_sample, plan, write

PROJECT = Path(__file__).parents[2]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*"))


def checksums(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in shards(folder)}


def read_all(folder: Path) -> set[str]:
    reader = StateReader(folder)
    return {reader.read(entry).sample_id for entry in reader.samples}


def test_what_was_written_is_read(tmp_path):
    write(tmp_path, range(5))
    reader = StateReader(tmp_path)
    assert (reader.layout, reader.layer_ids, reader.hidden_size) == ("bf16", LAYERS, D)
    assert [entry.split for entry in reader.samples] == ["validation"] + ["training"] * 4
    for number, entry in enumerate(reader.samples):
        written, found = make_sample(number), reader.read(entry)
        assert found.token_ids_T.tolist() == written.token_ids
        assert found.token_ids_T.dtype == torch.int64
        assert found.loss_mask_T.tolist() == [False] * 10 + [True] * 10
        assert torch.equal(found.aux_TAD, written.aux_TAD)
        assert torch.equal(found.final_TD, written.final_TD)


@pytest.mark.fault("norm-confusion")
@pytest.mark.parametrize("final_is_normed", [True, False])
def test_a_store_states_whether_its_final_state_is_normed(tmp_path, final_is_normed):
    write(tmp_path, store=replace(STORE, final_is_normed=final_is_normed))
    assert StateReader(tmp_path).final_is_normed is final_is_normed


@pytest.mark.fault("norm-confusion")
def test_normed_and_other_states_are_not_mixed(tmp_path):
    write(tmp_path, range(2))
    with pytest.raises(BadProduct, match=r"final_is_normed=True.*final_is_normed=False.*another folder"):
        write(tmp_path, store=replace(STORE, final_is_normed=False))


def test_a_second_writer_adds_to_the_first(tmp_path):
    write(tmp_path, range(2))
    write(tmp_path)
    assert read_all(tmp_path) == {make_sample(n).sample_id for n in range(SAMPLES)}


def test_rejected_samples_and_the_teachers_word_are_remembered(tmp_path):
    sample = replace(make_sample(0), teacher_agrees=False)
    ShardWriter(tmp_path, STORE, 0).write("shard-0.safetensors", [sample], {"other": "all zero"})
    (record,) = ShardWriter(tmp_path, STORE, 0).records
    assert (record.rejected, record.samples[0].teacher_agrees) == ({"other": "all zero"}, False)


@pytest.mark.fault("chunked-prefill")
def test_rows_that_do_not_fit_the_ids_are_refused(tmp_path):
    sample = make_sample(0)
    with pytest.raises(BadProduct, match=r"sample-0000000000000000.*\(20, 96\).*found \(\(19, 96\)"):
        ShardWriter(tmp_path, STORE, 0).write("shard-0.safetensors", [replace(sample, aux_TAD=sample.aux_TAD[1:])])


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
    before, times = checksums(tmp_path), {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
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
    shard = shards(tmp_path)[1]
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
    flip_in_secret(shards(tmp_path)[0])
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


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    write(tmp_path, range(4))
    path = tmp_path / INDEX_NAME
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(BadProduct, match=r"index.jsonl, line 1: a record of a shard was needed"):
        StateReader(tmp_path)


@pytest.mark.fault("killed-while-writing-a-shard")
def test_half_written_and_unlisted_shards_are_removed_and_named(tmp_path):
    write(tmp_path, range(2))
    (tmp_path / "shard-000007.safetensors.partial").write_bytes(b"half")
    (tmp_path / "shard-000008.safetensors").write_bytes(b"whole but not listed")
    unfinished = "was not finished when the run before ended"
    assert recover(tmp_path).lost == dict.fromkeys(["shard-000007.safetensors", "shard-000008.safetensors"], unfinished)
    assert len(shards(tmp_path)) == 1


def test_the_index_ends_in_the_order_of_the_plan(tmp_path):
    write(tmp_path)
    before = [record.file for record in sort_index(tmp_path)]
    shards(tmp_path)[0].unlink()
    write(tmp_path)
    assert [record.file for record in read_index(tmp_path)] != before
    sort_index(tmp_path)
    assert [record.file for record in read_index(tmp_path)] == before


def test_shards_of_another_format_are_not_mixed(tmp_path):
    write(tmp_path, range(2))
    with pytest.raises(BadProduct, match=r"layer_ids=\[1, 2, 4\].*layer_ids=\[1, 2, 3\].*another folder"):
        write(tmp_path, range(2), store=replace(STORE, layer_ids=[1, 2, 3]))


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(BadProduct, match="Run the extraction first"):
        StateReader(tmp_path)


def test_disk_estimate_is_within_two_percent(tmp_path):
    width, tokens, samples = 576, 300, 12
    writer = ShardWriter(tmp_path, StoreFormat("bf16", LAYERS, width), 0)
    for first in range(0, samples, 3):
        writer.write(f"shard-{first}.safetensors", [make_sample(first + i, tokens, width) for i in range(3)])
    found = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert expected_store_bytes("bf16", width, 3, tokens * samples, samples) == pytest.approx(found, rel=0.02)


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
    shards(small_volume)[3].unlink()
    listed = (small_volume / INDEX_NAME).read_bytes()
    take_the_rest(small_volume)
    with pytest.raises(NotEnoughDisk, match=r"filled up while .*index.jsonl"):
        recover(small_volume)
    assert (small_volume / INDEX_NAME).read_bytes() == listed
