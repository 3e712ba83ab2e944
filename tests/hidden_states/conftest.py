"""The store and the capture need torch, which the flow environment does not have."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
