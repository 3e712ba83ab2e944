"""The plugin and the summary on small tests of their own."""

import pytest

from tests.conftest import PROJECT
from tests.faults.summary import report


@pytest.fixture
def showing(pytester):
    """Runs a small test file with a record; gives the run and the summary's lines."""

    def run(source: str, *arguments: str):
        pytester.makepyfile(f"import os, pytest\n{source}")
        record = pytester.path / "small.jsonl"
        result = pytester.runpytest("-p", "tests.faults.plugin", f"--fault-record={record}", *arguments)
        lines, passed = report([record])
        return result, lines, passed

    return run


PASSING = """
@pytest.mark.fault("port-taken")
def test_a_taken_port_is_named(): pass
"""
FAILING = """
@pytest.mark.fault("port-taken")
def test_the_port_is_named(): assert "no port" == "port"
"""


def fault_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("fault: ")]


def test_a_passing_test_says_its_name_as_a_sentence(showing):
    _, lines, passed = showing(PASSING)
    assert (fault_lines(lines), passed) == (["fault: port-taken pass a taken port is named"], True)


def test_a_failing_test_says_what_it_found(showing):
    _, lines, passed = showing(FAILING)
    (line,) = fault_lines(lines)
    assert line.startswith("fault: port-taken fail the port is named: AssertionError: assert 'no port' == 'port'")
    assert not passed


def test_a_fault_fails_when_one_of_its_tests_does(showing):
    _, lines, passed = showing(PASSING + FAILING)
    (line,) = fault_lines(lines)
    assert "port-taken fail" in line and not passed


def test_two_passing_tests_are_one_line(showing):
    second = PASSING.replace("a_taken_port_is_named", "nothing_is_started")
    _, lines, _ = showing(PASSING + second)
    assert fault_lines(lines) == ["fault: port-taken pass a taken port is named; nothing is started"]


def test_a_test_can_say_better_what_happened(showing):
    source = """
@pytest.mark.fault("resume-is-exact")
def test_resume(happened): happened("killed in step 7, same sha256 1a2b")
"""
    _, lines, _ = showing(source)
    assert fault_lines(lines) == ["fault: resume-is-exact pass killed in step 7, same sha256 1a2b"]


def test_what_tests_told_comes_before_names_when_there_are_many(showing):
    named = "".join(PASSING.replace("a_taken_port_is_named", f"name_{i}") for i in range(4))
    told = PASSING.replace("a_taken_port_is_named()", "last(happened)").replace("pass", "happened('port 8000 refused')")
    _, lines, _ = showing(named + told)
    assert fault_lines(lines) == ["fault: port-taken pass port 8000 refused; name 0; name 1; name 2; and 1 more"]


def test_parameters_are_counted_and_not_repeated(showing):
    source = """
@pytest.mark.fault("bad-rows")
@pytest.mark.parametrize("row", range(3))
def test_a_bad_row_is_skipped(row): pass
"""
    _, lines, _ = showing(source)
    assert fault_lines(lines) == ["fault: bad-rows pass a bad row is skipped (3 cases)"]


def test_a_fault_whose_tests_are_all_skipped_fails_with_the_reason(showing):
    _, lines, passed = showing(PASSING.replace("pass", 'pytest.skip("no tmpfs here")'))
    assert (fault_lines(lines), passed) == (["fault: port-taken fail skipped: no tmpfs here"], False)


def test_a_skipped_test_beside_a_passing_one_is_said(showing):
    skipped = PASSING.replace("is_named", "is_free").replace("pass", 'pytest.skip("no IPv6")')
    _, lines, passed = showing(PASSING + skipped)
    assert (fault_lines(lines), passed) == (["fault: port-taken pass a taken port is named (skipped: no IPv6)"], True)


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_error_in_a_fixture_is_a_failure(showing, place):
    body = (
        "raise RuntimeError('no server')\n    yield" if place == "before" else "yield\n    raise RuntimeError('left')"
    )
    _, lines, passed = showing(f"@pytest.fixture(autouse=True)\ndef server():\n    {body}\n{PASSING}")
    (line,) = fault_lines(lines)
    assert "port-taken fail a taken port is named: RuntimeError" in line and not passed


def test_an_id_that_the_catalogue_lacks_ends_the_collection(showing):
    result, lines, passed = showing(PASSING.replace("port-taken", "port-stolen"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*does not have: *test_a_taken_port_is_named: 'port-stolen'"])
    assert not fault_lines(lines) and not passed


def test_a_test_process_that_dies_fails_the_faults_that_it_did_not_get_to(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    pytester.makepyfile(f"import os, pytest\n{PASSING.replace('pass', 'os._exit(9)')}")
    record = pytester.path / "small.jsonl"
    pytester.runpytest_subprocess("-p", "tests.faults.plugin", f"--fault-record={record}")
    lines, passed = report([record])
    assert lines[0] == "process: small 0 tests, 0 s, did not end"
    assert "port-taken fail" in fault_lines(lines)[0] and not passed


def test_a_test_process_that_was_never_started_is_not_passed_over(tmp_path):
    lines, passed = report([tmp_path / "flow.jsonl"])
    assert (lines[0], passed) == ("process: flow 0 tests, 0 s, did not end", False)


def test_the_last_line_counts_and_names_what_has_no_test(showing):
    _, lines, _ = showing(PASSING)
    assert lines[-1].startswith("faults: 1 of 1 pass, ")
    assert "without a test: slow-load, stalled-load, " in lines[-1]
    assert "port-taken" not in lines[-1]
