"""The automations at work on a real server: who is told of what, and what becomes of scheduled runs nobody took."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Running, State

from flows import automations
from flows.automations import put_automations
from flows.deploying import deploy
from flows.deployment_files import AUTOMATIONS_PATH, DEPLOYMENTS_PATH
from flows.run_deadline import ended_at_deadline
from tasks.errors import BadInput, DeadlineReached
from tasks.progress_events import PROGRESS_EVENT
from tests.flows.live import PrefectServer, wait_until

SHORT_SECONDS = 12
"""Prefect looks for what did not happen every 5 s, and after 10 s at the earliest."""


class Receiver(BaseHTTPRequestHandler):
    """Remembers what it is sent."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.told.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def receiver() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.told = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PrefectServer]:
    """Schedules and calls runs late as soon as may be."""
    server = PrefectServer(tmp_path_factory.mktemp("server"), "tests.flows.hasty_prefect")
    loops = {"SCHEDULER_LOOP_SECONDS": "1", "LATE_RUNS_LOOP_SECONDS": "1", "LATE_RUNS_AFTER_SECONDS": "1"}
    server.environment |= {f"PREFECT_SERVER_SERVICES_{name}": value for name, value in loops.items()}
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def client(server) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.url}), get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def hurried(tmp_path_factory) -> Iterator[None]:
    """The automations, those that wait waiting for seconds."""
    content = yaml.safe_load(AUTOMATIONS_PATH.read_text())
    for entry in content["automations"]:
        if entry["name"] in ("hero-run-stalled", "hero-run-missed"):
            entry["trigger"]["within"] = SHORT_SECONDS
    path = tmp_path_factory.mktemp("deployments") / "automations.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automations, "AUTOMATIONS_PATH", path)
        yield


@pytest.fixture(scope="module")
def nobody_to_tell(server, client, hurried) -> list[str]:
    """What `deploy` says of a server on which there is no notification block."""
    return list(deploy(client, DEPLOYMENTS_PATH, None))


@pytest.fixture(scope="module")
def wired(nobody_to_tell, client, receiver) -> list[str]:
    """What `deploy` says once there is a webhook named hero-run."""
    url = f"http://127.0.0.1:{receiver.server_port}/told"
    Webhook(url=url, allow_private_urls=True).save("hero-run")
    return put_automations(client, None)


def test_without_a_block_nobody_is_told_and_how_to_be_is(nobody_to_tell, server):
    names = "hero-run-finished, hero-run-failed, hero-run-deadline, hero-run-stalled"
    assert nobody_to_tell[-2] == (
        f"left out  automations {names}: nobody to tell. Save a notification block or a webhook named 'hero-run' in "
        "the UI under Blocks and deploy again, or name one: hero-run deploy --notify TYPE/NAME"
    )


def test_a_block_named_hero_run_is_found_by_itself(wired):
    assert wired[:4] == [
        f"created   automation hero-run-{name}, tells webhook/hero-run"
        for name in ("finished", "failed", "deadline", "stalled")
    ]


@pytest.fixture
def new_run(wired, server) -> Callable[..., str]:
    """Makes a flow run of the hero run that is running, and returns its id; nothing works on it."""

    def make(name: str, **fields: object) -> str:
        flow_id = server.post("/flows/", name="hero-run")["id"]
        run = server.post("/flow_runs/", name=name, flow_id=flow_id, state={"type": "PENDING"}, **fields)
        set_state(server, run["id"], Running())
        return run["id"]

    return make


def set_state(server: PrefectServer, run_id: str, state: State) -> None:
    fields = {"type": state.type.value, "name": state.name, "message": state.message}
    server.post(f"/flow_runs/{run_id}/set_state", state=fields, force=True)


def told_of(receiver: ThreadingHTTPServer, name: str) -> list[dict]:
    return [told for told in receiver.told if name in told["text"]]


AT_DEADLINE = "inference 61 %, goes on at the next start"


@pytest.mark.parametrize(
    ("name", "state", "subject"),
    [
        ("finished-1", Completed(message="All states completed."), "hero run finished: finished-1"),
        ("failed-1", Failed(message='the volume "/data" is full'), "hero run failed: failed-1"),
        ("crashed-1", Crashed(message="its process was killed"), "hero run crashed: crashed-1"),
        ("deadline-1", ended_at_deadline(DeadlineReached(AT_DEADLINE)), "hero run at its deadline: deadline-1"),
    ],
)
def test_the_end_of_a_run_is_told_with_its_message_and_where_to_look(new_run, server, receiver, name, state, subject):
    run_id = new_run(name)
    set_state(server, run_id, state)
    wait_until(lambda: told_of(receiver, name), f"a call about {name}")
    (told,) = told_of(receiver, name)
    address = f"{server.url.removesuffix('/api')}/runs/flow-run/{run_id}"
    assert (told["subject"], told["body"]) == (subject, f"{state.message}\n{address}")
    assert told["text"] == f"{subject}\n{told['body']}"


