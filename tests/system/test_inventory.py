"""What is on disk is told as it is, and looking never fails."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tasks.system.inventory import StageFolder, span_text, take_inventory
from tasks.system.manifest import CONSUMED_NAME, MANIFEST_NAME, consume
from tests.system.small_data_root import fill, small_run


def states_of(data_root: Path) -> dict[str, str]:
    return {stage.kind: stage.state_text for stage in take_inventory(data_root).stages}


def only(data_root: Path, kind: str) -> StageFolder:
    (stage,) = (stage for stage in take_inventory(data_root).stages if stage.kind == kind)
    return stage


@pytest.fixture
def stages(tmp_path):
    return fill(small_run(tmp_path))


def test_a_finished_run_is_complete_in_the_order_of_the_run(tmp_path, stages):
    assert list(states_of(tmp_path).items()) == [
        ("targets", "complete"),
        ("drafters", "complete"),
        ("answers", "journal"),
        ("responses", "complete"),
        ("states", "complete"),
        ("trained", "complete"),
        ("evaluations", "complete"),
    ]


def test_bytes_and_files_are_what_lies_there(tmp_path, stages):
    files = [path for path in stages["states"].folder.rglob("*") if path.is_file()]
    found = only(tmp_path, "states").extent
    assert (found.size_bytes, found.files) == (sum(path.stat().st_size for path in files), len(files))


def test_files_that_are_not_as_listed_are_counted(tmp_path, stages):
    for path in stages["states"].folder.glob("shard-*"):
        path.unlink()
    assert states_of(tmp_path)["states"] == "damaged: 2 files"


def test_consumed_states_are_said_to_be(tmp_path, stages):
    consume(stages["states"].folder)
    assert states_of(tmp_path)["states"] == "consumed"


@pytest.mark.parametrize("name", [MANIFEST_NAME, CONSUMED_NAME])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', "\udcff"])
def test_a_manifest_that_is_none_is_damage(tmp_path, stages, name, content):
    (stages["trained"].folder / MANIFEST_NAME).unlink()
    (stages["trained"].folder / name).write_bytes(content.encode(errors="surrogateescape"))
    assert states_of(tmp_path)["trained"] == "damaged: 1 file"


def test_a_stage_without_a_manifest_is_unfinished(tmp_path, stages):
    (stages["trained"].folder / MANIFEST_NAME).unlink()
    assert states_of(tmp_path)["trained"] == "unfinished"


def test_the_runs_that_used_a_stage_are_known_newest_first(tmp_path, stages):
    fill(small_run(tmp_path, "second"))
    os.utime(tmp_path / "runs" / "second.txt", (2e9, 2e9))
    inventory = take_inventory(tmp_path)
    for stage in inventory.stages:
        assert [run.name for run in inventory.used_by(stage)] == ["second", "smollm2-cpu-20261201-101010"]


def test_a_record_of_a_run_that_is_garbage_is_passed_over(tmp_path, stages):
    (tmp_path / "runs" / "odd.txt").write_bytes(b"\xff\xfe\n../../etc\n")
    (tmp_path / "runs" / "folder.txt").mkdir()
    assert {run.name for run in take_inventory(tmp_path).runs} == {"odd", "smollm2-cpu-20261201-101010"}


def test_a_stage_that_was_moved_and_linked_is_counted_where_it_is(tmp_path, stages):
    folder = stages["states"].folder
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    found = only(tmp_path, "states")
    assert found.state == "complete" and found.extent.files == 4


def test_a_link_to_nothing_is_told(tmp_path, stages):
    folder = stages["states"].folder
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "nowhere")
    assert only(tmp_path, "states").state == "unknown"
    assert f"{folder} is a link to {tmp_path / 'nowhere'}: nothing is there" in take_inventory(tmp_path).problems


def test_links_inside_a_stage_are_not_followed(tmp_path, stages):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(b"x" * 10_000)
    before = only(tmp_path, "trained").extent.size_bytes
    (stages["trained"].folder / "link").symlink_to(tmp_path / "outside")
    assert only(tmp_path, "trained").extent.size_bytes < before + 1_000


def test_a_folder_that_is_no_stage_is_not_taken_for_one(tmp_path, stages):
    (tmp_path / "states" / "my-backup").mkdir()
    assert {stage.digest: stage.state for stage in take_inventory(tmp_path).stages}["my-backup"] == "unknown"


def test_half_written_files_are_found_where_stages_are_and_only_there(tmp_path, stages):
    (stages["trained"].folder / "a.safetensors.partial").write_bytes(b"x")
    (tmp_path / "my-download.partial").write_bytes(b"x")
    assert [left.path.name for left in take_inventory(tmp_path).leftovers] == ["a.safetensors.partial"]


def test_an_empty_data_root_is_empty(tmp_path):
    inventory = take_inventory(tmp_path)
    assert (inventory.stages, inventory.size_bytes, inventory.problems) == ([], 0, [])


@pytest.fixture
def another_user():
    """Root may read everything, so these tests look with another user's eyes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        os.seteuid(os.getuid())


@pytest.mark.parametrize("hidden", ["states", "states/*", "states/*/manifest.json", "runs", "runs/*"])
def test_what_may_not_be_read_is_told_and_does_not_end_the_listing(another_user, hidden):
    fill(small_run(another_user))
    paths = list(another_user.glob(hidden))
    for path in paths:
        path.chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    inventory = take_inventory(another_user)
    os.seteuid(os.getuid())
    for path in paths:
        path.chmod(0o755)
    assert "trained" in {stage.kind for stage in inventory.stages}
    if hidden.startswith("states"):
        assert any(f"{paths[0]} cannot be read: Permission denied" in problem for problem in inventory.problems)
        assert "complete" not in {stage.state for stage in inventory.stages if stage.kind == "states"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min"), (3 * 3600, "3 h"), (47 * 3600, "47 h"), (2e5, "2 d")]
)
def test_a_time_is_said_in_its_largest_fitting_unit(seconds, text):
    assert span_text(seconds) == text
