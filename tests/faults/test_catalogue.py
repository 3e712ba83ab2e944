"""The catalogue and the tests' marks agree."""

import ast
from pathlib import Path

from tests.faults.catalogue import CATALOGUE

TESTS = Path(__file__).parents[1]
# What the tests of the plugin carry are examples within strings; as code, no mark of theirs counts.
FILES = [path for path in sorted(TESTS.rglob("test_*.py")) if path.parent != Path(__file__).parent]


def marks() -> list[tuple[str, ast.Call]]:
    """Every ``pytest.mark.fault(...)`` in the tests, with the file that has it."""
    return [
        (str(path.relative_to(TESTS)), node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"
    ]


def marked_ids() -> set[str]:
    return {node.args[0].value for _, node in marks() if isinstance(node.args[0], ast.Constant)}


def test_every_mark_names_one_fault_of_the_catalogue():
    wrong = [
        f"{path}: {ast.unparse(node)}"
        for path, node in marks()
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Constant) or node.args[0].value not in CATALOGUE
    ]
    assert not wrong


def test_at_least_fifty_faults_have_a_test():
    missing = sorted(CATALOGUE.keys() - marked_ids())
    assert len(CATALOGUE) - len(missing) >= 50, missing


def test_a_slow_fault_is_a_fault():
    """What runs in the catalogue alone must be in the catalogue."""
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = [ast.unparse(decorator) for decorator in node.decorator_list]
                slow = "pytest.mark.slow_fault" in names
                if slow and not any(name.startswith("pytest.mark.fault(") for name in names):
                    wrong.append(f"{path.relative_to(TESTS)}: {node.name}")
    assert not wrong
