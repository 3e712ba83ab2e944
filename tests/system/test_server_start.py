"""Starts that are slow, stall, fail, or are stopped, with a program that stands in for the engine."""

import re
import threading
import time
from pathlib import Path

import pytest

from tasks.errors import ChildDied, EngineRejected, Stopped
from tasks.recipe import Engine, ModelFacts, ModelSource, Server, Target
from tasks.system.orphans import RECORD_SUFFIX
from tasks.system.processes import STOP
from tasks.system.vllm_server import is_alive, port_is_free, start_server, stop_server

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
TARGET = Target(
    source=ModelSource(kind="folder", name="/models/x"),
    snapshot=ModelFacts(weights_bytes=1, hidden_size=1, layers=1, vocab_tokens=1),
)


@pytest.fixture(autouse=True)
def not_stopping():
    STOP.clear()
    yield
    STOP.clear()


def start(tmp_path, then, steps=3, step_seconds=0.1, on_phase=lambda _: None, **server):
    environment = {"STAND_IN_THEN": then, "STAND_IN_STEPS": str(steps), "STAND_IN_STEP_SECONDS": str(step_seconds)}
    limits = {"load_timeout_seconds": 30.0, "stall_timeout_seconds": 10.0, "stop_grace_seconds": 0.5, **server}
    engine = Engine(environment=environment)
    return start_server(
        STAND_IN, Path("/models/x"), TARGET, Server(**limits), engine, tmp_path / "server.log", on_phase
    )


@pytest.mark.fault("slow-load")
def test_a_load_longer_than_the_quiet_limit_succeeds_while_it_makes_progress(tmp_path):
    endpoint = start(tmp_path, "serve", steps=12, step_seconds=0.3, stall_timeout_seconds=2.0)
    assert is_alive(endpoint)
    stop_server(endpoint)


@pytest.mark.fault("slow-load")
def test_vllms_own_limit_is_above_ours(tmp_path):
    stop_server(start(tmp_path, "serve", steps=0))
    said = re.search(r"VLLM_ENGINE_READY_TIMEOUT_S=(\d+)", (tmp_path / "server.log").read_text())
    assert int(said[1]) > Server().load_timeout_seconds


@pytest.mark.fault("stalled-load")
def test_a_load_without_progress_is_ended_with_its_phase_and_log(tmp_path):
    with pytest.raises(ChildDied, match=r"(?s)in phase 'loading shard 3 of 3' .*1 s quiet.* 3/3 \["):
        start(tmp_path, "hang", stall_timeout_seconds=1.0)


@pytest.mark.fault("stalled-load")
def test_a_load_that_is_not_done_in_time_is_ended_in_spite_of_its_progress(tmp_path):
    with pytest.raises(ChildDied, match=r"not ready after [12] s.*limits: 1 s in all, 10 s quiet"):
        start(tmp_path, "serve", steps=100, load_timeout_seconds=1.0)


@pytest.mark.fault("port-refuses-while-loading")
def test_a_server_that_dies_while_loading_fails_at_once_with_exit_code_and_cause(tmp_path):
    with pytest.raises(ChildDied, match="exit code 1 before it was ready: torch.OutOfMemoryError: CUDA out of memory"):
        start(tmp_path, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.fault("rejected-by-vllm")
def test_what_vllm_rejects_is_permanent(tmp_path):
    with pytest.raises(EngineRejected, match="ValueError: To serve at least one request"):
        start(tmp_path, "ValueError: To serve at least one request with the model's max seq len (131072), ...")


@pytest.mark.fault("sigterm-lost-in-startup")
def test_a_stop_while_loading_leaves_nothing(tmp_path):
    threading.Timer(1.0, STOP.set).start()
    with pytest.raises(Stopped):
        start(tmp_path, "hang")
    assert not list(tmp_path.glob("*" + RECORD_SUFFIX))


@pytest.mark.fault("slow-first-request")
def test_the_server_counts_as_ready_only_after_its_first_answer(tmp_path):
    phases = []
    stop_server(start(tmp_path, "serve", on_phase=phases.append))
    assert phases[-2:] == ["answering the first request", "ready"]


def test_a_stopped_server_frees_its_port(tmp_path):
    endpoint = start(tmp_path, "serve", steps=0)
    port = int(endpoint.base_url.rpartition(":")[2])
    stop_server(endpoint)
    time.sleep(0.1)
    assert port_is_free("127.0.0.1", port)
