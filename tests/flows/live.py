"""Live parts for the tests of Prefect's faults: a server of one's own that can be killed, and runs as processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.system import guard
from tests.conftest import PROJECT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return found


class PrefectServer:
    """A Prefect server with a database of its own."""

    def __init__(self, folder: Path, module: str = "prefect") -> None:
        self.home, self.port, self.module = folder / "prefect", free_port(), module
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            self.module,
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self.home.mkdir(exist_ok=True)
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(self.answers, f"a Prefect server at {self.url}")

    def kill(self) -> None:
        """SIGKILL, as by the machine's out-of-memory killer."""
        if self._process is None:
            return
        below = guard.descendants(self._process.pid)
        self._process.kill()
        for pid in below:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stay_away(self, seconds: float) -> None:
        assert not self.answers()
        time.sleep(seconds)

    def answers(self) -> bool:
        try:
            return self.get("/health") is True
        except OSError:
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=5) as reply:
            return json.loads(reply.read())

    def post(self, path: str, **body: Any) -> Any:
        return self.send("POST", path, body)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """A request of any kind, as the UI makes them; what came back, if anything did."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.loads(reply.read() or b"null")

    def runs(self) -> list[dict]:
        """Flow runs, newest first."""
        return self.post("/flow_runs/filter", sort="EXPECTED_START_TIME_DESC")

    def run(self) -> dict:
        """The newest flow run."""
        return self.runs()[0]

    def run_on(self, data_root: Path) -> dict:
        """The newest flow run on a data root."""
        return next(run for run in self.runs() if run["parameters"]["overrides"]["data_root"] == str(data_root))

    def task_states(self, flow_run_id: str) -> dict[str, str]:
        found = self.post("/task_runs/filter", flow_runs={"id": {"any_": [flow_run_id]}})
        return {task["name"]: task["state_type"] for task in found}

    def cancel(self, flow_run_id: str) -> None:
        """What the UI's button and `prefect flow-run cancel` do."""
        self.post(f"/flow_runs/{flow_run_id}/set_state", state={"type": "CANCELLING"})

    def prefect(self, *arguments: str) -> str:
        """The `prefect` command."""
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(command, env=self.environment, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class HeroRun:
    """One `hero-run run` as a process: with the tiny flow, or with the real one."""

    def __init__(
        self,
        data_root: Path,
        environment: dict[str, str],
        stage_seconds: float = 0.0,
        *arguments: str,
        module: str = "tests.flows.tiny_hero_run",
    ) -> None:
        data_root.parent.mkdir(parents=True, exist_ok=True)
        self.data_root, self.output = data_root, data_root.with_name(f"{data_root.name}-{time.monotonic_ns()}.txt")
        command = [sys.executable, "-m", module, "run", "smollm2-cpu"]
        command += ["--data-root", str(data_root), *arguments]
        environment = {**environment, "TINY_STAGE_SECONDS": str(stage_seconds), "PYTHONPATH": str(PROJECT)}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(command, env=environment, cwd=PROJECT, stdout=out, stderr=out)

    def wait_for(self, stage: str) -> None:
        """Until a stage's child is at work."""
        mark = self.data_root / f"{stage}.begun"

        def begun() -> bool:
            assert self.process.poll() is None, self.said()
            return mark.exists() and mark.read_text() == str(self.process.pid)

        wait_until(begun, f"{stage} of {self.data_root}")

    def ended(self, seconds: float = 180.0) -> int:
        """The exit code, once the process has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds:.0f} s:\n{self.said()}") from None

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def left(self) -> list[str]:
        """Command lines of processes that have anything to do with its data root."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.data_root) in line:
                    found.append(line)
        return found
