"""The store and the capture need torch, which the flow environment does not have."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session")
def responses(target_folder):
    """28 samples of real text."""
    from tests.hidden_states.samples import make_responses

    return make_responses(target_folder)


@pytest.fixture(scope="session")
def engine(target_folder, responses, tmp_path_factory):
    """One vLLM for all tests."""
    from tasks.hidden_states.engine import check_engine, prepare_environment, running_engine
    from tests.hidden_states.samples import STEP_TOKENS, make_spec

    spec = make_spec(target_folder, responses, tmp_path_factory.mktemp("engine"), max_batched_tokens=STEP_TOKENS)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ENABLE_V1_MULTIPROCESSING"):
            patch.setenv(name, "0")  # put back afterwards: the extraction sets them
        prepare_environment(spec)
        check_engine()
        with running_engine(spec) as llm:
            yield llm
