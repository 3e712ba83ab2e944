"""A loopback hub with one repository, that misbehaves on cue: listing, files, ranges, and the redirect to a store."""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LISTING = "the listing"
IN_LFS = (".safetensors", ".bin")
STALL_SECONDS = 60.0


@dataclass(frozen=True)
class Cut:
    """Close the connection after so many bytes of the body."""

    after_bytes: int


@dataclass(frozen=True)
class Stall:
    """Send so many bytes of the body, then nothing."""

    after_bytes: int


@dataclass(frozen=True)
class WrongBytes:
    """Send as many bytes as asked, the first of them flipped."""


@dataclass(frozen=True)
class NoRanges:
    """Send the whole file whatever range was asked."""


@dataclass(frozen=True)
class Refuse:
    """Answer with a status and the hub's own headers."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


Cue = Cut | Stall | WrongBytes | NoRanges | Refuse


@dataclass
class StubHub:
    """What is served, what goes wrong next, and what was asked."""

    repository: str
    files: dict[str, bytes]
    commit: str = COMMIT
    claimed: dict[str, str] = field(default_factory=dict)
    """Checksums that are listed instead of the true ones."""
    cues: dict[str, Iterator[Cue]] = field(default_factory=dict)
    """File name, or ``LISTING``, to what goes wrong with its next requests, one after the other."""
    endpoint: str = ""
    asked: list[str] = field(default_factory=list)
    """Every request of the listing or of a file's body."""
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """Every body that was begun: the file, and the byte that it was asked from."""
    tokens: dict[str, str | None] = field(default_factory=dict)
    """The authorization header of the last request, by path."""

    @property
    def fetched(self) -> list[str]:
        """The files whose bodies were begun."""
        return [name for name, _ in self.ranges]

    def entries(self) -> list[dict[str, Any]]:
        """The listing's files."""
        found = []
        for name, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": self.claimed.get(name, blob)}
            if name.endswith(IN_LFS):
                sha256 = self.claimed.get(name, hashlib.sha256(content).hexdigest())
                entry |= {"blobId": "a" * 40, "lfs": {"sha256": sha256, "size": len(content), "pointerSize": 100}}
            found.append(entry)
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StubHub
    connections: list[socket.socket]

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.connection)

    def do_GET(self) -> None:
        path, repository = urlparse(self.path).path, self.hub.repository
        self.hub.tokens[path] = self.headers.get("authorization")
        if path.startswith("/store/"):
            self.body(path.removeprefix("/store/"))
        elif path.startswith(f"/api/models/{repository}/revision/"):
            self.listing(path.rpartition("/")[2])
        elif path.startswith(f"/{repository}/resolve/{self.hub.commit}/"):
            self.file(path.partition("/resolve/")[2].partition("/")[2])
        else:
            self.reply(404, {"x-error-code": "RepoNotFound"}, b'{"error": "Repository not found"}')

    def listing(self, revision: str) -> None:
        self.hub.asked.append(LISTING)
        cue = next(self.hub.cues.get(LISTING, iter(())), None)
        if isinstance(cue, Refuse):
            self.reply(cue.status, cue.headers, cue.body)
        elif revision not in ("main", self.hub.commit):
            self.reply(404, {"x-error-code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}')
        else:
            info = {"id": self.hub.repository, "sha": self.hub.commit, "siblings": self.hub.entries()}
            self.reply(200, {}, json.dumps({**info, "private": False, "tags": [], "downloads": 0, "likes": 0}).encode())

    def file(self, name: str) -> None:
        self.hub.asked.append(name)
        if name not in self.hub.files:
            self.reply(404, {"x-error-code": "EntryNotFound"}, b"{}")
        elif name.endswith(IN_LFS):
            # As the real hub does: another host, which must not get the token.
            _, _, port = self.hub.endpoint.rpartition(":")
            self.reply(302, {"location": f"http://localhost:{port}/store/{name}"}, b"")
        else:
            self.body(name)

    def body(self, name: str) -> None:
        content, cue = self.hub.files[name], next(self.hub.cues.get(name, iter(())), None)
        if isinstance(cue, Refuse):
            self.reply(cue.status, cue.headers, cue.body)
            return
        start = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.hub.ranges.append((name, start))
        if isinstance(cue, WrongBytes):
            content = bytes([content[0] ^ 1]) + content[1:]
        if isinstance(cue, NoRanges):
            start = 0
        self.send_response(206 if start else 200)
        self.send_header("content-length", str(len(content) - start))
        if start:
            self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        most = cue.after_bytes if isinstance(cue, Cut | Stall) else len(content)
        self.wfile.write(content[start : start + most])
        self.wfile.flush()
        if isinstance(cue, Stall):
            self.wait_until_closed()
        self.close_connection = isinstance(cue, Cut | Stall)

    def wait_until_closed(self) -> None:
        self.connection.settimeout(0.1)
        deadline = time.monotonic() + STALL_SECONDS
        while time.monotonic() < deadline:
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def reply(self, code: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(code)
        for name, value in (
            {"content-type": "application/json"} | headers | {"content-length": str(len(body))}
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stub_hub(repository: str, files: dict[str, bytes], **settings: Any) -> Iterator[StubHub]:
    """Serve a repository until the block ends; then nothing listens on its port.

    Args:
        repository: ``organisation/name``; others are not found.
        files: Name to content.
        **settings: Further fields of ``StubHub``.
    """
    hub = StubHub(repository, files, **settings)
    connections: list[socket.socket] = []
    handler = type("Handler", (_Handler,), {"hub": hub, "connections": connections})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        for connection in connections:  # Clients keep them open.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
