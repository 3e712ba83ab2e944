"""A loopback server that plays vLLM's OpenAI API and misbehaves on cue; what works is tested on real vLLM."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tasks.system.vllm_server import Endpoint

Reply = tuple[int, dict[str, Any]] | None
"""HTTP status and body; None cuts the connection."""
ERROR = {"error": {"message": "no", "type": "x", "code": 0}}


def answer(text: str = "yes") -> dict[str, Any]:
    """A chat reply as vLLM gives it with ``return_token_ids``."""
    message = {"role": "assistant", "content": text, "reasoning": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [5, 6, 7], "logprobs": None}
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "target", "choices": [choice]}
    return {**body, "usage": usage, "prompt_token_ids": [1, 2]}


@dataclass
class Stub:
    """What the server says, and what it was asked; all of it may be changed while it runs."""

    decide: Callable[[str, int], Reply] = lambda text, before: (200, answer())
    """The reply to a prompt's text, given how often it was asked before."""
    healthy: bool = True
    generated_tokens: Callable[[], int] | None = None
    """What ``/metrics`` counts; None has no such page."""
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "target", "root": "/models/target", "max_model_len": 4096}]
    )
    headers: dict[str, str] = field(default_factory=dict)
    api_key: str = ""
    """What requests under /v1 must be sent with, as vLLM asks for it; the refusal repeats what was sent."""
    asked: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    endpoint: Endpoint = Endpoint("", "target", Path("server.log"), is_ours=False)

    def get(self, path: str) -> tuple[int, bytes]:
        """The reply to a GET."""
        if path == "/health":
            return (200 if self.healthy else 503), b""
        if path == "/v1/models" and self.models:
            return 200, json.dumps({"data": self.models}).encode()
        if path == "/metrics" and self.generated_tokens:
            lines = ["# TYPE vllm:generation_tokens counter"]
            lines += [f'vllm:generation_tokens_total{{engine="0"}} {self.generated_tokens()}']
            return 200, "\n".join([*lines, ""]).encode()
        return 404, b"{}"


@contextmanager
def stub_server(stub: Stub) -> Iterator[Stub]:
    """Serve; yields the stub with its endpoint."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.refused():
                self.reply(*stub.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.refused():
                return
            text = body["messages"][-1]["content"]
            with lock:
                before, stub.asked[text] = stub.asked[text], stub.asked[text] + 1
                stub.bodies.append(body)
            reply = stub.decide(text, before)
            if reply is None:
                self.close_connection = True
                return
            self.reply(reply[0], json.dumps(reply[1]).encode())

        def refused(self) -> bool:
            sent = self.headers.get("authorization", "")
            is_right = not stub.api_key or not self.path.startswith("/v1") or sent == f"Bearer {stub.api_key}"
            if not is_right:
                self.reply(401, json.dumps({"error": f"Unauthorized: {sent}"}).encode())
            return not is_right

        def reply(self, status: int, data: bytes) -> None:
            self.send_response(status)
            headers = {"content-type": "application/json", "content-length": str(len(data)), **stub.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:  # a client that goes away is what many tests are about
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    stub.endpoint = Endpoint(f"http://127.0.0.1:{server.server_address[1]}", "target", Path("server.log"), False)
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
