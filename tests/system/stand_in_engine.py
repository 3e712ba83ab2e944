#!/usr/bin/env python3
"""Stands in for the engine's Python where a start is to go wrong: prints, waits, fails or serves as it is told.

The environment says how: STAND_IN_STEPS (shard lines to print), STAND_IN_STEP_SECONDS, STAND_IN_THEN
(serve, hang, or the text to fail with).
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply({"data": [{"id": "target"}]})

    def do_POST(self) -> None:
        self.reply({"choices": []})

    def reply(self, body: dict) -> None:
        data, key = json.dumps(body).encode(), os.environ.get("VLLM_API_KEY")
        is_right = key is None or self.headers.get("authorization") == f"Bearer {key}"
        self.send_response(200 if is_right else 401)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


steps, then = int(os.environ["STAND_IN_STEPS"]), os.environ["STAND_IN_THEN"]
print(f"VLLM_ENGINE_READY_TIMEOUT_S={os.environ['VLLM_ENGINE_READY_TIMEOUT_S']}", flush=True)
model = Path(sys.argv[sys.argv.index("--model") + 1])
print(f"model files: {sorted(path.name for path in model.glob('[!.]*.*'))}", flush=True)
for step in range(1, steps + 1):
    time.sleep(float(os.environ["STAND_IN_STEP_SECONDS"]))
    print(f"Loading safetensors checkpoint shards: {step}% Completed | {step}/{steps} [00:01<00:01]", flush=True)
if then == "hang":
    time.sleep(600)
if then != "serve":
    print(then, flush=True)
    sys.exit(1)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
