"""Downloads by the real client: what is fetched, what is verified, and where it fits."""

import ast
import inspect
import json
import subprocess
from itertools import repeat
from pathlib import Path

import huggingface_hub
import pytest

from tasks.errors import BadInput, NotEnoughDisk, TransferFailed
from tasks.system.engine_child import Progress
from tasks.system.hub import STATE_FOLDER, Patience
from tests.system.hub_downloads import (
    FILES,
    HALF,
    NEEDED,
    TOTAL,
    WEIGHTS,
    fetch,
    fetch_here,
    in_background,
    incomplete_files,
    serve,
    wait_for_bytes,
    weights,
)
from tests.system.stub_hub import COMMIT, Cut, Refuse, Stall, WrongBytes, stub_hub

pytestmark = pytest.mark.usefixtures("hub_site")


@pytest.mark.fault("old-hub-arguments")
def test_a_checkpoint_is_downloaded_by_the_installed_client(folder):
    with serve() as hub:
        fetched = fetch(hub, folder)
    assert weights(folder) == WEIGHTS and fetched.files == NEEDED and fetched.fetched_bytes == TOTAL


@pytest.mark.fault("old-hub-arguments")
def test_the_client_gets_only_arguments_that_it_has():
    sources = [path for path in (Path(__file__).parents[2] / "tasks" / "system").glob("hub*.py")]
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        known = {"hf_hub_url": huggingface_hub.hf_hub_url, "model_info": huggingface_hub.HfApi.model_info}
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if name in known:
            checked += 1
            assert {keyword.arg for keyword in call.keywords} <= set(inspect.signature(known[name]).parameters)
    assert checked == 2


def test_only_the_files_that_are_used_are_fetched_and_never_a_pickle(folder):
    extra = {"original/consolidated.safetensors": b"x", "consolidated.safetensors": b"x", "code/model.py": b"pass"}
    with serve(FILES | extra) as hub:
        fetch_here(hub, folder)
    assert sorted(hub.fetched) == ["code/model.py", *NEEDED]


def test_a_repository_with_pickles_only_is_refused_with_what_it_has(folder):
    files = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
    with serve(files) as hub, pytest.raises(BadInput, match=r"safetensors are needed .* found config.json, pytorch_m"):
        fetch_here(hub, folder)


def test_a_listed_file_outside_of_the_folder_is_refused(folder):
    with serve(FILES | {"../escaped.json": b"x"}) as hub, pytest.raises(BadInput, match=r"outside of it, ../escaped"):
        fetch_here(hub, folder)


def test_the_config_comes_last_so_that_it_means_that_all_is_there(folder):
    with serve(weights=repeat(Refuse(503))) as hub, pytest.raises(TransferFailed):
        fetch_here(hub, folder)
    assert not (folder / "config.json").exists()


def test_the_total_is_known_before_the_first_byte(folder):
    heard: list[Progress] = []
    with serve() as hub:
        fetch(hub, folder, heard=heard)
    first = next(progress for progress in heard if progress.phase == "downloading")
    assert (first.done, first.total, first.unit) == (0, TOTAL, "bytes")
    assert (heard[-1].done, heard[-1].total) == (TOTAL, TOTAL)


def test_what_is_there_is_neither_fetched_nor_hashed_again(folder):
    heard: list[Progress] = []
    with serve() as hub:
        fetch(hub, folder)
        hub.ranges.clear()
        fetch(hub, folder, heard=heard)
    assert hub.ranges == [] and heard[-1].figures["hashed_bytes"] == 0


def test_the_revision_is_pinned_to_its_commit(folder):
    with serve() as hub:
        assert fetch_here(hub, folder).commit == COMMIT
    assert json.loads((folder / STATE_FOLDER / "listing.json").read_text())["commit"] == COMMIT
    assert any(f"/resolve/{COMMIT}/" in path for path in hub.tokens)


def test_a_moved_revision_replaces_what_changed_and_drops_what_is_gone(folder):
    with serve(FILES | {"old.safetensors": b"old"}) as hub:
        fetch_here(hub, folder)
        hub.files, hub.commit = FILES | {"config.json": b'{"new": true}'}, "f" * 40
        hub.ranges.clear()
        fetch_here(hub, folder)
    assert hub.fetched == ["config.json"] and not (folder / "old.safetensors").exists()


