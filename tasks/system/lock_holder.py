"""Who has a lock, or had it last: the JSON line in a lock file."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tasks.system import guard


@dataclass(frozen=True)
class Holder:
    """Who has a lock, or had it last."""

    pid: int
    start_ticks: int
    """Start of the process since boot: ids are used again."""
    flow_run_id: str
    name: str
    data_root: str

    @classmethod
    def me(cls, flow_run_id: str, name: str, data_root: Path) -> "Holder":
        """This process, for this run."""
        known = guard.identity(os.getpid())
        assert known is not None
        return cls(*known, flow_run_id, name, str(data_root))

    @property
    def is_alive(self) -> bool:
        """Whether its process is still there, which it is for a moment after it gave the lock back."""
        return guard.identity(self.pid) == (self.pid, self.start_ticks)

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}, data root {self.data_root})"


def write_holder(lock: TextIO, holder: Holder) -> None:
    """Say who has the lock now."""
    lock.seek(0)
    lock.truncate()
    lock.write(json.dumps(asdict(holder)))
    lock.flush()


def read_holder(lock: TextIO) -> Holder | None:
    """Who has the lock, or had it last; None when the file does not say."""
    lock.seek(0)
    try:
        return Holder(**json.loads(lock.read()))
    except (ValueError, TypeError):  # new, or written only in part
        return None
