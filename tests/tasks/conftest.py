"""These tests need Prefect, which the engine environment does not have."""

import importlib.util

import pytest

from tasks.system.processes import STOP

collect_ignore_glob = [] if importlib.util.find_spec("prefect") else ["test_*.py"]


@pytest.fixture(autouse=True)
def no_run_is_stopping() -> None:
    """A run that ended in an earlier test has told all work to stop."""
    STOP.clear()
