"""Prefect's run logs, less what tells a user nothing."""

import logging

from tasks.errors import HeroRunError

RUN_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")


def say_faults_plainly() -> None:
    """Log an error of ours as its message, without a traceback, and leave out a warning that does not apply."""
    for name in RUN_LOGGERS:
        logger = logging.getLogger(name)
        if _plain not in logger.filters:
            logger.addFilter(_plain)


def _plain(record: logging.LogRecord) -> bool:
    # Prefect warns that it cannot interrupt a blocked thread. It need not: what blocks here is a child process
    # or a request, and each has a closer limit of its own.
    if "running in a worker thread" in record.getMessage():
        return False
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HeroRunError):
        record.msg, record.args, record.exc_info = str(error), None, None
    return True
