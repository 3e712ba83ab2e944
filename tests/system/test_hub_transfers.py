"""Transfers that are cut, stalled, killed or stopped: the next try asks for the rest."""

import json
import os
import signal
from itertools import repeat

import pytest

from tasks.errors import Stopped, TransferFailed
from tasks.system import hub_faults
from tasks.system.hub import STATE_FOLDER, Patience
from tasks.system.processes import STOP
from tests.system.hub_downloads import (
    FILES,
    HALF,
    TOTAL,
    WEIGHTS,
    download_pids,
    fetch,
    fetch_here,
    in_background,
    incomplete_files,
    serve,
    wait_for_bytes,
    weights,
)
from tests.system.stub_hub import Cut, NoRanges, Stall

pytestmark = pytest.mark.usefixtures("hub_site")


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
        pytest.raises(TransferFailed, match=r"org/drafter .* in phase .downloading., at 512,000 of"),
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
