"""A child that fails over its token tells neither the log, nor its outcome, nor its supervisor what the token is."""

import sys
from pathlib import Path

import pytest

from tasks.errors import PermanentError
from tasks.system.engine_child import run_in_engine
from tasks.system.processes import STOP
from tests.system.telling_child import Nothing

PLANTED = "hf_plantedTokenOfThisTest"


@pytest.fixture
def error(tmp_path: Path) -> PermanentError:
    STOP.clear()
    python, module = Path(sys.executable), "tests.system.telling_child"
    with pytest.raises(PermanentError) as raised:
        run_in_engine(python, module, Nothing(), Nothing, tmp_path, lambda _: None, {"HF_TOKEN": PLANTED})
    return raised.value


def test_the_supervisor_gets_the_error_without_the_token(error):
    assert str(error) == "ValueError: Invalid credentials: ***"


def test_the_log_has_line_and_traceback_without_the_token(error, tmp_path):
    log = (tmp_path / "telling_child.log").read_text()
    assert "sent authorization: Bearer ***" in log and "ValueError: Invalid credentials: ***" in log


def test_no_file_has_the_token(error, tmp_path):
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PLANTED in path.read_text()]
