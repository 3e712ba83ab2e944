"""KV room and training memory, against figures computed by hand and against what users report."""

import pytest

from flows.recipes import named
from tasks.errors import RecipeError
from tasks.recipe import Engine
from tasks.system.plan.engine_arguments import engine_facts
from tasks.system.plan.memory import advice, kv_bytes_per_token, kv_room_tokens, plan_memory
from tests.system.plans import kimi, tokens_of

SERVING = ["--tensor-parallel-size=8", "--gpu-memory-utilization=0.93"]


def memory_of(*arguments: str, **changes):
    recipe = kimi(server={"engine": {"arguments": [*SERVING, *arguments]}}, **changes)
    return plan_memory(recipe, recipe.target.snapshot, tokens_of(recipe, 25_000))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tensor-parallel-size=8", "--kv-cache-dtype=fp8", "--decode-context-parallel-size=4"],
        ["--tensor-parallel-size", "8", "--kv-cache-dtype", "fp8", "--decode-context-parallel-size", "4"],
        ["-tp", "8", "--kv_cache_dtype=fp8", "-dcp=4"],
        ["--tensor-parallel-size=2", "--tensor-parallel-size=8", "--kv-cache-dtype=fp8", "-dcp", "4"],
    ],
    ids=["one word", "two words", "short", "the last one wins"],
)
def test_engine_arguments_are_read_in_every_form(arguments):
    facts = engine_facts(Engine(arguments=arguments))
    assert (facts.tensor_parallel, facts.kv_bytes, facts.context_parallel) == (8, 1, 4)


def test_a_flag_without_a_value_takes_none_from_the_next_one():
    assert engine_facts(Engine(arguments=["--enforce-eager", "--max-num-seqs=7"])).is_eager


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--tensor-parallel-size=many", "--tensor-parallel-size must be a number to be planned with, found 'many'"),
        ("--kv-cache-dtype=int3", "--kv-cache-dtype must be one of auto, .* found 'int3'"),
    ],
)
def test_an_argument_that_cannot_be_counted_with_is_named(argument, message):
    with pytest.raises(RecipeError, match=message):
        engine_facts(Engine(arguments=[argument]))


def test_kimis_kv_cache_takes_70_272_bytes_a_token_on_every_card():
    # 61 layers x (512 + 64) values x 2 bytes, whatever the tensor parallelism.
    assert memory_of().bytes_per_token == 70_272


def test_fp8_halves_it():
    assert memory_of("--kv-cache-dtype=fp8").bytes_per_token == 35_136


def test_grouped_heads_are_shared_out_over_the_cards():
    facts = named("smollm2-cpu").target.snapshot
    # 30 layers x keys and values x heads of a card x 64 x 2 bytes: 3 heads on one card, 1 on each of three, never less.
    found = [kv_bytes_per_token(facts, engine_facts(Engine(arguments=[f"-tp={cards}"]))) for cards in (1, 3, 6)]
    assert found == [23_040, 7_680, 7_680]


def test_the_cpu_build_has_the_room_that_it_is_given():
    recipe = named("smollm2-cpu")
    room = kv_room_tokens(recipe.target.snapshot, engine_facts(recipe.server.engine), recipe.hardware)
    assert room == 2 * 1024**3 // 23_040


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ([], 190_000),
        (["--kv-cache-dtype=fp8"], 450_000),
        (["--decode-context-parallel-size=8"], 1_500_000),
        (["--kv-cache-dtype=fp8", "--decode-context-parallel-size=8"], 3_600_000),
    ],
    ids=["bf16", "fp8", "bf16, dcp 8", "fp8, dcp 8"],
)
def test_the_formula_is_within_a_tenth_of_what_users_of_the_box_report(arguments, reported):
    room = memory_of(*arguments).kv
    assert room.reported_tokens == reported
    assert room.formula_tokens == pytest.approx(reported, rel=0.105)


def test_how_far_the_formula_is_from_the_report_is_told():
    # (0.93 x 102.6 GB - 540 GB / 8 - 13.4 GB) / 70,272 B = 206,597 tokens; 190,000 are reported.
    assert memory_of().kv.formula_tokens == 206_597
    assert memory_of().kv.deviation_share == pytest.approx(0.087, abs=0.001)


def test_200_requests_hold_about_500_000_tokens():
    # 782 + 0.6 x 2,986 each.
    assert 200 * memory_of().held_tokens == 200 * 2574


def test_of_200_in_flight_73_run_and_127_queue():
    # 190,000 reported tokens / 2,574.
    memory = memory_of()
    assert (memory.kv.running, memory.queued) == (73, 127)


def test_the_advice_names_what_would_let_more_of_them_run():
    (sentence,) = advice(memory_of())
    assert sentence == (
        "200 in flight: 73 run, 127 queue, for want of KV room. Add --kv-cache-dtype=fp8 (174 run) or "
        "--decode-context-parallel-size=8 (200 run) or --kv-cache-dtype=fp8 --decode-context-parallel-size=8 "
        "(200 run) to server.engine.arguments, or set inference.in_flight=73."
    )


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [(["-dcp", "8"], {}), ([], {"inference": {"in_flight": 73}})],
    ids=["context parallel", "fewer asked"],
)
def test_where_all_run_there_is_no_advice(arguments, changes):
    assert advice(memory_of(*arguments, **changes)) == []


def test_the_engines_own_limit_of_sequences_counts():
    memory = memory_of("-dcp=8", "--max-num-seqs=32")
    assert memory.kv.running == 32
    assert "for want of sequences (--max-num-seqs=32)" in advice(memory)[0]


def test_a_window_that_does_not_fit_is_told():
    sentence = advice(memory_of(target={"window_tokens": 262_144}))[0]
    assert sentence.startswith("the KV cache has room for 190,000 tokens, less than the window of 262,144: vLLM will")


def test_training_memory_is_told_against_the_card():
    memory = memory_of()
    # 1.257G parameters x 18 bytes are 22.6 GB; embeddings, activations and logits come on top.
    assert 25e9 < memory.training_bytes < 45e9
    assert memory.training_fits


def test_a_training_that_is_larger_than_the_card_is_told():
    memory = memory_of(training={"pack_tokens": 131_072})
    assert not memory.training_fits
    assert any(sentence.startswith("training takes about") for sentence in advice(memory))


def test_a_model_of_which_no_heads_are_known_is_not_planned():
    recipe = named("smollm2-cpu", {"target": {"snapshot": {"kv_heads": 0}}})
    assert plan_memory(recipe, recipe.target.snapshot, tokens_of(recipe, 10)) is None
