"""Prefect's run logs, less what tells a user nothing, and without secrets."""

import logging

from tasks.errors import HeroRunError, Stopped
from tasks.redaction import redact_log_records

RUN_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")
EVENT_LOGGERS = ("prefect.events.clients", "prefect._internal.concurrency")


def say_faults_plainly() -> None:
    """Log an error of ours as its message, without a traceback, and leave out a warning that does not apply."""
    redact_log_records()
    for filter_, names in ((_plain, RUN_LOGGERS), (_short, EVENT_LOGGERS)):
        for name in names:
            logger = logging.getLogger(name)
            if filter_ not in logger.filters:
                logger.addFilter(filter_)


def _plain(record: logging.LogRecord) -> bool:
    # Prefect warns that it cannot interrupt a blocked thread. It need not: what blocks here is a child process
    # or a request, and each has a closer limit of its own.
    if "running in a worker thread" in record.getMessage():
        return False
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HeroRunError):
        record.msg, record.args, record.exc_info, record.exc_text = str(error), None, None, None
    # Of a run that is told to stop every task ends by this error, and none of them has a fault.
    if isinstance(error, Stopped) or f"exception {Stopped.__name__}: " in record.getMessage():
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _short(record: logging.LogRecord) -> bool:
    """While the API is away, one short line for each event, instead of the event."""
    if "failed to process item Event(" in record.getMessage():
        record.msg, record.args, record.exc_info = "an event could not be sent; the UI may show a task late", None, None
    return True
