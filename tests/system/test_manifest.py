"""A stage is complete exactly while its manifest matches its files."""

import os

import pytest

from tasks.errors import BadProduct
from tasks.system.manifest import MANIFEST_NAME, place, verify, write_manifest


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


def test_verify_counts_the_bytes_that_it_checked(stage):
    assert verify(stage.folder) == 7


@pytest.mark.fault("bad-shard")
def test_verify_finds_a_flipped_byte_that_size_and_time_do_not_show(stage):
    status = (stage.folder / "a.bin").stat()
    (stage.folder / "a.bin").write_bytes(b"abd")
    os.utime(stage.folder / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BadProduct, match=r"a.bin: sha256 .* was written, .* is there. Delete the file"):
        verify(stage.folder)
