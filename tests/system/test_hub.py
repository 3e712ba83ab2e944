"""Downloads by the real client, in the real child process, from a loopback hub that misbehaves on cue."""

import ast
import inspect
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from tasks.errors import BadInput, NotEnoughDisk, Stopped, TransferFailed
from tasks.system import hub_faults
from tasks.system.child import Reporter
from tasks.system.engine_child import Progress
from tasks.system.guard import descendants
from tasks.system.hub import STATE_FOLDER, Fetched, FetchSpec, Patience, fetch_checkpoint
from tasks.system.hub_download import download
from tasks.system.processes import STOP
from tests.system.stub_hub import (
    COMMIT,
    LISTING,
    Cue,
    Cut,
    NoRanges,
    Refuse,
    Stall,
    StubHub,
    WrongBytes,
    stub_hub,
)

WEIGHTS = bytes(range(256)) * 4000
HALF = len(WEIGHTS) // 2
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# model",
}
TOTAL = len(FILES["config.json"]) + len(WEIGHTS)
HASTE = Patience(tries=3, first_wait_seconds=0.02, silence_seconds=2.0)
NEEDED = ["config.json", "model.safetensors"]


@pytest.fixture(autouse=True)
def a_site_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    STOP.clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def small_volume(tmp_path) -> Iterator[Path]:
    """A tmpfs of two megabytes."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(volume)], check=False, capture_output=True
    )
    if mount.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield volume
    subprocess.run(["umount", str(volume)], check=True)


def fetch(
    hub: StubHub,
    folder: Path,
    patience: Patience = HASTE,
    reserve: int = 0,
    token: str | None = None,
    heard: list[Progress] | None = None,
) -> Fetched:
    """In a child process, as the stages do."""
    return fetch_checkpoint(
        "org/drafter",
        "main",
        folder,
        endpoint=hub.endpoint,
        token=token,
        reserve_bytes=reserve,
        on_progress=(heard if heard is not None else []).append,
        patience=patience,
    )


def fetch_here(
    hub: StubHub,
    folder: Path,
    repository: str = "org/drafter",
    revision: str = "main",
    endpoint: str | None = None,
    reserve: int = 0,
) -> Fetched:
    """What the child does, in this process: quicker where only the answer matters."""
    folder.mkdir(exist_ok=True)
    spec = FetchSpec(
        repository=repository,
        revision=revision,
        folder=folder,
        endpoint=endpoint or hub.endpoint,
        reserve_bytes=reserve,
        patience=HASTE,
    )
    return download(spec, Reporter(Path(os.devnull)))


def serve(files: dict[str, bytes] | None = None, **cues: Iterator[Cue]):
    """A hub whose weights file (``weights=``) or listing (``listing=``) fails on cue."""
    names = {"weights": "model.safetensors", "listing": LISTING, "config": "config.json"}
    return stub_hub("org/drafter", files or FILES, cues={names[name]: cue for name, cue in cues.items()})


def incomplete_files(folder: Path) -> list[Path]:
    return list((folder / STATE_FOLDER).glob("*.incomplete"))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def in_background(*arguments, **named) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            fetch(*arguments, **named)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def wait_for_bytes(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while sum(path.stat().st_size for path in incomplete_files(folder)) < count:
        assert time.monotonic() < deadline, "the bytes did not come"
        time.sleep(0.02)


def download_pids() -> list[int]:
    mine = []
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[1:3] == [b"-m", b"tasks.system.hub_download"]:
            mine.append(pid)
    return mine


# The happy path


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


# Bytes that are not what the hub lists


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


# Transfers that break


@pytest.mark.fault("broken-transfer")
def test_a_cut_body_is_continued(folder):
    with serve(weights=iter([Cut(HALF)])) as hub:
        fetched = fetch_here(hub, folder)
    assert [start for name, start in hub.ranges if name == "model.safetensors"] == [0, HALF]
    assert weights(folder) == WEIGHTS and fetched.faults == {"cut": 1}


@pytest.mark.fault("broken-transfer")
def test_a_stalled_body_is_cut_counted_and_continued(folder):
    with serve(weights=iter([Stall(HALF)])) as hub:
        fetched = fetch_here(hub, folder)
    assert hub.ranges[-2:] == [("model.safetensors", HALF), ("config.json", 0)]
    assert weights(folder) == WEIGHTS and fetched.faults == {"stalled": 1}


@pytest.mark.fault("broken-transfer")
def test_a_server_that_does_not_continue_is_read_from_the_start(folder):
    with serve(weights=iter([Cut(HALF), NoRanges()])) as hub:
        assert fetch_here(hub, folder).faults == {"cut": 1}
    assert weights(folder) == WEIGHTS


@pytest.mark.fault("broken-transfer")
def test_a_transfer_that_breaks_too_often_is_transient_and_the_next_call_goes_on(folder):
    with serve(weights=iter([Cut(HALF), Cut(1000), Cut(0)])) as hub:
        with pytest.raises(TransferFailed, match=r"3 tries in a row.* at 513,000 of 1,024,023 bytes"):
            fetch_here(hub, folder)
        assert not (folder / "model.safetensors").exists()
        fetch_here(hub, folder)
    assert ("model.safetensors", HALF + 1000) in hub.ranges and weights(folder) == WEIGHTS


@pytest.mark.fault("broken-transfer")
def test_progress_starts_the_count_of_tries_again(folder, monkeypatch):
    monkeypatch.setattr(hub_faults, "LEAST_GAIN_BYTES", 100_000)
    with serve(weights=repeat(Cut(150_000), 6)) as hub:
        fetch_here(hub, folder)
    assert weights(folder) == WEIGHTS


@pytest.mark.fault("broken-transfer")
def test_after_a_kill_at_half_only_the_rest_is_asked_for(folder):
    with serve(weights=iter([Stall(HALF)])) as hub:
        thread, errors = in_background(hub, folder, Patience(silence_seconds=60))
        wait_for_bytes(folder, HALF)
        for pid in download_pids():
            os.kill(pid, signal.SIGKILL)
        thread.join(20)
        assert isinstance(errors[0], TransferFailed)
        assert not (folder / "model.safetensors").exists()
        fetched = fetch(hub, folder)
    assert [start for name, start in hub.ranges if name == "model.safetensors"] == [0, HALF]
    assert weights(folder) == WEIGHTS and fetched.fetched_bytes == TOTAL - HALF


@pytest.mark.fault("broken-transfer")
def test_a_child_without_progress_is_ended_and_the_position_said(folder):
    patience = Patience(silence_seconds=60, stall_timeout_seconds=5.0)
    with (
        serve(weights=repeat(Stall(HALF))) as hub,
        pytest.raises(TransferFailed, match=r"org/drafter .* in phase .downloading., at 512000 of"),
    ):
        fetch(hub, folder, patience)
    assert not download_pids()


@pytest.mark.fault("broken-transfer")
def test_a_stop_in_mid_body_ends_the_child_and_keeps_its_bytes(folder):
    with serve(weights=repeat(Stall(HALF))) as hub:
        thread, errors = in_background(hub, folder, Patience(silence_seconds=60))
        wait_for_bytes(folder, HALF)
        STOP.set()
        thread.join(20)
    assert isinstance(errors[0], Stopped) and not download_pids()
    outcome = json.loads((folder / STATE_FOLDER / "hub_download.json.outcome.json").read_text())
    assert outcome["error"] == "Stopped"
    assert incomplete_files(folder)[0].stat().st_size == HALF


def test_two_downloads_into_one_folder_do_not_meet(folder):
    with serve(weights=repeat(Stall(HALF))) as hub:
        thread, _ = in_background(hub, folder, Patience(silence_seconds=60))
        wait_for_bytes(folder, HALF)
        with pytest.raises(TransferFailed, match="another process is downloading to"):
            fetch_here(hub, folder)
        STOP.set()
        thread.join(20)


def test_unfinished_contents_that_are_not_listed_any_more_are_deleted(folder):
    with serve(weights=repeat(Cut(1000), 3)) as hub:
        with pytest.raises(TransferFailed):
            fetch_here(hub, folder)
        hub.files = FILES | {"model.safetensors": b"other weights"}
        fetch_here(hub, folder)
    assert not incomplete_files(folder)


# A hub that is busy


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """What would have been waited, in seconds."""
    waited: list[float] = []
    monkeypatch.setattr(hub_faults, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited.append))
    return waited


ASKED_WAITS = {
    "seconds": ({"retry-after": "120"}, 120),
    "a date": ({"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}, 600),
    "the rate limit": ({"ratelimit": '"api";r=0;t=55', "retry-after": ""}, 55),
    "a day is too long": ({"retry-after": "86400"}, 600),
    "nothing asked": ({}, HASTE.first_wait_seconds),
}


@pytest.mark.fault("hub-busy")
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("headers", "seconds"), ASKED_WAITS.values(), ids=ASKED_WAITS)
def test_a_busy_hub_is_left_alone_as_long_as_it_asks_within_bounds(folder, waits, headers, seconds, status):
    with serve(listing=iter([Refuse(status, headers)])) as hub:
        fetch_here(hub, folder)
    assert max(waits) == pytest.approx(seconds, rel=0.5 if seconds < 1 else 0.01)


@pytest.mark.fault("hub-busy")
def test_pauses_that_nobody_asks_for_double(folder, waits):
    with serve(listing=repeat(Refuse(503), 2)) as hub:
        fetch_here(hub, folder)
    paused = [seconds for seconds in waits if seconds]
    assert paused == [pytest.approx(0.02, rel=0.5), pytest.approx(0.04, rel=0.5)]


@pytest.mark.fault("hub-busy")
def test_a_download_goes_on_after_a_pause_that_the_hub_asked_for(folder):
    with serve(listing=iter([Refuse(429, {"retry-after": "1"})])) as hub:
        assert fetch_here(hub, folder).faults == {"busy": 1}
    assert weights(folder) == WEIGHTS


@pytest.mark.fault("hub-busy")
def test_an_unavailable_hub_is_asked_again(folder):
    with serve(listing=iter([Refuse(503)]), weights=iter([Refuse(503), Refuse(502)])) as hub:
        assert fetch_here(hub, folder).faults == {"unavailable": 3}


@pytest.mark.fault("hub-busy")
@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_stays_busy_is_given_up_after_a_bounded_number_of_tries(folder, status):
    with (
        serve(listing=repeat(Refuse(status))) as hub,
        pytest.raises(TransferFailed, match=rf"org/drafter at revision main .*HTTP {status}.* after 3 tries in a row"),
    ):
        fetch_here(hub, folder)
    assert hub.asked == [LISTING] * 3


# A hub that refuses


REFUSALS = {
    "a token that is not accepted": (
        Refuse(401, {"x-error-message": "Invalid credentials in Authorization header"}),
        r"HTTP 401: the token is not accepted.*HF_TOKEN",
    ),
    "a token that may not read it": (Refuse(403), r"HTTP 403: the token may not read it"),
    "a gated repository": (Refuse(403, {"x-error-code": "GatedRepo"}), r"HTTP 403: the repository is gated.*terms"),
    "a private repository": (Refuse(401, {"x-error-code": "RepoNotFound"}), r"HTTP 401: there is no such .*private"),
    "a request that is not understood": (Refuse(400, body=b'{"error": "no"}'), r"HTTP 400: the hub does not take"),
}


@pytest.mark.fault("hub-refuses")
@pytest.mark.parametrize("where", ["listing", "weights"])
@pytest.mark.parametrize(("refusal", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_permanent_asked_once_and_says_why(folder, refusal, said, where):
    with (
        serve(**{where: chain([refusal])}) as hub,
        pytest.raises(BadInput, match=rf"org/drafter at revision main .*{said}"),
    ):
        fetch_here(hub, folder)
    assert hub.asked.count(LISTING if where == "listing" else "model.safetensors") == 1


@pytest.mark.fault("hub-refuses")
def test_a_repository_that_is_not_there_is_named(folder):
    with serve() as hub, pytest.raises(BadInput, match=r"org/other at .* HTTP 404: there is no such repository"):
        fetch_here(hub, folder, repository="org/other")


@pytest.mark.fault("hub-refuses")
def test_a_revision_that_is_not_there_is_named(folder):
    with serve() as hub, pytest.raises(BadInput, match=r"HTTP 404: the repository has no revision 'v9'"):
        fetch_here(hub, folder, revision="v9")


@pytest.mark.fault("hub-refuses")
def test_a_name_that_no_repository_can_have_is_permanent(folder):
    with serve() as hub, pytest.raises(BadInput, match=r"'a/b/c' is not a name of a hub repository"):
        fetch_here(hub, folder, repository="a/b/c")


@pytest.mark.fault("hub-refuses")
@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1]"])
def test_an_endpoint_that_is_not_a_hub_is_permanent(folder, body):
    with serve(listing=iter([Refuse(200, body=body)])) as hub, pytest.raises(BadInput, match="not the answer of a hub"):
        fetch_here(hub, folder)


@pytest.mark.fault("hub-refuses")
def test_a_hub_where_nothing_listens_is_transient_and_said_so(folder):
    with serve() as hub:
        pass
    with pytest.raises(TransferFailed, match=r"org/drafter at revision main .*the connection is refused"):
        fetch_here(hub, folder)


@pytest.mark.fault("hub-refuses")
def test_a_name_that_cannot_be_resolved_is_transient_and_said_so(folder):
    with serve() as hub, pytest.raises(TransferFailed, match="the name cannot be resolved"):
        fetch_here(hub, folder, endpoint="http://no-such-hub.invalid")


# Without the hub


@pytest.mark.fault("hub-away")
def test_what_is_there_is_used_when_the_hub_is_down(folder):
    with serve() as hub:
        fetch_here(hub, folder)
    fetched = fetch_here(hub, folder)
    assert fetched.files == NEEDED and "connection is refused" in fetched.warnings[0]
    assert fetched.faults == {"unreachable": 1}


@pytest.mark.fault("hub-away")
def test_what_is_there_is_used_in_offline_mode(folder, monkeypatch):
    with serve() as hub:
        fetch(hub, folder)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        hub.asked.clear()
        fetched = fetch(hub, folder)
    assert fetched.files == NEEDED and hub.asked == []


@pytest.mark.fault("hub-away")
def test_a_missing_file_is_named_when_the_hub_is_down(folder):
    with serve() as hub:
        fetch_here(hub, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(TransferFailed, match=r"1 of its files are missing or differ: model.safetensors"):
        fetch_here(hub, folder)


@pytest.mark.fault("hub-away")
def test_a_file_that_differs_is_named_and_kept_when_the_hub_is_down(folder):
    with serve() as hub:
        fetch_here(hub, folder)
    (folder / "model.safetensors").write_bytes(bytes(len(WEIGHTS)))
    with pytest.raises(TransferFailed, match=r"1 of its files are missing or differ: model.safetensors"):
        fetch_here(hub, folder)
    assert (folder / "model.safetensors").exists()


@pytest.mark.fault("hub-away")
def test_a_missing_file_is_permanent_in_offline_mode(folder, monkeypatch):
    with serve() as hub:
        fetch_here(hub, folder)
    (folder / "model.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=r"HF_HUB_OFFLINE is set.*missing or differ: model.safetensors"):
        fetch(hub, folder)


@pytest.mark.fault("hub-away")
def test_files_that_nobody_verified_are_not_believed_without_the_hub(folder):
    folder.mkdir()
    for name in NEEDED:
        (folder / name).write_bytes(FILES[name])
    with serve() as hub:
        pass
    with pytest.raises(TransferFailed, match=r"nothing in it can be verified.*source of kind folder"):
        fetch_here(hub, folder)


@pytest.mark.fault("hub-away")
def test_a_complete_copy_of_a_commit_needs_no_hub(folder):
    with serve() as hub:
        fetch_here(hub, folder, revision=COMMIT)
        hub.asked.clear()
        assert fetch_here(hub, folder, revision=COMMIT).warnings == []
    assert hub.asked == []


# Room


@pytest.mark.fault("volume-too-small-for-download")
def test_a_volume_that_is_too_small_is_refused_before_the_first_byte_with_both_numbers(small_volume):
    big = FILES | {"model.safetensors": bytes(3_000_000)}
    with serve(big) as hub:
        with pytest.raises(NotEnoughDisk, match=r"downloading org/drafter needs 3 MB .* has 2.\d+ MB free"):
            fetch(hub, small_volume / "checkpoint")
        assert hub.ranges == []


@pytest.mark.fault("volume-too-small-for-download")
def test_what_is_there_already_needs_no_room(small_volume):
    big = FILES | {"model.safetensors": bytes(1_200_000)}
    with serve(big, weights=repeat(Cut(200_000), 3)) as hub:
        with pytest.raises(TransferFailed):
            fetch_here(hub, small_volume / "checkpoint")
        fetch_here(hub, small_volume / "checkpoint")
    assert len(weights(small_volume / "checkpoint")) == 1_200_000


@pytest.mark.fault("volume-too-small-for-download")
def test_a_volume_that_fills_up_meanwhile_is_named_and_the_bytes_are_kept(small_volume):
    folder = small_volume / "checkpoint"
    with serve(weights=iter([Stall(HALF)])) as hub:
        thread, errors = in_background(hub, folder, Patience(silence_seconds=3))
        wait_for_bytes(folder, HALF)
        filler = small_volume / "filler"
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
