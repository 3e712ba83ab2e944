"""Which samples go into which shard, and what an extraction refuses before it loads a model. No vLLM."""

import dataclasses
import json
from pathlib import Path

import pytest

from tasks.errors import BadInput, EngineRejected, RecipeError, Stopped
from tasks.hidden_states import engine
from tasks.hidden_states.engine import engine_arguments
from tasks.hidden_states.extract import extract
from tasks.hidden_states.index import Recovered, ShardRecord, StoredSample, recover
from tasks.hidden_states.layout import StoreFormat, bytes_per_token
from tasks.hidden_states.plan import PlannedShard, Work, plan_shards, plan_work
from tasks.hidden_states.spec import ExtractionSpec
from tasks.hidden_states.target import TargetShape
from tasks.system.child import Reporter
from tasks.system.responses import Response
from tests.hidden_states.samples import LAYER_IDS, make_spec

SHAPE = TargetShape(decoder_layers=30, hidden_size=64, vocab_tokens=1000)
TOKEN_BYTES = bytes_per_token("bf16", SHAPE.hidden_size, len(LAYER_IDS))
LENGTHS = [10, 40, 25, 40, 15, 30, 20, 35]


def make_response(number: int, length: int) -> Response:
    return Response(
        sample_id=f"s{number}",
        split="training",
        source="tests",
        prompt_token_ids=[number],
        response_token_ids=[7] * (length - 1),
        finish_reason="stop",
    )


RESPONSES = [make_response(number, length) for number, length in enumerate(LENGTHS)]


@pytest.fixture
def target(tmp_path) -> Path:
    """A target's config without weights: what is refused is refused before they are needed."""
    sizes = {"num_hidden_layers": 30, "hidden_size": 64, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return tmp_path


def work_of(spec: ExtractionSpec, records: list[ShardRecord]) -> Work:
    return plan_work(spec, SHAPE, Recovered(records, {}))


def record_of(shard: PlannedShard, rejected: tuple[str, ...] = ()) -> ShardRecord:
    stored = [
        StoredSample(r.sample_id, r.split, r.source, 0, r.length_tokens, "hash", True)
        for r in shard.samples
        if r.sample_id not in rejected
    ]
    store = StoreFormat("bf16", LAYER_IDS, SHAPE.hidden_size)
    return ShardRecord(shard.file, 1, 1, "sha256", store, stored, dict.fromkeys(rejected, "all zero"))


def spec_of(target: Path, responses: list[Response] = RESPONSES, shard_tokens: int = 80) -> ExtractionSpec:
    return make_spec(target, responses, target, shard_bytes=shard_tokens * TOKEN_BYTES)


def ids(shards: list[PlannedShard]) -> list[list[str]]:
    return [[sample.sample_id for sample in shard.samples] for shard in shards]


def test_every_sample_has_its_place_longest_first_in_bounded_shards():
    assert ids(plan_shards(RESPONSES, 80)) == [["s1", "s3"], ["s7", "s5"], ["s2", "s6", "s4", "s0"]]


def test_a_sample_that_is_longer_than_a_shard_has_one_of_its_own():
    assert ids(plan_shards(RESPONSES[:3], 20)) == [["s1"], ["s2"], ["s0"]]


def test_the_plan_does_not_depend_on_the_order_of_the_responses():
    assert plan_shards(RESPONSES[::-1], 80) == plan_shards(RESPONSES, 80)


def test_shards_of_other_samples_have_other_names():
    names = {shard.file for tokens in (30, 80, 200) for shard in plan_shards(RESPONSES, tokens)}
    groups = {tuple(group) for tokens in (30, 80, 200) for group in ids(plan_shards(RESPONSES, tokens))}
    assert len(names) == len(groups)


@pytest.mark.fault("bad-shard")
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_shard_is_planned_alone_under_its_name_with_its_samples(target, lost):
    whole = work_of(spec_of(target), []).shards
    work = work_of(spec_of(target), [record_of(shard) for shard in whole if shard is not whole[lost]])
    assert work.shards == [whole[lost]]
    assert (work.kept_shards, work.done_tokens) == (2, sum(LENGTHS) - whole[lost].tokens)


def test_with_another_shard_size_what_is_there_is_kept_and_the_rest_planned_anew(target):
    first = work_of(spec_of(target), []).shards[0]
    work = work_of(spec_of(target, shard_tokens=50), [record_of(first)])
    assert ids(work.shards) == [["s7"], ["s5"], ["s2", "s6"], ["s4", "s0"]]
    assert work.done_tokens == first.tokens


@pytest.mark.fault("bad-states")
@pytest.mark.parametrize("shard_tokens", [80, 50])
def test_a_sample_that_was_rejected_is_counted_and_not_asked_again(target, shard_tokens):
    first = work_of(spec_of(target), []).shards[0]
    work = work_of(spec_of(target, shard_tokens=shard_tokens), [record_of(first, rejected=("s3",))])
    assert work.bad == {"s3": "all zero"}
    assert "s3" not in {sample_id for group in ids(work.shards) for sample_id in group}


@pytest.mark.fault("sample-of-window-length")
@pytest.mark.parametrize("extra", [0, 1])
def test_a_sample_that_leaves_no_room_for_one_more_token_is_skipped_with_the_reason(target, extra):
    whole_window = make_response(9, 1024 + extra)
    work = work_of(spec_of(target, [*RESPONSES, whole_window]), [])
    assert work.skipped == {"s9": f"{1024 + extra} tokens and one more do not fit the window of 1024"}
    assert work.total_tokens == sum(LENGTHS)


@pytest.mark.fault("sample-of-window-length")
def test_a_sample_one_shorter_than_the_window_is_captured(target):
    work = work_of(spec_of(target, [make_response(9, 1023)]), [])
    assert work.skipped == {} and ids(work.shards) == [["s9"]]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (dataclasses.replace(RESPONSES[0], sample_id="x", response_token_ids=[]), "the answer has no tokens"),
        (dataclasses.replace(RESPONSES[0], sample_id="x", response_token_ids=[1000]), "token id 1000 is outside"),
        (dataclasses.replace(RESPONSES[0], sample_id="x"), "the same tokens as sample s0"),
    ],
)
def test_a_sample_that_cannot_be_captured_is_skipped_with_the_reason(target, broken, reason):
    assert reason in work_of(spec_of(target, [*RESPONSES, broken]), []).skipped["x"]


