"""Somebody else's server: awaited, checked, used, and stopped only when it is to be taken over."""

import socket
import subprocess
import sys
import threading

import pytest

from tasks.errors import BadInput, GaveUp, PermanentError
from tasks.recipe import Engine, Server
from tasks.system import foreign_server
from tasks.system.foreign_server import base_url_of, find_server, take_over
from tasks.system.generation import Answer, Sampling, ask_all
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt
from tasks.system.vllm_server import Endpoint, is_alive, stop_server
from tests.system.stub_server import ERROR, Stub, answer, stub_server

pytestmark = pytest.mark.fault("foreign-server")

KEY = "planted-key-4711"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(foreign_server, "POLL_SECONDS", 0.1)
    STOP.clear()


def find(stub: Stub, model: str = "", target: str = "moonshotai/Target", window: int = 4096, **fields) -> Endpoint:
    server = Server(endpoint=stub.endpoint.base_url + "/v1", endpoint_model=model, load_timeout_seconds=5, **fields)
    return find_server(server, target, window, lambda _: None)


def test_a_server_that_is_up_is_used():
    with stub_server(Stub()) as stub:
        assert find(stub).base_url == stub.endpoint.base_url


def test_a_server_that_is_still_loading_is_awaited():
    with stub_server(Stub(models=[])) as stub:
        threading.Timer(0.5, stub.models.append, [{"id": "target", "root": "/models/target"}]).start()
        assert find(stub).model == "target"


def test_a_server_that_does_not_come_is_given_up_with_what_to_do():
    with stub_server(Stub()) as stub:
        pass
    with pytest.raises(GaveUp, match=r"no vLLM server answered at http://127.0.0.1:\d+ within 1 s\. Start it, correct"):
        find_server(Server(endpoint=stub.endpoint.base_url, load_timeout_seconds=1), "target", 1, lambda _: None)


def test_another_model_is_refused_with_what_is_served():
    with (
        stub_server(Stub()) as stub,
        pytest.raises(BadInput, match=r"serves target \(from /models/target\), and the rec"),
    ):
        find(stub, target="moonshotai/Kimi-K2.5")


def test_a_model_under_another_name_is_used_when_it_is_named():
    with stub_server(Stub(models=[{"id": "kimi"}, {"id": "other"}])) as stub:
        assert find(stub, model="kimi", target="moonshotai/Kimi-K2.5").model == "kimi"


def test_a_name_that_is_not_served_is_refused():
    with stub_server(Stub()) as stub, pytest.raises(BadInput, match="does not serve 'kimi'; it serves target"):
        find(stub, model="kimi")


def test_a_window_that_is_too_short_is_refused_with_both_numbers():
    with stub_server(Stub()) as stub, pytest.raises(BadInput, match="window of 4096 tokens; the recipe needs 16384"):
        find(stub, window=16384)


def test_a_server_without_token_ids_is_refused():
    reply = {name: value for name, value in answer().items() if name != "prompt_token_ids"}
    with (
        stub_server(Stub(lambda text, before: (200, reply))) as stub,
        pytest.raises(BadInput, match="without token ids"),
    ):
        find(stub)


def test_a_server_that_refuses_a_short_request_is_told_with_its_reason():
    with stub_server(Stub(lambda text, before: (400, ERROR))) as stub, pytest.raises(BadInput, match=r"HTTP 400: .*no"):
        find(stub)


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(BadInput, match=r"must be http://host:port, found"):
        base_url_of(address)


def find_one_of(*addresses: str, **fields) -> Endpoint:
    server = Server(endpoint=", ".join(addresses), load_timeout_seconds=5, **fields)
    return find_server(server, "moonshotai/Target", 4096, lambda _: None)


def test_of_several_servers_the_first_that_answers_is_used():
    with stub_server(Stub()) as first, stub_server(Stub()) as second:
        found = find_one_of(first.endpoint.base_url, second.endpoint.base_url)
    assert found.base_url == first.endpoint.base_url and not second.bodies


