"""Every byte is checked, damage is told file by file, and nothing is changed unless it was asked for."""

import os

import pytest

from tasks.hidden_states.index import INDEX_NAME, read_index
from tasks.system.inventory import take_inventory
from tasks.system.manifest import MANIFEST_NAME, place, write_manifest
from tasks.system.verifying import Verified, put_right, verify
from tests.system.small_data_root import fill, flip_byte, small_run, write_shard


def verified(data_root, kind: str) -> Verified:
    (stage,) = (stage for stage in take_inventory(data_root).stages if stage.kind == kind)
    return verify(stage)


@pytest.fixture
def stages(tmp_path):
    return fill(small_run(tmp_path))


def test_a_sound_stage_is_ok_and_all_its_bytes_are_counted(tmp_path, stages):
    counted = []
    (stage,) = (stage for stage in take_inventory(tmp_path).stages if stage.kind == "states")
    found = verify(stage, counted.append)
    assert (found.said, found.damaged) == ("ok", [])
    assert found.checked_bytes == sum(counted) == stages["states"].manifest().size_bytes


@pytest.mark.fault("bad-shard")
def test_a_flipped_byte_that_size_and_time_do_not_show_is_told_with_both_checksums(tmp_path, stages):
    flip_byte(stages["states"].folder / "shard-00001.safetensors")
    (damage,) = verified(tmp_path, "states").damaged
    written = {entry.path: entry.sha256 for entry in stages["states"].manifest().files}["shard-00001.safetensors"]
    assert damage.path == "shard-00001.safetensors"
    assert damage.fault.startswith(f"sha256 {written[:16]}... was written, ") and damage.fault.endswith("is there")


@pytest.mark.fault("bad-shard")
@pytest.mark.parametrize(
    ("content", "fault"), [(b"", "0 B are there"), (b"short", "5 B are there"), (None, "the file is missing")]
)
def test_a_file_of_another_length_or_none_is_told_with_what_was_written(tmp_path, stages, content, fault):
    path = stages["responses"].folder / "responses.jsonl"
    size_bytes = path.stat().st_size
    path.write_bytes(content) if content is not None else path.unlink()
    (damage,) = verified(tmp_path, "responses").damaged
    assert damage.fault == f"{size_bytes} B were written, {fault}"


@pytest.mark.fault("bad-shard")
def test_a_damaged_shard_is_deleted_and_nothing_else(tmp_path, stages):
    folder = stages["states"].folder
    flip_byte(folder / "shard-00001.safetensors")
    assert put_right(verified(tmp_path, "states")) == [f"deleted: {folder / 'shard-00001.safetensors'}"]
    assert sorted(path.name for path in folder.iterdir()) == [INDEX_NAME, MANIFEST_NAME, "shard-00000.safetensors"]
    assert stages["states"].manifest() is None


def test_a_file_whose_time_alone_differs_gets_it_back(tmp_path, stages):
    path = stages["responses"].folder / "responses.jsonl"
    os.utime(path, ns=(1, 1))
    found = verified(tmp_path, "responses")
    assert found.damaged[0].fault == "every byte is as written, but its time is another"
    put_right(found)
    assert stages["responses"].manifest() is not None


@pytest.mark.parametrize("harm", ["flipped", "missing"])
def test_a_damaged_index_is_made_again_from_its_shards(tmp_path, stages, harm):
    path = stages["states"].folder / INDEX_NAME
    before = path.read_text()
    flip_byte(path, 100) if harm == "flipped" else path.unlink()
    put_right(verified(tmp_path, "states"))
    assert path.read_text() == before and stages["states"].manifest() is not None


def test_an_index_that_is_made_again_leaves_out_damaged_shards(tmp_path, stages):
    folder = stages["states"].folder
    (folder / INDEX_NAME).unlink()
    flip_byte(folder / "shard-00000.safetensors")
    put_right(verified(tmp_path, "states"))
    assert [record.file for record in read_index(folder)] == ["shard-00001.safetensors"]


def test_unfinished_states_are_checked_by_their_index(tmp_path):
    stage = place(tmp_path, "states", "extraction", 1)
    write_shard(stage.folder, 0)
    write_shard(stage.folder, 1)
    assert verified(tmp_path, "states").said == "unfinished: 2 shards are whole"
    flip_byte(stage.folder / "shard-00000.safetensors")
    assert [damage.path for damage in verified(tmp_path, "states").damaged] == ["shard-00000.safetensors"]


def test_an_index_line_that_is_no_record_is_told_and_dropped(tmp_path):
    stage = place(tmp_path, "states", "extraction", 1)
    write_shard(stage.folder, 0)
    with (stage.folder / INDEX_NAME).open("a") as index:
        index.write('{"file": "x"}\n')
    found = verified(tmp_path, "states")
    assert "line 2: a record of a shard was needed" in found.damaged[0].fault
    put_right(found)
    assert [record.file for record in read_index(stage.folder)] == ["shard-00000.safetensors"]


def test_an_unreadable_manifest_is_damage_and_deleting_it_leaves_the_products(tmp_path, stages):
    path = stages["responses"].folder / MANIFEST_NAME
    path.write_text(path.read_text()[:-20])
    found = verified(tmp_path, "responses")
    assert [(damage.path, damage.fault) for damage in found.damaged] == [
        (MANIFEST_NAME, "it cannot be read as a manifest")
    ]
    put_right(found)
    assert [path.name for path in stages["responses"].folder.iterdir()] == ["responses.jsonl"]


def test_files_that_no_manifest_lists_are_named(tmp_path, stages):
    (stages["trained"].folder / "checkpoints").mkdir()
    (stages["trained"].folder / "checkpoints" / "step-1.pt").write_bytes(b"x")
    found = verified(tmp_path, "trained")
    assert (found.said, found.strays) == ("ok", ["checkpoints/step-1.pt"])


def test_an_unfinished_stage_is_said_to_be_one(tmp_path):
    stage = place(tmp_path, "trained", "training", 1)
    stage.folder.mkdir(parents=True)
    assert verified(tmp_path, "trained").said == "unfinished: no manifest, nothing to check by"


def test_a_file_without_a_manifest_entry_is_not_touched(tmp_path):
    stage = place(tmp_path, "trained", "training", 1)
    stage.folder.mkdir(parents=True)
    (stage.folder / "a.bin").write_bytes(b"abc")
    write_manifest(stage, ["a.bin"], {})
    (stage.folder / "a.bin").write_bytes(b"ab")
    (stage.folder / "mine").write_bytes(b"x")
    put_right(verified(tmp_path, "trained"))
    assert not (stage.folder / "a.bin").exists() and (stage.folder / "mine").exists()
