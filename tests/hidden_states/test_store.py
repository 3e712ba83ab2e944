"""The store on disk: round trip, recovery, guard, sizes. Needs torch, no vLLM."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tasks.errors import BadProduct, NotEnoughDisk
from tasks.hidden_states.index import INDEX_NAME
from tasks.hidden_states.layout import StoreFormat, bytes_per_token, expected_store_bytes
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import CapturedSample, ShardWriter

D, LAYERS = 32, [1, 2, 4]
STORE = StoreFormat("bf16", LAYERS, D)


def make_sample(number: int, tokens: int = 20, width: int = D) -> CapturedSample:
    generator = torch.Generator().manual_seed(number)
    aux_TAD = torch.randn(tokens, len(LAYERS) * width, generator=generator).bfloat16()
    final_TD = torch.randn(tokens, width, generator=generator).bfloat16()
    ids = torch.randint(0, 163840, (tokens,), generator=generator).tolist()
    split = "validation" if number % 5 == 0 else "training"
    return CapturedSample(f"sample-{number:016x}", split, "tests", ids, tokens // 2, aux_TAD, final_TD)


def write(folder: Path, numbers: range, shard_samples: int = 2, store: StoreFormat = STORE) -> ShardWriter:
    shard_bytes = shard_samples * 20 * bytes_per_token("bf16", D, len(LAYERS))
    writer = ShardWriter(folder, store, shard_bytes, reserve_bytes=0)
    for number in numbers:
        if make_sample(number).sample_id not in writer.stored_ids:
            writer.add(make_sample(number))
    writer.flush()
    return writer


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*"))


def test_what_was_written_is_read(tmp_path):
    write(tmp_path, range(5))
    reader = StateReader(tmp_path)
    assert (reader.layout, reader.layer_ids, reader.hidden_size) == ("bf16", LAYERS, D)
    assert reader.final_is_normed
    assert [entry.split for entry in reader.samples] == ["validation"] + ["training"] * 4
    for number, entry in enumerate(reader.samples):
        written, found = make_sample(number), reader.read(entry)
        assert found.token_ids_T.tolist() == written.token_ids
        assert found.token_ids_T.dtype == torch.int64
        assert found.loss_mask_T.tolist() == [False] * 10 + [True] * 10
        assert torch.equal(found.aux_TAD, written.aux_TAD)
        assert torch.equal(found.final_TD, written.final_TD)


def test_shards_are_bounded(tmp_path):
    write(tmp_path, range(5))
    assert len(shards(tmp_path)) == 3


def test_a_second_writer_adds_to_the_first(tmp_path):
    write(tmp_path, range(3))
    write(tmp_path, range(6))
    reader = StateReader(tmp_path)
    assert sorted(entry.sample_id for entry in reader.samples) == [make_sample(n).sample_id for n in range(6)]


def test_rows_that_do_not_fit_the_ids_are_refused(tmp_path):
    sample = make_sample(0)
    with pytest.raises(BadProduct, match=r"sample-0000000000000000.*\(20, 96\).*found \(\(19, 96\)"):
        ShardWriter(tmp_path, STORE, 1000, 0).add(replace(sample, aux_TAD=sample.aux_TAD[1:]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    with path.open("ab") as out:
        out.write(b"x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


DAMAGES = [Path.unlink, empty, cut, lengthen, flip]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_written_again_and_only_that_one(tmp_path, damage):
    write(tmp_path, range(6))
    first, second, third = shards(tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in (first, third)}
    damage(second)
    with pytest.raises(BadProduct, match=r"shard-000001.*run the extraction again"):
        StateReader(tmp_path)
    writer = write(tmp_path, range(6))
    assert len(writer.records) == 3
    assert {path: path.stat().st_mtime_ns for path in (first, third)} == kept
    reader = StateReader(tmp_path)
    assert len({reader.read(entry).sample_id for entry in reader.samples}) == 6


def test_a_flipped_byte_with_the_old_time_is_found_on_first_read(tmp_path):
    write(tmp_path, range(2))
    (shard,) = shards(tmp_path)
    before = shard.stat()
    flip(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    reader = StateReader(tmp_path)
    with pytest.raises(BadProduct, match=r"sha256 .* was written, .* is there"):
        reader.read(reader.samples[0])


def test_a_torn_index_line_is_ignored_and_its_shard_written_again(tmp_path):
    write(tmp_path, range(4))
    index = tmp_path / INDEX_NAME
    os.truncate(index, index.stat().st_size - 10)
    assert len(StateReader(tmp_path).samples) == 2
    write(tmp_path, range(4))
    assert len(StateReader(tmp_path).samples) == 4
    assert len(shards(tmp_path)) == 2


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    write(tmp_path, range(4))
    index = tmp_path / INDEX_NAME
    index.write_text("{}\n" + index.read_text())
    with pytest.raises(BadProduct, match=r"index.jsonl, line 1: a record of a shard was needed"):
        StateReader(tmp_path)


def test_half_written_and_unlisted_shards_are_removed(tmp_path):
    write(tmp_path, range(2))
    (tmp_path / "shard-000007.safetensors.partial").write_bytes(b"half")
    (tmp_path / "shard-000008.safetensors").write_bytes(b"whole but not listed")
    write(tmp_path, range(2))
    assert len(shards(tmp_path)) == 1


def test_shards_of_another_format_are_not_mixed(tmp_path):
    write(tmp_path, range(2))
    with pytest.raises(BadProduct, match=r"layer_ids=\[1, 2, 4\].*layer_ids=\[1, 2, 3\].*another folder"):
        write(tmp_path, range(2), store=replace(STORE, layer_ids=[1, 2, 3]))


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(BadProduct, match="Run the extraction first"):
        StateReader(tmp_path)


def test_disk_estimate_is_within_two_percent(tmp_path):
    width, tokens, samples = 576, 300, 12
    writer = ShardWriter(tmp_path, StoreFormat("bf16", LAYERS, width), 4_000_000, 0)
    for number in range(samples):
        writer.add(make_sample(number, tokens, width))
    writer.flush()
    found = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert expected_store_bytes("bf16", width, 3, tokens * samples, samples) == pytest.approx(found, rel=0.02)


@pytest.fixture
def small_volume(tmp_path):
    """A real filesystem of 1 MiB."""
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(writer: ShardWriter) -> None:
    for number in range(100):
        if make_sample(number).sample_id not in writer.stored_ids:
            writer.add(make_sample(number, tokens=200))


def test_writing_stops_before_the_volume_is_full_and_goes_on_when_there_is_room(small_volume):
    reserve_bytes = 200_000
    with pytest.raises(NotEnoughDisk, match=r"needs [\d,]+ B and must leave 200,000 B.*volume has [\d,]+ B free"):
        fill(ShardWriter(small_volume, STORE, 100_000, reserve_bytes))
    status = os.statvfs(small_volume)
    assert status.f_bavail * status.f_frsize >= reserve_bytes
    reader = StateReader(small_volume)
    before = len([reader.read(entry) for entry in reader.samples])
    assert before > 5
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_volume)], check=True)
    with pytest.raises(NotEnoughDisk):
        fill(ShardWriter(small_volume, STORE, 100_000, reserve_bytes))
    assert len(StateReader(small_volume).samples) > before


def test_a_volume_that_fills_up_while_a_shard_is_written_leaves_no_half_shard(small_volume, monkeypatch):
    monkeypatch.setattr(ShardWriter, "_guard", lambda self, size_bytes: None)
    with pytest.raises(NotEnoughDisk):
        fill(ShardWriter(small_volume, STORE, 100_000, 0))
    assert not list(small_volume.glob("*.partial"))
    reader = StateReader(small_volume)
    assert len([reader.read(entry) for entry in reader.samples]) > 5
