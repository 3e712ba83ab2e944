"""The lock of a data root, for those who must not work under it while a run does."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.locks import RUN_LOCK_NAME
from tasks.errors import PermanentError
from tasks.system.lock_holder import read_holder


@contextmanager
def no_run_on(data_root: Path, purpose: str) -> Iterator[None]:
    """Make sure that no run uses a data root, and that none starts, while the body works.

    Args:
        data_root: Where the run would be.
        purpose: What is to be done, for the message.

    Raises:
        PermanentError: A run is using it, and the message names its process; or it cannot be written.
    """
    try:
        lock = (data_root / RUN_LOCK_NAME).open("a+")
    except OSError as error:
        raise PermanentError(
            f"{purpose} has to write in {data_root}, which cannot be done: {error.strerror}. "
            "Do it as the user that the runs belong to."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            who = read_holder(lock) or "a hero run"
            raise PermanentError(
                f"{who} is using {data_root}, and {purpose} could take away what it works with. "
                "Wait until it has ended, or stop it, and try again."
            ) from None
        yield
