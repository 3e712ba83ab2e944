"""Blocks at a real server: there without a command, and loaded whatever version of the project stored them."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.types import SecretDict
from pydantic import Field, SecretStr

from blocks import DOCUMENT_NAME, DataVolume, HubAccess, VllmEngine, saved_or_default
from flows.recipes import Overrides, named
from flows.site import _recipe_here
from tasks.errors import BadInput
from tests.flows.live import PrefectServer, wait_until

# The classes of other versions take the place of this one's for as long as they are looked at.
pytestmark = pytest.mark.filterwarnings("ignore:Type .* matches existing registered type")

PLANTED = "planted-secret-4711"
SLUGS = ["hero-run-data-volume", "hero-run-hub-access", "hero-run-vllm-engine"]


@pytest.fixture
def server(prefect_server: PrefectServer) -> Iterator[PrefectServer]:
    """A server that has no document of ours."""
    with temporary_settings({PREFECT_API_URL: prefect_server.url}):
        yield prefect_server
        for kind in (DataVolume, HubAccess, VllmEngine):
            if saved(prefect_server, kind):
                kind.delete(DOCUMENT_NAME)


def saved(server: PrefectServer, kind: type[Block]) -> dict[str, Any] | None:
    """The document as the UI gets it."""
    found = server.post("/block_documents/filter", include_secrets=False)
    slug = kind.get_block_type_slug()
    ours = [document for document in found if document["block_type"]["slug"] == slug]
    return ours[0] if ours else None


def test_the_start_of_a_server_registers_them(server):
    def registered() -> bool:
        return {kind["slug"] for kind in server.post("/block_types/filter")} >= set(SLUGS)

    wait_until(registered, "the block types of this project", 30)


def test_what_the_ui_gets_of_a_saved_block_has_no_secret(server):
    VllmEngine(environment={"VLLM_API_KEY": PLANTED}, restarts=1).save(DOCUMENT_NAME)
    assert saved(server, VllmEngine)["data"]["environment"] == {"VLLM_API_KEY": "********"}
    assert saved_or_default(VllmEngine).environment.get_secret_value() == {"VLLM_API_KEY": PLANTED}


def older_engine() -> type[Block]:
    """The block as an earlier version of this project had it."""

    class Engine(Block):
        _block_type_name = "Hero run vLLM engine"
        _block_type_slug = "hero-run-vllm-engine"

        python: str = Field(default=".venv-engine/bin/python")

    return Engine


def newer_hub() -> type[Block]:
    """The block as a later version may have it: with a field that this one does not know."""

    class Hub(Block):
        _block_type_name = "Hero run hub access"
        _block_type_slug = "hero-run-hub-access"

        token: SecretStr | None = None
        tries: int = 6
        mirrors: list[str] = Field(default_factory=list)
        headers: SecretDict = Field(default_factory=lambda: SecretDict({}))

    return Hub


def test_a_document_of_an_older_version_is_loaded_with_the_new_fields_empty(server):
    older_engine()(python="/opt/vllm/bin/python").save(DOCUMENT_NAME)
    found, recipe = saved_or_default(VllmEngine), named("smollm2-cpu")
    assert str(found.interpreter()) == "/opt/vllm/bin/python" and found.applied_to(recipe) == recipe


def test_a_document_of_a_newer_version_is_loaded_without_what_is_not_known(server):
    newer_hub()(token=PLANTED, tries=3, mirrors=["a"]).save(DOCUMENT_NAME)
    found = saved_or_default(HubAccess)
    assert (found.token.get_secret_value(), found.tries, found.files_at_once) == (PLANTED, 3, 8)


def test_a_document_of_an_older_version_may_be_saved_again(server):
    older_engine()(python="/opt/vllm/bin/python").save(DOCUMENT_NAME)
    VllmEngine(python="/opt/vllm/bin/python", restarts=1).save(DOCUMENT_NAME, overwrite=True)
    assert saved_or_default(VllmEngine).restarts == 1


def test_a_stored_value_that_does_not_fit_is_named_and_not_told(server):
    VllmEngine(environment={"VLLM_API_KEY": PLANTED}).save(DOCUMENT_NAME)
    document = saved(server, VllmEngine)
    set_in_the_ui(server, document["id"], {"restarts": -1, "environment": {"VLLM_API_KEY": "********"}})
    with pytest.raises(
        BadInput, match=r"block 'Hero run vLLM engine' named 'hero-run' .* restarts: Input should be g"
    ) as raised:
        saved_or_default(VllmEngine)
    assert PLANTED not in str(raised.value)


def set_in_the_ui(server: PrefectServer, document_id: str, data: dict[str, Any]) -> None:
    """What saving the form does: it sends masked secrets back, and the server keeps those that it has."""
    body = json.dumps({"data": data, "merge_existing_data": True}).encode()
    url = f"{server.url}/block_documents/{document_id}"
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PATCH"), timeout=10):
        pass


def test_a_secret_survives_an_edit_in_the_ui(server):
    VllmEngine(environment={"VLLM_API_KEY": PLANTED}).save(DOCUMENT_NAME)
    document = saved(server, VllmEngine)
    set_in_the_ui(server, document["id"], {**document["data"], "restarts": 1})
    found = saved_or_default(VllmEngine)
    assert (found.restarts, found.environment.get_secret_value()) == (1, {"VLLM_API_KEY": PLANTED})


def test_the_saved_blocks_lie_between_the_recipe_and_the_run(server):
    DataVolume(root="/of-the-site", reserve_share=0.2).save(DOCUMENT_NAME)
    VllmEngine(restarts=1, load_timeout_seconds=50).save(DOCUMENT_NAME)
    overrides = Overrides(data_root="/of-the-run", server={"restarts": 2})
    recipe = _recipe_here("smollm2-cpu", overrides, saved_or_default(VllmEngine))
    assert (recipe.data_root, recipe.reserve_share) == ("/of-the-run", 0.2)
    assert (recipe.server.restarts, recipe.server.load_timeout_seconds, recipe.server.port) == (2, 50, 0)