def test_of_several_servers_one_that_is_away_is_passed_over():
    with stub_server(Stub()) as away:
        pass
    with stub_server(Stub()) as up:
        assert find_one_of(away.endpoint.base_url, up.endpoint.base_url + "/v1").base_url == up.endpoint.base_url


def test_several_servers_that_do_not_come_are_all_named():
    with pytest.raises(GaveUp, match=r"answered at http://127.0.0.1:1 or http://127.0.0.1:2 within 1 s"):
        server = Server(endpoint="http://127.0.0.1:1,http://127.0.0.1:2", load_timeout_seconds=1)
        find_server(server, "target", 1, lambda _: None)


def test_an_address_with_credentials_is_refused_without_telling_them():
    with pytest.raises(BadInput, match=r"found 'http://\*\*\*@127.0.0.1:8000' with credentials in it") as raised:
        base_url_of("http://me:planted-word@127.0.0.1:8000")
    assert "planted" not in str(raised.value)


def test_a_server_that_wants_a_key_is_asked_with_the_engines():
    with stub_server(Stub(api_key=KEY)) as stub:
        endpoint = find(stub, engine=Engine(environment={"VLLM_API_KEY": KEY}))
    assert endpoint.model == "target" and len(stub.bodies) == 1


def test_a_server_that_wants_a_key_is_asked_with_that_of_the_runs_environment(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with stub_server(Stub(api_key=KEY)) as stub:
        assert find(stub).model == "target"


@pytest.mark.parametrize(
    ("environment", "said"), [({"VLLM_API_KEY": "another-key"}, "the API key"), ({}, "requests without an API key")]
)
def test_a_wrong_key_or_none_is_refused_at_once_with_what_to_do(environment, said):
    with (
        stub_server(Stub(api_key=KEY)) as stub,
        pytest.raises(BadInput, match=rf"does not take {said} \(HTTP 401\)\. Set VLLM_API_KEY in the environment"),
    ):
        find(stub, engine=Engine(environment=environment))


def test_prompts_are_asked_with_the_key():
    prompt, outcomes = Prompt("id", "test", [{"role": "user", "content": "hello"}]), []
    sampling = Sampling(
        max_new_tokens=8,
        temperature=0.0,
        top_p=1.0,
        in_flight=1,
        request_timeout_seconds=5.0,
        request_retries=0,
        token_stall_seconds=60.0,
    )
    with stub_server(Stub(api_key=KEY)) as stub:
        endpoint = find(stub, engine=Engine(environment={"VLLM_API_KEY": KEY}))
        ask_all([prompt], endpoint, sampling, lambda outcome, _: outcomes.append(outcome))
    assert isinstance(outcomes[0], Answer)


def test_it_is_not_stopped_by_us():
    with stub_server(Stub()) as stub:
        endpoint = find(stub)
        assert not stop_server(endpoint) and is_alive(endpoint) and find(stub) == endpoint


def listening() -> tuple[subprocess.Popen, Endpoint]:
    """A server with a child process, started by somebody else, that ends when it is told to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = (
        "import http.server, subprocess, sys; child = subprocess.Popen(['sleep', '100']); print(child.pid, flush=True);"
        f"http.server.ThreadingHTTPServer(('127.0.0.1', {port}), http.server.BaseHTTPRequestHandler).serve_forever()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    process.stdout.readline()
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
    return process, Endpoint(f"http://127.0.0.1:{port}", "target", None, is_ours=False)


def test_a_server_that_is_taken_over_ends_with_all_its_processes():
    process, endpoint = listening()
    ended = take_over(endpoint, 0.5)
    assert process.wait(5) is not None and len(ended) == 2


def test_taking_over_what_is_not_there_says_what_to_do():
    with stub_server(Stub()) as stub:
        pass
    with pytest.raises(PermanentError, match="no process of this machine that can be seen listens on port"):
        take_over(stub.endpoint, 1)
