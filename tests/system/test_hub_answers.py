"""A hub that is busy, refuses, or is away: told apart, and asked no more often than helps."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from tasks.errors import BadInput, TransferFailed
from tasks.system import hub_faults
from tests.system.hub_downloads import FILES, HASTE, NEEDED, WEIGHTS, fetch, fetch_here, serve, weights
from tests.system.stub_hub import COMMIT, LISTING, Refuse

pytestmark = pytest.mark.usefixtures("hub_site")


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
