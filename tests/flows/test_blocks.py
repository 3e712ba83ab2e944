"""What the blocks change in a recipe, and what they must not."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from blocks import DataVolume, HubAccess, VllmEngine
from flows.recipes import RECIPES, named
from tasks import redaction
from tasks.recipe import Recipe, changed
from tasks.redaction import redacted
from tests.conftest import PROJECT
from tests.system.small_data_root import fill, small_run

PLANTED = "planted-secret-4711"
ENGINES = ("server", "extraction", "evaluation")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(redaction, "_kept", set())


@pytest.fixture
def recipe() -> Recipe:
    return named("smollm2-cpu")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("block", [DataVolume(), VllmEngine()])
def test_an_empty_block_changes_nothing(name, block):
    assert block.applied_to(named(name)) == named(name)


def test_the_volume_says_where_and_what_stays_free(recipe):
    expected = changed(recipe, {"data_root": "/big", "reserve_share": 0.2})
    assert DataVolume(root="/big", reserve_share=0.2).applied_to(recipe) == expected


@pytest.mark.parametrize(
    "limit", ["load_timeout_seconds", "stall_timeout_seconds", "token_stall_seconds", "stop_grace_seconds", "restarts"]
)
def test_a_limit_does_what_the_same_override_does(recipe, limit):
    assert VllmEngine(**{limit: 7}).applied_to(recipe) == changed(recipe, {"server": {limit: 7}})


def test_variables_are_added_to_the_recipes_for_vllm_and_the_training(recipe):
    found = VllmEngine(environment={"NCCL_P2P_DISABLE": 1, "VLLM_CPU_KVCACHE_SPACE": "4"}).applied_to(recipe)
    added = {"NCCL_P2P_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    engines = {e: {"engine": {"environment": {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", **added}}} for e in ENGINES}
    assert found == changed(recipe, {**engines, "training": {"environment": added}})


def test_arguments_are_added_wherever_vllm_is_started_after_the_recipes(recipe):
    found = VllmEngine(arguments=["--max-num-seqs=8"]).applied_to(recipe)
    expected = {"server": ["--enforce-eager"], "extraction": [], "evaluation": ["--enforce-eager"]}
    arguments = {e: {"engine": {"arguments": [*expected[e], "--max-num-seqs=8"]}} for e in ENGINES}
    assert found == changed(recipe, arguments)


def test_what_only_the_server_knows_does_not_reach_the_extraction(recipe):
    found = VllmEngine(server_arguments=["--reasoning-parser=x"]).applied_to(recipe)
    assert [found.server.engine.arguments[-1], found.evaluation.engine.arguments[-1]] == ["--reasoning-parser=x"] * 2
    assert found.extraction == recipe.extraction


def test_servers_that_are_up_do_what_the_same_override_does(recipe):
    found = VllmEngine(endpoints=["http://a:8000", "http://b:8000"], endpoint_model="kimi").applied_to(recipe)
    expected = {"server": {"endpoint": "http://a:8000,http://b:8000", "endpoint_model": "kimi"}}
    assert found == changed(recipe, expected)


def test_no_block_changes_the_place_of_any_product(tmp_path):
    engine = VllmEngine(
        endpoints=["http://a:8000"],
        arguments=["--max-num-seqs=8"],
        server_arguments=["--reasoning-parser=x"],
        environment={"VLLM_API_KEY": PLANTED},
        load_timeout_seconds=1,
        restarts=0,
    )
    run = small_run(tmp_path)
    on_site = replace(run, recipe=engine.applied_to(DataVolume(root="/big", reserve_share=0.2).applied_to(run.recipe)))
    assert on_site.recipe != run.recipe
    digests, on_this_site = ({kind: stage.digest for kind, stage in fill(each).items()} for each in (run, on_site))
    assert digests == on_this_site and len(digests) == 7


def test_a_value_of_the_environment_is_blotted_out_from_then_on(recipe):
    VllmEngine(environment={"SOMETHING": PLANTED}).applied_to(recipe)
    assert redacted(f"x{PLANTED}") == "x***"


@pytest.mark.parametrize("block", [VllmEngine(environment={"VLLM_API_KEY": PLANTED}), HubAccess(token=PLANTED)])
def test_a_block_does_not_show_its_secret(block):
    assert PLANTED not in f"{block!r} {block} {block.model_dump_json()}"


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (VllmEngine, {"environment": PLANTED}),
        (VllmEngine, {"environment": {"VLLM_API_KEY": PLANTED}, "restarts": "many"}),
        (HubAccess, {"token": PLANTED, "tries": 0}),
    ],
)
def test_a_wrong_value_is_refused_without_telling_what_was_typed(kind, document):
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(document)
    assert PLANTED not in str(raised.value)


@pytest.mark.parametrize("kind", [DataVolume, HubAccess, VllmEngine])
def test_a_field_that_was_emptied_in_the_ui_has_its_default(kind):
    assert kind.model_validate(dict.fromkeys(kind.model_fields)) == kind()


@pytest.mark.parametrize("kind", [DataVolume, HubAccess, VllmEngine])
def test_every_field_is_optional_and_described(kind):
    fields = kind.model_fields.values()
    assert all(not field.is_required() and field.description for field in fields)


def test_the_interpreter_is_found_from_the_projects_folder():
    assert VllmEngine().interpreter() == PROJECT / ".venv-engine" / "bin" / "python"
    assert str(VllmEngine(python="/opt/vllm/bin/python").interpreter()) == "/opt/vllm/bin/python"
