"""Recipes as data: identity, changes, JSON."""

import dataclasses

import pytest

from flows.recipes import RECIPES, Overrides, RecipeName, named
from tasks.errors import RecipeError
from tasks.recipe import Recipe, changed, from_json, identity_of, to_json


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    assert from_json(Recipe, to_json(named(name))) == named(name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_as_it_is_listed(name):
    assert named(name).name == name


def test_the_form_offers_every_recipe():
    assert RecipeName.__args__ == tuple(RECIPES)


def test_a_runtime_field_is_not_identity():
    recipe = named("smollm2-cpu")
    assert identity_of(changed(recipe, {"inference": {"in_flight": 7}})) == identity_of(recipe)


def test_an_identity_field_is_identity():
    recipe = named("smollm2-cpu")
    assert identity_of(changed(recipe, {"inference": {"max_new_tokens": 7}})) != identity_of(recipe)


def test_every_field_of_every_stage_says_what_it_is():
    def fields(kind):
        for field in dataclasses.fields(kind):
            yield field
            if dataclasses.is_dataclass(field.type):
                yield from fields(field.type)

    assert {field.metadata["role"] for field in fields(Recipe) if field.metadata["description"]} == {
        "identity",
        "runtime",
    }


def test_a_nested_object_replaces_null():
    recipe = named("smollm2-cpu", {"drafter": {"source": {"kind": "hub", "name": "a/b"}}})
    assert recipe.drafter.source is not None and recipe.drafter.source.name == "a/b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"epocs": 2}}, r"'training.epocs' does not exist. Fields here: .*epochs"),
        ({"trainin": {}}, r"'trainin' does not exist"),
        ({"training": {"epochs": 0}}, r"training.epochs must be >= 1, found 0"),
        ({"training": {"epochs": "two"}}, r"training.epochs must be int, found 'two'"),
        ({"training": {"epochs": True}}, r"training.epochs must be int, found True"),
        ({"training": {"optimizer": "sgd"}}, r"training.optimizer must be one of 'adamw', 'muon', found 'sgd'"),
        ({"training": 3}, r"training must be an object with the fields of Training, found 3"),
        ({"server": {"engine": {"arguments": "-x"}}}, r"server.engine.arguments must be list\[str\], found '-x'"),
        ({"drafter": {"source": {"kind": "hub"}}}, r"drafter.source lacks the field 'name'"),
    ],
)
def test_a_wrong_change_is_named(changes, message):
    with pytest.raises(RecipeError, match=message):
        named("smollm2-cpu", changes)


def test_an_unknown_recipe_is_answered_with_the_list():
    with pytest.raises(RecipeError, match=r"no recipe 'nope'. Recipes: kimi-k25, kimi-k25-b300, smollm2-cpu"):
        named("nope")


def test_the_form_rejects_an_unknown_nested_field():
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Overrides(training={"epocs": 2})


def test_the_form_has_the_fields_own_limits():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Overrides(training={"epochs": 0})


def test_the_form_keeps_only_what_was_filled_in():
    assert Overrides(training={"epochs": 3}).model_dump(exclude_none=True) == {"training": {"epochs": 3}}
