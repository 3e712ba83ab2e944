"""The life of a real vLLM server: killed, stuck, stopped while it starts, and somebody else's."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from tasks.errors import Stopped
from tasks.recipe import Engine, Inference, ModelFacts, ModelSource, Server, Target
from tasks.system import guard
from tasks.system.answering import answer_prompts, sampling_of
from tasks.system.foreign_server import find_server, take_over
from tasks.system.generation import ask_all
from tasks.system.journal import Journal
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.restarts import Restarts
from tasks.system.vllm_server import (
    Endpoint,
    child_of,
    listed_models,
    server_command,
    start_server,
    stop_server,
    take_port,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault]

ENGINE = Engine(
    arguments=["--enforce-eager"], environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
)
SPEC = Inference(max_new_tokens=40, in_flight=8, request_timeout_seconds=120)
PROMPTS = [
    Prompt(f"id{i}", "test", [{"role": "user", "content": f"Tell a story about {i + 2} cats."}]) for i in range(48)
]


@pytest.fixture(autouse=True)
def not_stopping():
    STOP.clear()
    yield
    STOP.clear()


def target(folder: Path) -> Target:
    facts = ModelFacts(weights_bytes=1, hidden_size=576, layers=30, vocab_tokens=49152)
    source = ModelSource(kind="folder", name=str(folder))
    # CPUs without AVX-512 emulate bfloat16, at a quarter of the speed.
    return Target(source=source, dtype="float32", window_tokens=512, snapshot=facts)


@pytest.fixture(scope="module")
def start(engine_python, target_folder, tmp_path_factory):
    """Starts a server, at a port if one is given."""
    log = tmp_path_factory.mktemp("server") / "server.log"

    def started(port: int = 0) -> Endpoint:
        server = Server(port=port, stop_grace_seconds=5)
        return start_server(engine_python, target_folder, target(target_folder), server, ENGINE, log, lambda _: None)

    return started


@pytest.fixture(scope="module")
def served(start):
    STOP.clear()
    endpoint = start()
    yield endpoint
    stop_server(endpoint)


def process_named(endpoint: Endpoint, name: str) -> int:
    """The process of a server whose command line has this in it."""
    found = [
        pid for pid in guard.descendants(child_of(endpoint).pid) if name in " ".join(psutil.Process(pid).cmdline())
    ]
    return found[0]


ANSWERED_BEFORE_THE_FAULT = 10


@pytest.mark.parametrize(
    ("process", "number"),
    [
        pytest.param("EngineCore", signal.SIGKILL, marks=pytest.mark.fault("engine-dies-mid-run"), id="engine killed"),
        pytest.param("EngineCore", signal.SIGSTOP, marks=pytest.mark.fault("healthy-but-stuck"), id="engine stuck"),
        pytest.param("api_server", signal.SIGKILL, marks=pytest.mark.fault("engine-orphans"), id="server killed"),
    ],
)
def test_inference_goes_on_with_a_new_server_and_every_prompt_has_one_answer(
    served, start, tmp_path, process, number, happened
):
    deaths, struck = [], threading.Event()
    port = int(served.base_url.rpartition(":")[2])

    def strike(progress) -> None:
        if progress.done >= ANSWERED_BEFORE_THE_FAULT and not struck.is_set():
            struck.set()
            os.kill(process_named(served, process), number)

    def reopen(endpoint: Endpoint) -> Endpoint:
        before = guard.descendants(child_of(endpoint).pid)
        stop_server(endpoint)
        assert not [pid for pid in before if guard.identity(pid)]
        return start(port)

    restarts = Restarts(most=1, reopen=reopen, on_death=lambda error: deaths.append(str(error)))
    sets = PromptSets(PROMPTS, [], [], rows_read=len(PROMPTS), skipped={})
    with Journal(tmp_path / "journal.jsonl", 0) as journal:
        answer_prompts(sets, served, SPEC, Server(token_stall_seconds=10), journal, restarts, strike)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(deaths) == 1 and len(lines) == len(journal.sample_ids) == len(PROMPTS)
    happened(f"{deaths[0][:90]}...; restarted once, {len(lines)} of {len(PROMPTS)} prompts have one answer each")


@pytest.mark.fault("sigterm-lost-in-startup")
@pytest.mark.parametrize("after_seconds", [2, 9, 16])
def test_a_stop_at_any_phase_of_the_start_leaves_no_process(start, after_seconds, happened):
    threading.Timer(after_seconds, STOP.set).start()
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    began = time.monotonic()
    with pytest.raises(Stopped):
        start()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert left == []
    happened(f"stopped {after_seconds} s into the start, gone {time.monotonic() - began - after_seconds:.0f} s later")


@pytest.mark.fault("foreign-server")
def test_a_loading_server_of_somebody_else_is_awaited_used_and_ended_only_by_taking_over(
    engine_python, target_folder, tmp_path
):
    port = take_port("127.0.0.1", 0)
    command = server_command(engine_python, target_folder, target(target_folder), "127.0.0.1", port, ENGINE.arguments)
    with (tmp_path / "log").open("wb") as log:
        theirs = subprocess.Popen(command, env={**os.environ, **ENGINE.environment}, stdout=log, stderr=log)
    server = Server(endpoint=f"http://127.0.0.1:{port}", endpoint_model="target", load_timeout_seconds=300)
    endpoint = find_server(server, "SmolLM2", 512, lambda _: None)
    assert ask_all(PROMPTS[:4], endpoint, sampling_of(SPEC, Server()), lambda *_: None).answered == 4
    assert not stop_server(endpoint) and theirs.poll() is None
    ended = take_over(endpoint, 5)
    theirs.wait(10)
    assert len(ended) >= 2 and not [pid for pid in ended if guard.identity(pid)]
    assert listed_models(endpoint.base_url) == []
