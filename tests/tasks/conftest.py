"""These tests need Prefect, which the engine environment does not have."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("prefect") else ["test_*.py"]
