"""The automations in ``deployments/automations.yaml``, created or brought up to date by name."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import BlockDocument
from prefect.events.actions import CallWebhook, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore
from pydantic import ValidationError

from blocks import DOCUMENT_NAME
from flows.deployment_files import AUTOMATIONS_PATH, load
from tasks.errors import BadInput

RECEIVER = "{{ notify }}"
"""In the file, in place of the block that gets a notification."""
NOTIFY, WEBHOOK = "notify", "webhook"
"""What a notification block can do, and the type of block that is called instead."""
PAGE = 100
HOW_TO_BE_TOLD = (
    f"Save a notification block or a webhook named {DOCUMENT_NAME!r} in the UI under Blocks and deploy again, or name "
    "one: hero-run deploy --notify TYPE/NAME"
)

Entry = dict[str, Any]


@dataclass(frozen=True)
class Receiver:
    """The block that gets notifications."""

    document_id: UUID
    name: str
    """As in ``--notify``: type and name of the block."""
    is_webhook: bool


def read_automations() -> list[Entry]:
    """The file's automations.

    Raises:
        BadInput: The file cannot be read, Prefect would ignore a key, or a value does not fit.
    """
    entries = load(AUTOMATIONS_PATH)["automations"]
    for entry in entries:
        automation(entry, Receiver(UUID(int=0), "", is_webhook=False))
    return entries


def put_automations(client: SyncPrefectClient, asked: str | None) -> list[str]:
    """Create what is missing, and bring what is there up to date; what is switched off in the UI stays so.

    Args:
        client: Of the API.
        asked: The block that notifications go to, as type/name; None: the one that they go to already, else the
            one that is named ``hero-run``, else none.

    Returns:
        A line for each automation.

    Raises:
        BadInput: There is no such block, or several are named ``hero-run``.
    """
    entries, lines, without = read_automations(), [], []
    existing = {entry["name"]: client.read_automations_by_name(entry["name"]) for entry in entries}
    receiver = find_receiver(client, asked, [found for same in existing.values() for found in same])
    for entry in entries:
        if is_notification(entry) and receiver is None:
            without.append(entry["name"])
        else:
            lines.append(_put(client, entry, receiver, existing[entry["name"]]))
    if without:
        lines.append(f"left out  automations {', '.join(without)}: nobody to tell. {HOW_TO_BE_TOLD}")
    return lines


def _put(client: SyncPrefectClient, entry: Entry, receiver: Receiver | None, existing: list[Automation]) -> str:
    wanted, told = automation(entry, receiver), ""
    if is_notification(entry) and receiver is not None:
        told = f", tells {receiver.name}"
    if not existing:
        client.create_automation(wanted)
        return f"created   automation {wanted.name}{told}"
    found = existing[0]
    state = "" if found.enabled else ", switched off as it was"
    if len(existing) > 1:
        state += f"; {len(existing) - 1} more of this name left alone: delete them in the UI"
    if (found.description, found.trigger, found.actions) == (wanted.description, wanted.trigger, wanted.actions):
        return f"kept      automation {wanted.name}{told}{state}"
    client.update_automation(found.id, wanted.model_copy(update={"enabled": found.enabled}))
    return f"updated   automation {wanted.name}{told}{state}"


def is_notification(entry: Entry) -> bool:
    """Whether an automation of the file tells somebody."""
    return any(action.get("block_document_id") == RECEIVER for action in entry["actions"])


def automation(entry: Entry, receiver: Receiver | None) -> AutomationCore:
    """An automation of the file as Prefect takes it.

    Args:
        entry: From the file.
        receiver: For notifications.

    Raises:
        BadInput: Prefect would ignore a key, or a value does not fit.
    """
    where, filled = f"{AUTOMATIONS_PATH}: automation {entry.get('name')!r}", entry
    if receiver is not None:
        filled = {**entry, "actions": [_addressed(action, receiver) for action in entry["actions"]]}
    try:
        made = AutomationCore.model_validate(filled)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    if ignored := _ignored(filled, made.model_dump(mode="json")):
        raise BadInput(f"{where} has the keys {', '.join(ignored)}, which Prefect would ignore.")
    if receiver is not None and receiver.is_webhook:
        made.actions = [_call(action) if isinstance(action, SendNotification) else action for action in made.actions]
    return made


def _addressed(action: dict[str, Any], receiver: Receiver) -> dict[str, Any]:
    to_receiver = action.get("block_document_id") == RECEIVER
    return {**action, "block_document_id": str(receiver.document_id)} if to_receiver else action


def _call(action: SendNotification) -> CallWebhook:
    """The same words for a webhook: JSON with the key that Slack and its kind read, and with both parts."""
    parts = {"text": f"{action.subject}\n{action.body}", "subject": action.subject, "body": action.body}
    texts = (f'"{name}": {{% filter tojson %}}{text}{{% endfilter %}}' for name, text in parts.items())
    return CallWebhook(block_document_id=action.block_document_id, payload=f"{{{', '.join(texts)}}}")


def _ignored(given: Any, kept: Any, path: str = "") -> list[str]:
    """Dotted names of the keys that are in one and not in the other."""
    if isinstance(given, dict) and isinstance(kept, dict):
        unknown = [f"{path}{key}" for key in given if key not in kept]
        return unknown + [
            name for key in given if key in kept for name in _ignored(given[key], kept[key], f"{path}{key}.")
        ]
    if isinstance(given, list) and isinstance(kept, list):
        return [
            name for i, pair in enumerate(zip(given, kept, strict=False)) for name in _ignored(*pair, f"{path}{i}.")
        ]
    return []


def find_receiver(client: SyncPrefectClient, asked: str | None, existing: list[Automation]) -> Receiver | None:
    """The block that notifications go to; arguments and errors as in ``put_automations``."""
    blocks = [document for document in _documents(client) if _can_tell(document)]
    if asked is not None:
        chosen = [document for document in blocks if _name(document) == asked]
        if not chosen:
            known = ", ".join(sorted(map(_name, blocks))) or "none"
            raise BadInput(f"there is no notification block or webhook {asked!r} (TYPE/NAME). Found: {known}.")
    else:
        actions = [action for found in existing for action in found.actions]
        used = {action.block_document_id for action in actions if isinstance(action, SendNotification | CallWebhook)}
        chosen = [document for document in blocks if document.id in used]
        chosen = chosen or [document for document in blocks if document.name == DOCUMENT_NAME]
        if len(chosen) > 1:
            names = ", ".join(sorted(map(_name, chosen)))
            raise BadInput(f"notifications may go to any of {names}. Name one: hero-run deploy --notify TYPE/NAME.")
    if not chosen:
        return None
    return Receiver(chosen[0].id, _name(chosen[0]), _slug(chosen[0]) == WEBHOOK)


def _documents(client: SyncPrefectClient) -> list[BlockDocument]:
    found: list[BlockDocument] = []
    while page := client.read_block_documents(offset=len(found), limit=PAGE, include_secrets=False):
        found += page
    return found


def _can_tell(document: BlockDocument) -> bool:
    capabilities = document.block_schema.capabilities if document.block_schema else []
    return NOTIFY in capabilities or _slug(document) == WEBHOOK


def _slug(document: BlockDocument) -> str:
    return document.block_type.slug if document.block_type else ""


def _name(document: BlockDocument) -> str:
    return f"{_slug(document)}/{document.name}"
