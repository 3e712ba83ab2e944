"""A real vLLM server: what it says while it starts, what it answers, what it refuses, and that it goes."""

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tasks.errors import BadInput, ChildDied, EngineRejected
from tasks.recipe import Engine, Inference, ModelFacts, ModelSource, Server, Target
from tasks.system import guard
from tasks.system.answering import answer_prompts, finish_set
from tasks.system.generation import Answer, Rejected, Sampling, Tally, ask_all
from tasks.system.journal import Journal
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.restarts import Restarts
from tasks.system.vllm_server import (
    child_of,
    counters,
    current_phase,
    lists_model,
    start_failure,
    start_server,
    stop_server,
    take_port,
)

KEY = "sk-plantedForThisServer"
ENGINE = Engine(arguments=["--enforce-eager"], environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_API_KEY": KEY})
SAMPLING = Sampling(
    max_new_tokens=24,
    temperature=0.0,
    top_p=1.0,
    in_flight=4,
    request_timeout_seconds=60,
    request_retries=0,
    token_stall_seconds=60,
)
SPEC = Inference(max_new_tokens=16, in_flight=4)
WINDOW_TOKENS = 512
NO_RESTARTS = Restarts(most=0, reopen=lambda endpoint: endpoint, on_death=lambda _: None)


def target(folder: Path) -> Target:
    facts = ModelFacts(weights_bytes=1, hidden_size=576, layers=30, vocab_tokens=49152)
    return Target(source=ModelSource(kind="folder", name=str(folder)), window_tokens=WINDOW_TOKENS, snapshot=facts)


def prompt(number: int, text: str = "") -> Prompt:
    return Prompt(f"id{number}", "test", [{"role": "user", "content": text or f"Name {number + 2} kinds of fruit."}])


def answer(sets: PromptSets, served, journal_path: Path) -> Tally:
    with Journal(journal_path, 0) as journal:
        return answer_prompts(sets, served, SPEC, Server(), journal, NO_RESTARTS, lambda _: None)


@pytest.fixture(scope="module")
def phases() -> list[str]:
    return []


@pytest.fixture(scope="module")
def served(engine_python, target_folder, tmp_path_factory, phases):
    STOP.clear()
    log = tmp_path_factory.mktemp("server") / "server.log"
    endpoint = start_server(engine_python, target_folder, target(target_folder), Server(), ENGINE, log, phases.append)
    yield endpoint
    stop_server(endpoint)


@pytest.fixture(scope="module")
def answers(served):
    collected = []
    ask_all([prompt(i) for i in range(6)], served, SAMPLING, lambda outcome, _: collected.append(outcome))
    return collected


@pytest.mark.fault("slow-first-request")
@pytest.mark.vllm
def test_the_phases_of_the_load_are_told(served, phases):
    assert phases[-2:] == ["answering the first request", "ready"] and len(phases) > 2


@pytest.mark.vllm
def test_every_prompt_is_answered(answers):
    assert sorted(a.prompt.sample_id for a in answers if isinstance(a, Answer)) == [f"id{i}" for i in range(6)]


@pytest.mark.vllm
def test_a_request_without_the_key_of_its_environment_is_refused(served):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{served.base_url}/v1/models", timeout=30)


@pytest.mark.vllm
def test_its_log_does_not_tell_the_key(served, answers):
    assert KEY not in served.log_path.read_text()


@pytest.mark.vllm
def test_the_ids_are_those_of_the_text(served, answers):
    def text_of(token_ids: list[int]) -> str:
        body = json.dumps({"model": served.model, "tokens": token_ids}).encode()
        request = urllib.request.Request(f"{served.base_url}/detokenize", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)["prompt"]

    assert [text_of(a.response_token_ids).removesuffix("<|im_end|>") for a in answers] == [a.text for a in answers]


@pytest.mark.fault("prompt-over-window")
@pytest.mark.vllm
def test_a_prompt_beyond_the_window_is_rejected_with_vllms_reason(served):
    collected = []
    ask_all([prompt(0, "fruit " * 2 * WINDOW_TOKENS)], served, SAMPLING, lambda outcome, _: collected.append(outcome))
    (rejected,) = collected
    assert isinstance(rejected, Rejected) and re.search(r"HTTP 400.*512", rejected.reason, re.DOTALL)


@pytest.mark.vllm
def test_the_finished_set_is_what_datasets_loads(served, tmp_path):
    from datasets import load_dataset

    training, validation = [prompt(i) for i in range(3)], [prompt(i) for i in range(3, 5)]
    sets = PromptSets(training=training, validation=validation, evaluation=[], rows_read=5, skipped={})
    tally = answer(sets, served, tmp_path / "j.jsonl")
    finish_set(sets, tmp_path / "j.jsonl", tmp_path / "set", tally)
    rows = load_dataset("json", data_files=str(tmp_path / "set" / "responses.jsonl"), cache_dir=str(tmp_path))["train"]
    assert rows["split"] == ["validation"] * 2 + ["training"] * 3
    assert all(len(ids) > 0 for ids in rows["response_token_ids"])


@pytest.mark.vllm
def test_a_second_pass_asks_only_what_is_missing(served, tmp_path):
    def sets(count):
        return PromptSets([prompt(i) for i in range(count)], [], [], rows_read=count, skipped={})

    answer(sets(3), served, tmp_path / "j.jsonl")
    assert answer(sets(5), served, tmp_path / "j.jsonl").answered == 2


@pytest.mark.vllm
def test_counters_are_those_of_the_metrics_page(served):
    before = counters(served.base_url, "vllm:generation_tokens")["vllm:generation_tokens_total"]
    collected = []
    ask_all([prompt(i) for i in range(2)], served, SAMPLING, lambda outcome, _: collected.append(outcome))
    after = counters(served.base_url, "vllm:generation_tokens")["vllm:generation_tokens_total"]
    assert after - before == sum(len(answer.response_token_ids) for answer in collected)


@pytest.mark.fault("sigterm-lost-in-startup")
@pytest.mark.vllm
def test_a_stopped_server_leaves_no_process_and_no_listener(engine_python, target_folder, tmp_path):
    endpoint = start_server(
        engine_python, target_folder, target(target_folder), Server(), ENGINE, tmp_path / "log", lambda _: None
    )
    pids = guard.descendants(child_of(endpoint).pid)
    assert stop_server(endpoint)
    assert len(pids) >= 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not lists_model(endpoint)


@pytest.mark.fault("rejected-by-vllm")
@pytest.mark.vllm
def test_an_unknown_argument_is_vllms_reason_in_one_line(engine_python, target_folder, tmp_path):
    wrong = Engine(arguments=["--no-such-argument"])
    with pytest.raises(EngineRejected, match="unrecognized arguments: --no-such-argument"):
        start_server(
            engine_python, target_folder, target(target_folder), Server(), wrong, tmp_path / "log", lambda _: None
        )


@pytest.mark.fault("port-taken")
def test_a_busy_port_is_told_before_anything_starts():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=rf"needs port {port} on 127.0.0.1, .*Address already in use.*server.port=N"):
            take_port("127.0.0.1", port)


def test_the_cause_is_the_last_error_that_names_one(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "(EngineCore) ValueError: No available memory for the cache blocks.\n"
        "(APIServer) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    error = start_failure(1, log)
    assert isinstance(error, EngineRejected) and "ValueError: No available memory for the cache blocks." in str(error)


def test_an_end_without_a_cause_may_be_tried_again(tmp_path):
    (tmp_path / "log").write_text("INFO loading\n")
    assert isinstance(start_failure(-9, tmp_path / "log"), ChildDied)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Loading safetensors checkpoint shards:  42% Completed | 50/119 [01:00<01:20]", "loading shard 50 of 119"),
        ("INFO Starting to load model /x...", "loading the model"),
        ("INFO GPU KV cache size: 190,000 tokens", "sizing the KV cache"),
        ("INFO something else", ""),
    ],
)
def test_the_phase_is_read_from_the_log(line, phase):
    assert current_phase(line) == phase
