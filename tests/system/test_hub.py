"""Downloads by the real client, from a loopback hub."""

import socket

import pytest

from tasks.errors import BadInput, NotEnoughDisk, TransferFailed
from tasks.system.hub import fetch_checkpoint
from tests.system.stub_hub import stub_hub

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 1000,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# model",
}


@pytest.fixture(autouse=True)
def no_retries(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_a_checkpoint_is_downloaded(tmp_path):
    with stub_hub("org/drafter", FILES) as (endpoint, _):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
    assert (tmp_path / "d" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_only_the_files_that_are_used_are_fetched_and_never_a_pickle(tmp_path):
    with stub_hub("org/drafter", FILES) as (endpoint, fetched):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
    assert sorted(fetched) == ["config.json", "model.safetensors"]


def test_what_is_there_is_not_fetched_again(tmp_path):
    with stub_hub("org/drafter", FILES) as (endpoint, fetched):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
        fetched.clear()
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
    assert fetched == []


def test_a_file_with_another_checksum_is_deleted_and_named(tmp_path):
    claimed = {"model.safetensors": "0" * 64}
    with (
        stub_hub("org/drafter", FILES, claimed_sha256=claimed) as (endpoint, _),
        pytest.raises(TransferFailed, match=r"model.safetensors of org/drafter has sha256 .*, the hub says 0000"),
    ):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
    assert not (tmp_path / "d" / "model.safetensors").exists()


def test_a_volume_that_is_too_small_is_refused_before_the_first_byte(tmp_path):
    with stub_hub("org/drafter", FILES) as (endpoint, fetched):
        with pytest.raises(NotEnoughDisk, match="downloading org/drafter needs 7.02 kB"):
            fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, reserve=10**18)
        assert fetched == []


@pytest.mark.parametrize("repository", ["org/other", "nobody/nothing"])
def test_a_repository_that_is_not_there_is_named(tmp_path, repository):
    with (
        stub_hub("org/drafter", FILES) as (endpoint, _),
        pytest.raises(BadInput, match=f"listing {repository} .* HTTP 40"),
    ):
        fetch_checkpoint(repository, "main", tmp_path / "d", endpoint, None, 0)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_permanent(tmp_path, status):
    with stub_hub("org/drafter", FILES, status) as (endpoint, _), pytest.raises(BadInput, match=f"HTTP {status}"):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)


def test_a_hub_that_is_broken_is_transient(tmp_path):
    with stub_hub("org/drafter", FILES, 500) as (endpoint, _), pytest.raises(TransferFailed, match="org/drafter"):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)


def test_a_hub_that_is_away_is_transient(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(TransferFailed, match="listing org/drafter at revision main broke off"):
        fetch_checkpoint("org/drafter", "main", tmp_path / "d", endpoint, None, 0)
