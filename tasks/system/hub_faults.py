"""What can go wrong between here and a hub: told apart, said, counted, and waited out where that helps."""

import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers

from tasks.errors import BadInput, HeroRunError, PermanentError, TransferFailed
from tasks.system.hub import Patience

CLIENT_ERRORS = (HeroRunError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)
LONGEST_BACKOFF_SECONDS = 60.0
LEAST_GAIN_BYTES = 2**20
"""A try that brought less does not count as progress."""
ASK_AGAIN_STATUSES = (408, 416, 425)
"""Refusals of this request, not of the next: 416 says that what was to be continued is not."""

OFFLINE = "offline"

T = TypeVar("T")


class HubAway(TransferFailed):
    """The hub cannot be asked: offline by choice, not reachable, or not able to answer."""


@dataclass(frozen=True)
class Fault:
    """One failure: the kind that is counted, what is raised when it is not survived, and how long the hub asks for."""

    kind: str
    error: HeroRunError
    retry_after_seconds: float | None = None


@dataclass(frozen=True)
class Asked:
    """What was asked of which hub: the part of every message that says where."""

    action: str
    repository: str
    revision: str
    endpoint: str

    def __str__(self) -> str:
        return f"{self.action} {self.repository} at revision {self.revision} from {self.endpoint}"

    def fault(self, error: Exception) -> Fault:
        """Tell an error apart."""
        if isinstance(error, HeroRunError):
            return Fault("refused" if isinstance(error, PermanentError) else "cut", error)
        if isinstance(error, HfHubHTTPError):
            return self._answered(error)
        if isinstance(error, OfflineModeIsEnabled):
            message = f"{self} is not possible: HF_HUB_OFFLINE is set. Unset it, or provide the files."
            return Fault(OFFLINE, HubAway(message))
        if isinstance(error, HFValidationError):
            return Fault("refused", BadInput(f"{self.repository!r} is not a name of a hub repository: {error}"))
        if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
            return Fault("refused", BadInput(f"{self.endpoint!r} is not the address of a hub: {error}"))
        if isinstance(error, httpx2.HTTPError):
            return self._broke_off(error)
        if isinstance(error, OSError):
            message = f"{self}: a file cannot be read or written ({error}). Check the folder's rights and its volume."
            return Fault("refused", BadInput(message))
        message = f"{self}: what came is not the answer of a hub ({error}). Check the hub access block's endpoint."
        return Fault("refused", BadInput(message))

    def _answered(self, error: HfHubHTTPError) -> Fault:
        status = error.response.status_code
        if status == 429:
            said = f"{self} is refused for now: the hub says that it is asked too often (HTTP 429). Try again later."
            return Fault("busy", HubAway(said), retry_after_seconds(error.response))
        if status >= 500 or status in ASK_AGAIN_STATUSES:
            said = f"{self} failed: the hub cannot answer now (HTTP {status}). Try again later."
            return Fault("unavailable", HubAway(said), retry_after_seconds(error.response))
        why, what_to_do = self._refusal(error, status)
        return Fault("refused", BadInput(f"{self} was refused with HTTP {status}: {why}. {what_to_do}"))

    def _refusal(self, error: HfHubHTTPError, status: int) -> tuple[str, str]:
        page = f"{self.endpoint}/{self.repository}"
        token = "give the hub access block a token that may read it, or set HF_TOKEN"
        if isinstance(error, GatedRepoError):
            return "the repository is gated", f"Accept its terms at {page}, then {token}."
        if isinstance(error, DisabledRepoError):
            return "the repository is disabled", f"See {page}, or name another one."
        if isinstance(error, RevisionNotFoundError):
            return (
                f"the repository has no revision {self.revision!r}",
                f"Name a branch, tag or commit that {page}/commits has.",
            )
        if isinstance(error, RepositoryNotFoundError):
            return "there is no such repository, or it is private", f"Check the name; if it is private, {token}."
        if isinstance(error, RemoteEntryNotFoundError):
            return "a file that the hub lists is not there", f"See {page}/tree/{self.revision}, or name another commit."
        if status == 401:
            return "the token is not accepted", f"It may be mistyped or expired: {token}."
        if status == 403:
            return "the token may not read it", f"Ask for access at {page}, or {token}."
        said = f" ({error.server_message})" if error.server_message else ""
        return f"the hub does not take the request{said}", "Check the repository's name and the endpoint."

    def _broke_off(self, error: httpx2.HTTPError) -> Fault:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError):
            return self._not_reached(error)
        if isinstance(error, httpx2.TimeoutException):
            return Fault("stalled", TransferFailed(f"{self} stalled: no byte came for too long ({error})."))
        return Fault("cut", TransferFailed(f"{self} broke off: {str(error) or type(error).__name__}."))

    def _not_reached(self, error: httpx2.HTTPError) -> Fault:
        causes = list(_causes(error))
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
            message = (
                f"{self} was not begun: its certificate is not trusted ({error}). Set SSL_CERT_FILE, or the endpoint."
            )
            return Fault("refused", BadInput(message))
        reason = f"no connection ({str(error) or type(error).__name__})"
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            reason = f"the name cannot be resolved, so there is no network, no DNS, or a typing error ({error})"
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            reason = "the connection is refused: nothing listens there"
        message = (
            f"{self} failed: {reason}. Check the network, the proxy variables and the hub access block's endpoint."
        )
        return Fault("unreachable", HubAway(message))


class Waits:
    """Counts faults and waits between tries; shared by all transfers, so that a busy hub is left alone by all."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self.counts: Counter[str] = Counter()

    def count(self, kind: str) -> None:
        """Count a fault."""
        with self._lock:
            self.counts[kind] += 1

    def until_done(
        self, asked: Asked, attempt: Callable[[], T], tries: int, gained: Callable[[], int] = lambda: 0
    ) -> T:
        """Try until it works.

        Args:
            asked: What is tried, for the messages.
            attempt: One try.
            tries: Most tries in a row that bring nothing.
            gained: Bytes that are there; their growth starts the count of tries again.

        Raises:
            PermanentError: At once.
            TransferFailed: Too many tries brought nothing.
        """
        in_vain = 0
        while True:
            time.sleep(max(0.0, self._quiet_until - time.monotonic()))
            before = gained()
            try:
                return attempt()
            except CLIENT_ERRORS as error:
                fault, cause = asked.fault(error), error
            self.count(fault.kind)
            in_vain = 1 if gained() - before >= LEAST_GAIN_BYTES else in_vain + 1
            if isinstance(fault.error, PermanentError) or fault.kind == OFFLINE:
                raise fault.error from cause
            if in_vain >= tries:
                given_up = f" Given up after {tries} tries in a row." if tries > 1 else ""
                raise type(fault.error)(f"{fault.error}{given_up}") from cause
            print(f"{fault.error} (try {in_vain} of {tries})", flush=True)
            self._wait(in_vain, fault.retry_after_seconds)

    def _wait(self, in_vain: int, asked_seconds: float | None) -> None:
        if asked_seconds is None:
            doubled = self._patience.first_wait_seconds * 2 ** (in_vain - 1)
            time.sleep(min(LONGEST_BACKOFF_SECONDS, doubled) * random.uniform(0.5, 1.5))
            return
        seconds = min(asked_seconds, self._patience.longest_wait_seconds)
        with self._lock:
            self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
        # Not all at the same moment.
        time.sleep(random.uniform(0.0, self._patience.first_wait_seconds))


def retry_after_seconds(response: httpx2.Response) -> float | None:
    """How long a hub asks to be left alone: Retry-After in either form, else its rate-limit header."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            pass
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