def test_the_token_goes_to_the_hub_but_not_into_files_nor_to_the_store(folder):
    with serve() as hub:
        fetch(hub, folder, token="hf_secret")
    assert hub.tokens["/api/models/org/drafter/revision/main"] == "Bearer hf_secret"
    assert hub.tokens["/store/model.safetensors"] is None
    assert not [path for path in folder.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]


@pytest.mark.fault("wrong-bytes")
def test_wrong_bytes_are_deleted_and_fetched_again(folder):
    with serve(weights=iter([WrongBytes()])) as hub:
        fetched = fetch_here(hub, folder)
    assert weights(folder) == WEIGHTS and fetched.faults == {"wrong bytes": 1}


@pytest.mark.fault("wrong-bytes")
def test_bytes_that_stay_wrong_are_permanent_and_named_with_both_hashes(folder):
    with (
        stub_hub("org/drafter", FILES, claimed={"model.safetensors": "0" * 64}) as hub,
        pytest.raises(BadInput, match=r"model.safetensors of org/drafter .* hash to [0-9a-f]{64}, but .* lists 0{64}"),
    ):
        fetch_here(hub, folder)
    assert hub.fetched.count("model.safetensors") == 2
    assert not (folder / "model.safetensors").exists() and not incomplete_files(folder)


@pytest.mark.fault("wrong-bytes")
def test_a_small_file_is_checked_by_its_git_hash(folder):
    with (
        stub_hub("org/drafter", FILES, claimed={"config.json": "0" * 40}) as hub,
        pytest.raises(BadInput, match=r"config.json of org/drafter .* lists 0{40}"),
    ):
        fetch_here(hub, folder)


@pytest.mark.fault("wrong-bytes")
def test_wrong_bytes_of_the_right_size_that_are_there_already_are_replaced(folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(len(WEIGHTS)))
    with serve() as hub:
        fetch_here(hub, folder)
    assert weights(folder) == WEIGHTS


@pytest.mark.fault("wrong-bytes")
def test_a_byte_that_flips_after_the_download_is_found_by_the_next(folder):
    with serve() as hub:
        fetch_here(hub, folder)
        (folder / "model.safetensors").write_bytes(b"\xff" + WEIGHTS[1:])
        fetch_here(hub, folder)
    assert weights(folder) == WEIGHTS


def test_right_files_that_somebody_else_fetched_are_kept(folder):
    folder.mkdir()
    for name in NEEDED:
        (folder / name).write_bytes(FILES[name])
    with serve() as hub:
        assert fetch_here(hub, folder).fetched_bytes == 0


@pytest.mark.fault("volume-too-small-for-download")
def test_a_volume_that_is_too_small_is_refused_before_the_first_byte_with_both_numbers(two_megabytes):
    big = FILES | {"model.safetensors": bytes(3_000_000)}
    with serve(big) as hub:
        with pytest.raises(NotEnoughDisk, match=r"downloading org/drafter needs 3 MB .* has 2.\d+ MB free"):
            fetch(hub, two_megabytes / "checkpoint")
        assert hub.ranges == []


@pytest.mark.fault("volume-too-small-for-download")
def test_what_is_there_already_needs_no_room(two_megabytes):
    big = FILES | {"model.safetensors": bytes(1_200_000)}
    with serve(big, weights=repeat(Cut(200_000), 3)) as hub:
        with pytest.raises(TransferFailed):
            fetch_here(hub, two_megabytes / "checkpoint")
        fetch_here(hub, two_megabytes / "checkpoint")
    assert len(weights(two_megabytes / "checkpoint")) == 1_200_000


@pytest.mark.fault("volume-too-small-for-download")
def test_a_volume_that_fills_up_meanwhile_is_named_and_the_bytes_are_kept(two_megabytes):
    folder = two_megabytes / "checkpoint"
    with serve(weights=iter([Stall(HALF)])) as hub:
        thread, errors = in_background(hub, folder, Patience(silence_seconds=3))
        wait_for_bytes(folder, HALF)
        filler = two_megabytes / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)
        thread.join(20)
        assert isinstance(errors[0], NotEnoughDisk)
        filler.unlink()
        fetch(hub, folder)
    assert weights(folder) == WEIGHTS


@pytest.mark.fault("volume-too-small-for-download")
def test_the_reserve_counts_as_need(folder):
    with serve() as hub, pytest.raises(NotEnoughDisk, match="downloading org/drafter needs 1.02 MB and 1 PB are"):
        fetch_here(hub, folder, reserve=10**15)
