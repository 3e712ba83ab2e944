"""Which samples a window has."""

import dataclasses
import json

import pytest

from tasks.errors import RecipeError
from tasks.hidden_states.plan import plan_work
from tasks.hidden_states.windows import Window, in_window, slice_numbers
from tasks.system.responses import Response
from tests.hidden_states.samples import make_spec
from tests.hidden_states.test_plan import SHAPE, Recovered

LENGTHS = {f"s{number}": 50 + 7 * number % 40 for number in range(300)}


def make_response(sample_id: str, split: str = "training") -> Response:
    return Response(
        sample_id=sample_id,
        split=split,  # type: ignore[arg-type]
        source="tests",
        prompt_token_ids=[int(sample_id[1:])],
        response_token_ids=[7] * (LENGTHS[sample_id] - 1),
        finish_reason="stop",
    )


RESPONSES = [make_response(f"s{number}", "validation" if number % 20 == 0 else "training") for number in range(300)]


def ids(count: int) -> list[set[str]]:
    return [{r.sample_id for r in in_window(RESPONSES, Window(index, count))} for index in range(count)]


HELD_OUT = {r.sample_id for r in RESPONSES if r.split == "validation"}


def test_every_training_sample_is_in_one_window():
    assert sum(len(window - HELD_OUT) for window in ids(7)) == 300 - len(HELD_OUT)
    assert set.union(*ids(7)) == set(LENGTHS)


def test_the_held_out_samples_are_in_every_window():
    assert all(window >= HELD_OUT for window in ids(7))


def test_one_window_is_all_samples_in_their_order():
    assert in_window(RESPONSES, Window(0, 1)) == RESPONSES


def test_windows_have_about_as_many_tokens_each():
    numbers = slice_numbers(LENGTHS, 7)
    tokens = [sum(LENGTHS[s] for s, n in numbers.items() if n == window) for window in range(7)]
    assert max(tokens) - min(tokens) < 2 * max(LENGTHS.values())


def test_a_window_does_not_have_the_long_ones_alone():
    """Trained on by length, the drafter would meet another kind of answer in each window."""
    numbers = slice_numbers(LENGTHS, 3)
    means = []
    for window in range(3):
        lengths = [LENGTHS[sample_id] for sample_id, number in numbers.items() if number == window]
        means.append(sum(lengths) / len(lengths))
    assert max(means) - min(means) < 0.1 * min(means)


def test_the_windows_do_not_depend_on_the_order_of_the_answers():
    assert slice_numbers(dict(reversed(LENGTHS.items())), 5) == slice_numbers(LENGTHS, 5)


def test_no_window_is_empty_whatever_the_lengths():
    numbers = slice_numbers({"a": 10_000, "b": 1, "c": 1, "d": 1}, 4)
    assert sorted(numbers.values()) == [0, 1, 2, 3]


def test_fewer_samples_than_windows_are_refused():
    with pytest.raises(RecipeError, match="2 training samples cannot be cut into 3 windows. Lower extraction.windows"):
        slice_numbers({"a": 1, "b": 1}, 3)


def test_the_extraction_of_a_window_captures_its_samples_and_no_others(tmp_path):
    sizes = {"num_hidden_layers": 30, "hidden_size": 64, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    spec = dataclasses.replace(make_spec(tmp_path, RESPONSES, tmp_path), window=Window(1, 3))
    work = plan_work(spec, SHAPE, Recovered([], {}))
    assert {sample.sample_id for shard in work.shards for sample in shard.samples} == ids(3)[1]
