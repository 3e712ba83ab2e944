"""The command line: what it says when it is used wrongly, before anything starts."""

import socket
import subprocess
import sys

import pytest

from flows.cli import main
from flows.settings import parse_changes


def test_settings_become_nested_changes():
    assert parse_changes(["training.epochs=2", "training.device=cpu", 'server.engine.arguments=["--x"]']) == {
        "training": {"epochs": 2, "device": "cpu"},
        "server": {"engine": {"arguments": ["--x"]}},
    }


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "kimi-k25",
        "kimi-k25-b300",
        "smollm2-cpu",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope"], "hero-run: there is no recipe 'nope'. Recipes: kimi-k25, kimi-k25-b300, smollm2-cpu"),
        (["run", "smollm2-cpu", "--set", "training.epocs=2"], "recipe field 'training.epocs' does not exist"),
        (["run", "smollm2-cpu", "--set", "training.epochs"], "--set takes FIELD=VALUE"),
        (["run", "smollm2-cpu", "--set", "training.epochs=0"], "training.epochs must be >= 1, found 0"),
    ],
)
def test_a_wrong_call_is_one_clear_line(capsys, arguments, message):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_a_port_of_something_else_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["run", "smollm2-cpu", "--data-root", str(tmp_path), "--ui-port", port]) == 1
    assert f"Prefect's UI needs port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["recipes", "--help"], ["ui", "--help"]])
def test_every_command_has_help(arguments):
    call = subprocess.run([sys.executable, "-m", "flows.cli", *arguments], capture_output=True, text=True, check=True)
    assert call.stdout.startswith("usage: ")