def test_a_run_that_gets_nowhere_is_told_and_one_that_gets_on_is_not(new_run, server, receiver):
    stuck, busy = new_run("stuck-1"), new_run("busy-1")
    flow = {"prefect.resource.id": "prefect.flow.any", "prefect.resource.role": "flow"}
    flow["prefect.resource.name"] = "hero-run"

    def get_on() -> bool:
        emit_event(PROGRESS_EVENT, resource={"prefect.resource.id": f"prefect.flow-run.{busy}"}, related=[flow])
        time.sleep(1)
        return bool(told_of(receiver, "stuck-1"))

    wait_until(get_on, "a call about the run that gets nowhere")
    (told,) = told_of(receiver, "stuck-1")
    assert told["subject"] == "hero run got nowhere for 45 minutes: stuck-1"
    assert told["body"] == f"It is still Running.\n{server.url.removesuffix('/api')}/runs/flow-run/{stuck}"
    assert told_of(receiver, "busy-1") == []


def test_a_run_of_another_flow_is_not_told(new_run, server, receiver):
    other = server.post("/flows/", name="another")["id"]
    run = server.post("/flow_runs/", name="another-1", flow_id=other, state={"type": "RUNNING"})
    set_state(server, run["id"], Completed())
    set_state(server, new_run("after-1"), Completed())
    wait_until(lambda: told_of(receiver, "after-1"), "a call about the run after it")
    assert told_of(receiver, "another-1") == []


def test_a_block_that_is_named_gets_them_from_then_on(wired, client, server, receiver):
    url = f"http://127.0.0.1:{receiver.server_port}/other"
    form = {"name": "ops", "url": url, "method": "POST", "json_data": {"text": "{{subject}} / {{body}}"}}
    CustomWebhookNotificationBlock(**form).save("ops")
    try:
        line = put_automations(client, "custom-webhook/ops")[0]
        assert line == "updated   automation hero-run-finished, tells custom-webhook/ops"
        assert put_automations(client, None)[0] == "kept      automation hero-run-finished, tells custom-webhook/ops"
        flow_id = server.post("/flows/", name="hero-run")["id"]
        run = server.post("/flow_runs/", name="named-1", flow_id=flow_id, state={"type": "RUNNING"})
        set_state(server, run["id"], Completed(message="done"))
        wait_until(lambda: told_of(receiver, "named-1"), "a notification about named-1")
        assert told_of(receiver, "named-1")[0]["text"].startswith("hero run finished: named-1 / done\n")
    finally:
        put_automations(client, "webhook/hero-run")


def test_a_block_that_there_is_none_of_is_refused_with_those_that_there_are(wired, client):
    with pytest.raises(
        BadInput, match=r"no notification block or webhook 'slack-webhook/x' .*Found: .*webhook/hero-run"
    ):
        put_automations(client, "slack-webhook/x")


@pytest.mark.fault("missed-runs")
def test_scheduled_runs_that_nobody_took_are_given_up_and_one_that_was_asked_for_waits(wired, server, happened):
    path = "/deployments/name/hero-run/hero-run"
    deployment = server.get(path)
    asked = server.post(f"/deployments/{deployment['id']}/create_flow_run", name="asked-for")["id"]
    (nights,) = [schedule for schedule in deployment["schedules"] if schedule["slug"] == "nights"]
    often = {"active": True, "schedule": {"interval": 15}}
    server.send("PATCH", f"/deployments/{deployment['id']}/schedules/{nights['id']}", often)
    cancelled = {"state": {"type": {"any_": ["CANCELLED"]}}, "tags": {"all_": ["auto-scheduled"]}}
    try:
        missed = wait_until(lambda: server.post("/flow_runs/filter", flow_runs=cancelled)[1:], "two missed runs", 180)
    finally:
        server.send("PATCH", f"/deployments/{deployment['id']}/schedules/{nights['id']}", {"active": False})
    assert missed[0]["state"]["message"].startswith("it could not start within two hours of its time")
    assert server.get(f"/flow_runs/{asked}")["state_name"] == "Late"
    happened(f"{len(missed) + 1} scheduled runs that nobody took were cancelled; one that was asked for is Late")