def test_a_set_of_which_nothing_can_be_captured_is_refused(target):
    with pytest.raises(BadInput, match=r"no sample can be captured; 1 are skipped, such as \[\('s9', '2000 tokens"):
        work_of(spec_of(target, [make_response(9, 2000)]), [])


@pytest.fixture
def run(target, monkeypatch):
    """Run the whole extraction of a target that has no weights."""
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "1")  # put back afterwards: the extraction sets them
    reporter = Reporter(target / "progress.jsonl")
    return lambda **changes: extract(dataclasses.replace(spec_of(target), **changes), reporter)


@pytest.mark.fault("unknown-model-runner")
def test_an_unknown_vllm_is_refused_before_the_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr(engine, "installed_release", lambda: "0.99")
    with pytest.raises(EngineRejected, match=r"know vLLM 0.32, 0.33; release 0.99 is installed. Install a known one"):
        run()


def test_a_stop_before_the_load_is_heeded(run, monkeypatch):
    monkeypatch.setattr(
        Reporter, "stop_requested", property(lambda self: True, lambda self, value: None), raising=False
    )
    with pytest.raises(Stopped, match="before the target was loaded"):
        run()


@pytest.mark.fault("bad-layer-ids")
def test_layer_ids_that_the_target_does_not_have_are_refused_before_the_model_is_loaded(run):
    with pytest.raises(RecipeError, match=r"lie in 1\.\.30.*found \[2, 15, 31\]. Correct drafter.layer_ids"):
        run(layer_ids=[2, 15, 31])


@pytest.mark.fault("chunked-prefill")
def test_prefix_caching_is_off_whatever_the_recipe_says(target):
    spec = spec_of(target)
    caching = dataclasses.replace(spec.extraction.engine, arguments=["--enable-prefix-caching"])
    spec = dataclasses.replace(spec, extraction=dataclasses.replace(spec.extraction, engine=caching))
    arguments = engine_arguments(spec)
    assert arguments.index("--no-enable-prefix-caching") > arguments.index("--enable-prefix-caching")


def test_a_new_folder_has_nothing_to_recover(tmp_path):
    assert recover(tmp_path) == Recovered([], {})
