"""What the hub's own client has fetched before is linked or copied, verified, and not fetched again."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import constants

from tasks.errors import BadInput
from tests.system.hub_downloads import FILES, NEEDED, TOTAL, WEIGHTS, fetch, fetch_here, serve, weights
from tests.system.stub_hub import COMMIT

pytestmark = pytest.mark.usefixtures("hub_site")


def fill_cache(cache: Path, commit: str = COMMIT, **changed: bytes) -> Path:
    """What `hf download org/drafter` leaves: contents by their hash, and links to them by commit and name."""
    repository = cache / "models--org--drafter"
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    for name in NEEDED:
        content = changed.get(name.partition(".")[0], FILES[name])
        blob = repository / "blobs" / hashlib.sha256(FILES[name]).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return cache


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def test_nothing_that_the_cache_has_is_fetched(folder, cache):
    with serve() as hub:
        fetched = fetch(hub, folder, cache=fill_cache(cache))
    assert hub.fetched == [] and weights(folder) == WEIGHTS
    assert (fetched.cached_bytes, fetched.fetched_bytes) == (TOTAL, 0)


def test_on_the_same_volume_it_takes_no_space(folder, cache):
    with serve() as hub:
        fetch(hub, folder, cache=fill_cache(cache))
    assert (folder / "model.safetensors").samefile(
        cache / "models--org--drafter" / "snapshots" / COMMIT / "model.safetensors"
    )


def test_over_volumes_it_is_copied(folder, two_megabytes):
    with serve() as hub:
        fetched = fetch(hub, folder, cache=fill_cache(two_megabytes / "cache"))
    assert hub.fetched == [] and weights(folder) == WEIGHTS and fetched.cached_bytes == TOTAL


def test_wrong_bytes_in_the_cache_are_fetched_instead_and_left_there(folder, cache):
    wrong = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]
    with serve() as hub:
        fetch(hub, folder, cache=fill_cache(cache, model=wrong))
    assert hub.fetched == ["model.safetensors"] and weights(folder) == WEIGHTS
    assert (cache / "models--org--drafter" / "snapshots" / COMMIT / "model.safetensors").read_bytes() == wrong


def test_another_length_in_the_cache_is_fetched_instead(folder, cache):
    with serve() as hub:
        fetch(hub, folder, cache=fill_cache(cache, model=WEIGHTS[:-1]))
    assert hub.fetched == ["model.safetensors"] and weights(folder) == WEIGHTS


def test_another_commit_in_the_cache_is_not_used(folder, cache):
    with serve() as hub:
        fetch(hub, folder, cache=fill_cache(cache, commit="f" * 40))
    assert sorted(hub.fetched) == NEEDED


def test_without_a_folder_of_ones_own_the_clients_is_used(folder, cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(fill_cache(cache)))
    with serve() as hub:
        fetch_here(hub, folder)
    assert hub.fetched == [] and weights(folder) == WEIGHTS


@pytest.mark.parametrize("by", ["block", "variable"])
def test_credentials_in_the_hubs_address_are_refused_without_telling_them(folder, monkeypatch, by):
    address = "https://me:planted-word@hub.example"
    with serve() as hub, pytest.raises(BadInput, match=r"found 'https://\*\*\*@hub.example' with cred") as raised:
        hub.endpoint = address if by == "block" else ""
        monkeypatch.setenv("HF_ENDPOINT", address)
        fetch(hub, folder)
    assert "planted" not in str(raised.value) and not folder.exists()
