"""Makes the `prefect` command at home in this project's folder.

- ``prefect deployment run hero-run`` means ``hero-run/hero-run``, where Prefect wants the flow's name, too.
- Where no API is configured, it talks to the local one that ``make ui`` serves, if that is up.

Prefect calls ``setup_environment`` while it is imported, before its command line reads its arguments, if
``[tool.prefect.plugins]`` in the ``pyproject.toml`` of the current folder says so: in other folders there is none of
this. That plugins may set variables is Prefect's contract; that one rewrites an argument is not, so whatever happens in
here, Prefect goes on without it.
"""

import contextlib
import sys
import tomllib
from pathlib import Path
from typing import Any

from prefect.plugins import register_hook

NAME = "hero-run"
"""Of the project, its flow and its deployment."""
BEFORE_A_NAME = frozenset({"--name", "--watch", "--no-watch", "--prompt", "--no-prompt"})
"""Options that the name may follow; any other is followed by its value, which may be the same word."""


@register_hook
def setup_environment(*, ctx: Any) -> Any:
    """Prefect's hook: complete the name, and say which API it is about."""
    with contextlib.suppress(Exception):
        if _is_prefect_command() and _is_project(Path.cwd()):
            complete_name(sys.argv)
            return _local_api(ctx, sys.argv)
    return None


def complete_name(arguments: list[str]) -> None:
    """Give the deployment that ``deployment run`` names its flow's name, in place, if it is ours and has none."""
    for i in range(len(arguments) - 2):
        if arguments[i : i + 2] == ["deployment", "run"]:
            for j in range(i + 2, len(arguments)):
                if arguments[j] == NAME and not _wants_value(arguments[j - 1]):
                    arguments[j] = f"{NAME}/{NAME}"
                    return


def _wants_value(argument: str) -> bool:
    return argument.startswith("-") and "=" not in argument and argument not in BEFORE_A_NAME


def _is_prefect_command() -> bool:
    """Whether this process is ``prefect`` or ``python -m prefect``, of whose arguments Python hides the first two."""
    if sys.argv[0] == "-m":
        return "prefect" in sys.orig_argv[: -len(sys.argv[1:]) or None]
    return Path(sys.argv[0]).name == "prefect"


def _is_project(folder: Path) -> bool:
    """Whether this is our folder: plugins may be switched on elsewhere, too."""
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["name"] == NAME


def _local_api(ctx: Any, arguments: list[str]) -> Any:
    """The local API for a command that has none; not for ``prefect server``, which becomes one."""
    from prefect.plugins import SetupResult

    from flows import local_api

    if ctx.api_url or "server" in arguments or not local_api.answers(local_api.DEFAULT_UI_PORT):
        return None
    url = local_api.settings(local_api.DEFAULT_UI_PORT)["PREFECT_API_URL"]
    return SetupResult(env={"PREFECT_API_URL": url}, note=f"no API was configured, so {url} is used")
