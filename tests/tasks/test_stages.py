"""Where products belong: what makes something new, and what keeps all that is on disk."""

from pathlib import Path

import pytest

from flows.recipes import named
from tasks.stages import (
    answers_stage,
    drafter_stage,
    evaluation_stage,
    responses_stage,
    states_stage,
    training_stage,
)
from tasks.system.manifest import Stage
from tasks.system.run import Product, Run


def digests(content: str = "", **changes) -> dict[str, str]:
    """The digest of every stage of the demo's recipe with these changes, were each product's content its digest."""
    recipe = named("smollm2-cpu", changes)
    run = Run(recipe=recipe, id="1", name="r", data_root=Path("/data"), engine_python=Path("python"))

    def product(stage: Stage) -> Product:
        return Product(folder=stage.folder, content_sha256=stage.digest + content, facts={"layer_ids": [2, 15, 27]})

    responses, drafter = responses_stage(run), drafter_stage(run)
    states = states_stage(run, product(responses), product(drafter))
    trained = training_stage(run, product(states), product(drafter))
    stages = {"answers": answers_stage(run), "responses": responses, "drafter": drafter, "states": states}
    stages |= {"trained": trained, "evaluation": evaluation_stage(run, product(trained))}
    return {name: stage.digest for name, stage in stages.items()}


def renewed(**changes) -> set[str]:
    """Stages that these changes make anew."""
    before, after = digests(), digests(**changes)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training": {"learning_rate": 1e-3}}, {"trained", "evaluation"}),
        ({"evaluation": {"in_flight": 4}}, {"evaluation"}),
        ({"extraction": {"layout": "bf16"}}, set()),
        ({"drafter": {"draft_vocab_tokens": 2048}}, {"drafter", "trained", "evaluation"}),
        ({"prompts": {"training_samples": 20}}, {"responses", "states", "trained", "evaluation"}),
    ],
    ids=["a training parameter", "an evaluation parameter", "nothing", "the drafter", "more samples"],
)
def test_a_change_makes_anew_what_it_shapes_and_what_follows(changes, expected):
    assert renewed(**changes) == expected


@pytest.mark.fault("resumed-with-other-settings")
@pytest.mark.parametrize(
    "changes",
    [{"inference": {"temperature": 0.7}}, {"inference": {"max_new_tokens": 64}}, {"target": {"window_tokens": 512}}],
    ids=["sampling", "length", "window"],
)
def test_answers_of_other_settings_are_another_pool(changes):
    assert "answers" in renewed(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"inference": {"in_flight": 4, "request_timeout_seconds": 10.0}},
        {"server": {"port": 8123, "restarts": 0, "endpoint": "http://127.0.0.1:1"}},
        {"extraction": {"shard_bytes": 1000, "max_batched_tokens": 512}},
        {"training": {"device": "cuda:3", "checkpoint_every_seconds": 1.0}},
        {"data_root": "/elsewhere", "reserve_share": 0.2},
    ],
    ids=["concurrency", "server", "shards", "device", "place"],
)
def test_how_it_is_done_makes_nothing_anew(changes):
    assert renewed(**changes) == set()


def test_more_samples_grow_out_of_the_same_pool_of_answers():
    assert digests(prompts={"training_samples": 10})["answers"] == digests(prompts={"training_samples": 20})["answers"]


def test_other_content_upstream_is_another_product_downstream():
    one, other = digests(content="a"), digests(content="b")
    assert {name for name in one if one[name] != other[name]} == {"states", "trained", "evaluation"}


def test_the_content_of_the_prompt_file_is_identity_and_its_place_is_not(tmp_path):
    source = Path(named("smollm2-cpu").prompts.source)
    copy, other = tmp_path / "copy.jsonl", tmp_path / "other.jsonl"
    copy.write_bytes(source.read_bytes())
    other.write_bytes(source.read_bytes() + b"\n")
    assert renewed(prompts={"source": str(copy)}) == set()
    assert "responses" in renewed(prompts={"source": str(other)})


def renewed_in(layout: str, **changes) -> set[str]:
    """Stages that these changes make anew where states are stored in this layout."""
    before, after = digests(extraction={"layout": layout}), digests(extraction={"layout": layout}, **changes)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("layout", ["fp8", "fp8+topk"])
def test_another_layout_is_other_states(layout):
    assert renewed(extraction={"layout": layout}) == {"states", "trained", "evaluation"}


def test_how_many_logits_are_kept_is_identity_only_where_some_are():
    def changed_by_top_k(layout: str) -> set[str]:
        one, other = (digests(extraction={"layout": layout, "top_k": k}) for k in (64, 32))
        return {name for name in one if one[name] != other[name]}

    assert changed_by_top_k("fp8") == set()
    assert "states" in changed_by_top_k("fp8+topk")


@pytest.mark.fault("base-vocab-map-kept")
def test_the_draft_vocabulary_is_identity_of_the_states_only_where_logits_are_stored():
    other_size = {"draft_vocab_tokens": 2048}
    assert "states" in renewed_in("fp8+topk", drafter=other_size)
    assert "states" not in renewed_in("fp8", drafter=other_size)


def test_initial_weights_are_not_identity_of_logits_over_a_vocabulary_from_the_answers():
    assert "states" not in renewed_in("fp8+topk", drafter={"seed": 7})


def test_a_base_drafter_is_identity_of_logits_over_its_vocabulary():
    bases = [{"source": {"kind": "hub", "name": name}} for name in ("a/b", "c/d")]
    one, other = (digests(extraction={"layout": "fp8+topk"}, drafter=base) for base in bases)
    assert one["states"] != other["states"]


def test_a_stage_version_is_identity(monkeypatch):
    before = digests()
    monkeypatch.setattr("tasks.stages.TRAINING_VERSION", 99)
    after = digests()
    assert {name for name in before if before[name] != after[name]} == {"trained", "evaluation"}


def test_the_journal_is_discarded_with_the_answers_that_are_refreshed():
    run = Run(recipe=named("smollm2-cpu"), id="1", name="r", data_root=Path("/data"), engine_python=Path("python"))
    assert responses_stage(run).resumes_from == (answers_stage(run).folder,)
