"""Secrets in what is told: known by their variable's name, handed over, or inside an address."""

import logging
from pathlib import Path

import pytest

from tasks import redaction
from tasks.errors import BadInput, HeroRunError, PermanentError
from tasks.redaction import is_secret_name, keep_secret, redact_log_records, redacted, secrets_hidden
from tasks.system.processes import log_tail

PLANTED = "planted-secret-4711"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(redaction, "_kept", set())


@pytest.fixture
def kept() -> str:
    keep_secret(PLANTED)
    return PLANTED


@pytest.fixture
def logger(caplog) -> logging.Logger:
    before = logging.getLogRecordFactory()
    redact_log_records()
    yield logging.getLogger("a-logger")
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_AUTH_STRING", "DB_PASSWORD", "token"]
)
def test_a_variable_whose_name_says_so_is_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "KEYBOARD", "VLLM_CPU_KVCACHE_SPACE"])
def test_a_variable_that_only_sounds_like_it_is_not(name):
    assert not is_secret_name(name)


def test_the_value_of_a_secret_variable_is_blotted_out(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", PLANTED)
    assert redacted(f"key {PLANTED} was refused") == "key *** was refused"


def test_what_was_handed_over_is_blotted_out(kept):
    assert redacted(f"a{kept}b{kept}") == "a***b***"


@pytest.mark.parametrize("value", ["", "1", "0,1,2,3", "/data/vllm-cache"])
def test_short_values_and_paths_stay_because_messages_need_them(value):
    keep_secret(value)
    assert redacted(f"at {value}") == f"at {value}"


def test_a_secret_that_begins_like_another_goes_as_a_whole(kept):
    keep_secret(kept + "-and-more")
    assert redacted(f"{kept}-and-more") == "***"


def test_credentials_in_an_address_are_blotted_out():
    assert redacted("https://me:word@hub.example/x failed") == "https://***@hub.example/x failed"


def test_an_address_with_a_port_stays():
    assert redacted("http://127.0.0.1:8000/v1 by a@b") == "http://127.0.0.1:8000/v1 by a@b"


def test_no_error_of_ours_holds_a_secret(kept):
    assert str(BadInput(f"refused: {kept}")) == "refused: ***"


def test_an_error_without_a_message_has_none():
    assert str(HeroRunError()) == ""


def test_an_error_of_somebody_else_is_replaced_by_one_without_the_secret(kept):
    with pytest.raises(PermanentError) as raised, secrets_hidden(PermanentError):
        raise KeyError(kept)
    assert str(raised.value) == "KeyError: '***'" and raised.value.__suppress_context__


def test_an_error_of_somebody_else_without_a_secret_stays(kept):
    with pytest.raises(KeyError, match="harmless"), secrets_hidden(PermanentError):
        raise KeyError("harmless")


def test_a_log_line_holds_no_secret(kept, logger, caplog):
    logger.warning("sent %s", kept)
    assert caplog.messages == ["sent ***"]


def test_a_logged_traceback_holds_no_secret(kept, logger, caplog):
    try:
        raise ValueError(kept)
    except ValueError:
        logger.exception("it failed")
    assert "ValueError: ***" in caplog.text and kept not in caplog.text


def test_a_logged_cause_holds_no_secret(kept, logger, caplog):
    try:
        raise BadInput("refused") from ValueError(kept)
    except BadInput:
        logger.exception("it failed")
    assert "ValueError: ***" in caplog.text and kept not in caplog.text


def test_the_end_of_a_childs_log_is_told_without_secrets(kept, tmp_path: Path):
    (tmp_path / "x.log").write_text(f"key={kept}\n")
    assert log_tail(tmp_path / "x.log") == "key=***"
