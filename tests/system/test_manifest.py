"""A stage is complete exactly while its manifest matches its files."""

import os
from pathlib import Path

import pytest

from tasks.errors import BadProduct
from tasks.system.manifest import CONSUMED_NAME, MANIFEST_NAME, consume, place, recorded, write_manifest


@pytest.fixture
def stage(tmp_path):
    stage = place(tmp_path, "states", "extraction", 1, layer_ids=[2, 15, 27])
    stage.folder.mkdir(parents=True)
    (stage.folder / "a.bin").write_bytes(b"abc")
    (stage.folder / "b.bin").write_bytes(b"defg")
    write_manifest(stage, ["a.bin", "b.bin"], {"samples": 2})
    return stage


def test_a_finished_stage_is_valid(stage):
    assert stage.manifest().facts == {"samples": 2}


def test_no_manifest_is_not_valid(stage):
    (stage.folder / MANIFEST_NAME).unlink()
    assert stage.manifest() is None


@pytest.mark.fault("kill-anywhere")
def test_a_torn_manifest_is_not_valid(stage):
    path = stage.folder / MANIFEST_NAME
    path.write_text(path.read_text()[:-20])
    assert stage.manifest() is None


def test_a_missing_file_is_not_valid(stage):
    (stage.folder / "a.bin").unlink()
    assert stage.manifest() is None


@pytest.mark.fault("bad-shard")
def test_a_file_of_another_size_is_not_valid(stage):
    (stage.folder / "a.bin").write_bytes(b"ab")
    assert stage.manifest() is None


@pytest.mark.fault("bad-shard")
def test_a_rewritten_file_of_the_same_size_is_not_valid(stage):
    (stage.folder / "a.bin").write_bytes(b"abd")
    os.utime(stage.folder / "a.bin", ns=(1, 1))
    assert stage.manifest() is None


def test_the_digest_depends_on_the_identity(tmp_path, stage):
    assert place(tmp_path, "states", "extraction", 1, layer_ids=[2, 15, 28]).digest != stage.digest


def test_the_digest_depends_on_the_version(tmp_path, stage):
    assert place(tmp_path, "states", "extraction", 2, layer_ids=[2, 15, 27]).digest != stage.digest


def test_content_is_the_same_for_files_made_again_byte_for_byte(stage):
    before = stage.manifest().content_sha256
    (stage.folder / "a.bin").write_bytes(b"abc")
    os.utime(stage.folder / "a.bin", ns=(1, 1))
    assert write_manifest(stage, ["a.bin", "b.bin"], {"samples": 2}).content_sha256 == before


def test_content_changes_with_a_byte(stage):
    before = stage.manifest().content_sha256
    (stage.folder / "a.bin").write_bytes(b"abd")
    assert write_manifest(stage, ["a.bin", "b.bin"], {}).content_sha256 != before


def test_a_manifest_with_values_of_the_wrong_kind_is_not_valid(stage):
    path = stage.folder / MANIFEST_NAME
    path.write_text(
        path.read_text().replace('"facts": {', '"facts": [{').replace('"samples": 2\n }', '"samples": 2\n }]')
    )
    assert stage.manifest() is None and recorded(stage.folder) is None


def test_consumed_products_are_gone_and_their_manifest_is_kept(stage):
    before = stage.manifest()
    assert consume(stage.folder) == 7
    assert [path.name for path in stage.folder.iterdir()] == [CONSUMED_NAME]
    assert stage.manifest() is None and stage.consumed() == before == recorded(stage.folder)


class Killed(BaseException):
    """What no handler catches, as a kill."""


@pytest.mark.parametrize("survived_deletions", [0, 1, 2])
def test_a_kill_while_consuming_leaves_a_stage_whole_or_consumed_and_the_next_call_ends_it(
    stage, monkeypatch, survived_deletions
):
    before, unlink, left = stage.manifest(), Path.unlink, [survived_deletions]

    def unlink_some(path, missing_ok=False):
        if not left[0]:
            raise Killed
        left[0] -= 1
        unlink(path, missing_ok)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "unlink", unlink_some)
        consume(stage.folder)
    assert (stage.manifest() or stage.consumed()) == before
    consume(stage.folder)
    assert [path.name for path in stage.folder.iterdir()] == [CONSUMED_NAME]


def test_what_is_not_whole_is_not_consumed(stage):
    (stage.folder / "a.bin").write_bytes(b"ab")
    with pytest.raises(BadProduct, match="no manifest that matches its files"):
        consume(stage.folder)
    assert (stage.folder / "b.bin").exists()


def test_products_that_are_made_again_are_no_longer_consumed(stage):
    consume(stage.folder)
    (stage.folder / "a.bin").write_bytes(b"abc")
    write_manifest(stage, ["a.bin"], {})
    assert stage.consumed() is None and stage.manifest() is not None
