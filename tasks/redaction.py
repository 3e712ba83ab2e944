"""Secrets are blotted out of everything that is told: error messages, log records, the ends of child logs.

What is secret is known by its value: variables of this process's environment whose names say so (``HF_TOKEN``,
``VLLM_API_KEY``), and what was handed over to ``keep_secret``. Credentials inside a URL are known by their place.
"""

import logging
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = "***"
SHORTEST_SECRET_CHARACTERS = 8
"""Shorter values are words that messages need."""
SECRET_NAME = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH_STRING)S?$", re.IGNORECASE)
URL_CREDENTIALS = re.compile(r"(://)[^/\s@]+@")

_kept: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return SECRET_NAME.search(name) is not None


def keep_secret(value: str) -> None:
    """From now on, blot this value out."""
    _kept.add(value)


def redacted(text: str) -> str:
    """The text without secrets; short values and paths are none, wherever they came from, and messages need them."""
    for value in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return URL_CREDENTIALS.sub(rf"\1{HIDDEN}@", text)


def _secrets() -> set[str]:
    named = {value for name, value in os.environ.items() if is_secret_name(name)}
    return {v for v in _kept | named if len(v) >= SHORTEST_SECRET_CHARACTERS and not v.startswith("/")}


def redact_log_records() -> None:
    """Blot secrets out of every log record of this process, tracebacks included."""
    make = logging.getLogRecordFactory()
    if make.__module__ == __name__:
        return

    def made_without_secrets(*arguments: object, **named: object) -> logging.LogRecord:
        record = make(*arguments, **named)
        _hide_in(record)
        return record

    logging.setLogRecordFactory(made_without_secrets)


def _hide_in(record: logging.LogRecord) -> None:
    try:
        said = record.getMessage()
    except Exception:  # its arguments do not fit: logging says so itself, and prints them as they are
        said = f"{record.msg} {record.args}"
    if (clean := redacted(said)) != said:
        record.msg, record.args = clean, None
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        chain = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        if (clean := redacted(chain)) != chain:
            record.exc_text = clean  # a formatter takes it instead of formatting the exception


@contextmanager
def secrets_hidden(replacement: type[Exception]) -> Iterator[None]:
    """Raise an error whose message holds a secret as another one, which holds none and hides its cause.

    Args:
        replacement: Its class.
    """
    try:
        yield
    except Exception as error:
        said = str(error)
        if redacted(said) == said:
            raise
        raise replacement(redacted(f"{type(error).__name__}: {said}")) from None
