"""Imports point one way: deployments -> flows -> tasks/*.py -> inner packages and blocks -> recipe, errors, ..."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
INNER = [p for package in ("eagle3", "hidden_states", "system") for p in (PROJECT / "tasks" / package).rglob("*.py")]
LEAVES = [PROJECT / "tasks" / name for name in ("recipe.py", "errors.py", "redaction.py")]


def imported_modules(path: Path) -> set[str]:
    """Every module that a file names in an import, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


@pytest.mark.parametrize("path", INNER, ids=lambda p: str(p.relative_to(PROJECT)))
def test_an_inner_module_imports_no_prefect_and_nothing_above_it(path):
    allowed = ("tasks.eagle3", "tasks.hidden_states", "tasks.system", "tasks.recipe", "tasks.errors", "tasks.redaction")
    ours = {m for m in imported_modules(path) if m.split(".")[0] in ("tasks", "flows", "blocks", "deployments")}
    ours -= {"tasks"}  # the package itself, in `from tasks import recipe`
    assert not {m for m in ours if not m.startswith(allowed)}
    assert not {m for m in imported_modules(path) if m.split(".")[0] == "prefect"}


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: p.name)
def test_a_leaf_needs_only_the_standard_library(path):
    roots = {module.split(".")[0] for module in imported_modules(path)} - {"tasks"}
    assert roots <= set(sys.stdlib_module_names)


def test_the_flow_imports_without_torch():
    probe = "import sys, flows.hero_run; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_the_flow_fits_on_one_screen():
    assert len((PROJECT / "flows" / "hero_run.py").read_text().splitlines()) <= 60
