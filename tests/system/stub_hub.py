"""A loopback hub with one repository, as far as ``huggingface_hub`` asks: listing, tree, and files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _listing(files: dict[str, bytes], claimed: dict[str, str]) -> list[dict[str, Any]]:
    entries = []
    for name, content in files.items():
        entry: dict[str, Any] = {"rfilename": name, "path": name, "type": "file", "size": len(content), "blobId": "b"}
        entry["oid"] = "b"
        if name.endswith((".safetensors", ".bin")):
            sha256 = claimed.get(name, hashlib.sha256(content).hexdigest())
            entry["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(content), "pointerSize": 100}
        entries.append(entry)
    return entries


@contextmanager
def stub_hub(
    repository: str, files: dict[str, bytes], status: int = 200, claimed_sha256: dict[str, str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Serve a repository.

    Args:
        repository: ``organisation/name``; others are not found.
        files: Name to content.
        status: Every request is answered with this, if it is not 200.
        claimed_sha256: What the listing says instead of the true checksum.

    Yields:
        The endpoint, and the paths of the files that were fetched.
    """
    fetched: list[str] = []
    entries = _listing(files, claimed_sha256 or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlparse(self.path).path
            name = path.partition(f"/{repository}/resolve/")[2].partition("/")[2]
            if status != 200:
                self.reply(status, b"{}")
            elif path.startswith(f"/api/models/{repository}/tree/"):
                self.reply(200, json.dumps(entries).encode())
            elif path.startswith(f"/api/models/{repository}"):
                info = {"id": repository, "sha": COMMIT, "siblings": entries, "private": False, "tags": []}
                self.reply(200, json.dumps({**info, "downloads": 0, "likes": 0}).encode())
            elif name in files:
                if self.command == "GET":
                    fetched.append(name)
                self.reply(200, files[name], etag=hashlib.sha256(files[name]).hexdigest())
            else:
                self.reply(404, b"{}", error="RepoNotFound")

        def reply(self, code: int, body: bytes, etag: str = "", error: str = "") -> None:
            self.send_response(code)
            headers = {"content-length": str(len(body)), "content-type": "application/json", "x-repo-commit": COMMIT}
            if etag:
                headers |= {"etag": f'"{etag}"', "content-type": "application/octet-stream"}
            if error:
                headers |= {"x-error-code": error}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", fetched
    finally:
        server.shutdown()
        server.server_close()
