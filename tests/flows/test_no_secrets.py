"""Secrets where everybody could read them: run parameters and command lines."""

import pytest

from flows.cli import main
from flows.no_secrets import refuse_key_arguments, refuse_secrets
from flows.recipes import named
from tasks.errors import RecipeError

PLANTED = "planted-secret-4711"


def refusal(changes: dict) -> str:
    with pytest.raises(RecipeError) as raised:
        refuse_secrets(changes)
    return str(raised.value)


def test_a_key_in_the_environment_of_an_override_is_refused_with_its_place():
    said = refusal({"server": {"engine": {"environment": {"VLLM_API_KEY": PLANTED}}}})
    assert said.startswith("server.engine.environment.VLLM_API_KEY would become a parameter") and PLANTED not in said


def test_other_variables_may_be_overridden():
    refuse_secrets({"server": {"engine": {"environment": {"VLLM_CPU_KVCACHE_SPACE": "2"}}}})


def test_an_address_with_credentials_is_refused():
    said = refusal({"server": {"endpoint": f"http://me:{PLANTED}@127.0.0.1:8000"}})
    assert said.startswith("server.endpoint has credentials") and PLANTED not in said


@pytest.mark.parametrize("engine", ["server", "extraction", "evaluation"])
@pytest.mark.parametrize("argument", [f"--api-key={PLANTED}", f"--api_key={PLANTED}", f"--hf-token={PLANTED}"])
def test_a_key_on_vllms_command_line_is_refused_with_what_to_do(engine, argument):
    recipe = named("smollm2-cpu", {engine: {"engine": {"arguments": [argument]}}})
    with pytest.raises(
        RecipeError, match=r"--(api-key|hf-token) on .* set (VLLM_API_KEY|HF_TOKEN) in the env"
    ) as raised:
        refuse_key_arguments(recipe)
    assert PLANTED not in str(raised.value)


def test_the_command_line_refuses_it_before_anything_starts(tmp_path, capsys):
    setting = f'server.engine.environment={{"VLLM_API_KEY": "{PLANTED}"}}'
    assert main(["run", "smollm2-cpu", "--data-root", str(tmp_path / "data"), "--set", setting]) == 1
    assert "hero-run: server.engine.environment.VLLM_API_KEY would" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
