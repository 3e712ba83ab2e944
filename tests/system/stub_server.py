"""A loopback server that plays vLLM's OpenAI API and misbehaves on cue; what works is tested on real vLLM."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tasks.system.vllm_server import Endpoint

Reply = tuple[int, dict[str, Any]] | None
"""HTTP status and body; None cuts the connection."""


def answer(text: str = "yes") -> dict[str, Any]:
    """A chat reply as vLLM gives it with ``return_token_ids``."""
    message = {"role": "assistant", "content": text, "reasoning": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [5, 6, 7], "logprobs": None}
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "target", "choices": [choice]}
    return {**body, "usage": usage, "prompt_token_ids": [1, 2]}


@contextmanager
def stub_server(decide: Callable[[str, int], Reply]) -> Iterator[tuple[Endpoint, Counter[str]]]:
    """Serve; ``decide(prompt text, how often it was asked before)`` gives each reply.

    Yields:
        The endpoint, and how often each prompt has been asked.
    """
    asked: Counter[str] = Counter()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = body["messages"][-1]["content"]
            with lock:
                before, asked[text] = asked[text], asked[text] + 1
            reply = decide(text, before)
            if reply is None:
                self.close_connection = True
                return
            data = json.dumps(reply[1]).encode()
            self.send_response(reply[0])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}", "target", 0, Path("server.log")), asked
    finally:
        server.shutdown()
        server.server_close()
