"""The faults of a run, one JSON line each, so that its end can say what happened on the way."""

import json
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.errors import HeroRunError

LEDGER_NAME = "faults.jsonl"


@dataclass(frozen=True)
class Fault:
    """Something that went wrong and was, or was not, survived."""

    stage: str
    kind: str
    """Class of the error."""
    signature: str
    """Equal for two failures that are the same."""
    message: str
    """First line of what was said."""
    count: int = 1


def note(folder: Path, fault: Fault) -> None:
    """Append a fault to the run's ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LEDGER_NAME).open("a", encoding="utf-8") as out:
        out.write(json.dumps({"time": time.time(), **asdict(fault)}) + "\n")


def read(folder: Path) -> list[Fault]:
    """The run's faults so far, in order; a torn line is passed over."""
    path = folder / LEDGER_NAME
    faults = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        del data["time"]
        faults.append(Fault(**data))
    return faults


def fault_of(stage: str, error: HeroRunError) -> Fault:
    """The ledger's line for an error."""
    first_line = str(error).partition("\n")[0]
    return Fault(stage, type(error).__name__, f"{stage}: {signature_of(first_line)}", first_line)


def signature_of(line: str) -> str:
    """A message without what differs between two failures that are the same.

    Paths, addresses and numbers go (times, process ids, free memory), but not how far the work had come:
    two crashes with progress in between are two failures.
    """
    progress = " ".join(re.findall(r"\bat [\d.,]+ of [\d.,]+", line))
    bare = re.sub(r"/\S+", "<path>", line)
    return f"{re.sub(r'0x[0-9a-f]+|[0-9][0-9.,]*', '#', bare)} {progress}".strip()


def table_rows(faults: list[Fault]) -> list[dict[str, str]]:
    """How often each fault happened, for people."""
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], str] = {}
    for fault in faults:
        counts[fault.stage, fault.kind] += fault.count
        last[fault.stage, fault.kind] = fault.message
    return [
        {"stage": stage, "fault": kind, "times": str(count), "last": last[stage, kind]}
        for (stage, kind), count in counts.items()
    ]


def sentence(faults: list[Fault]) -> str:
    """The faults in one line."""
    rows = table_rows(faults)
    return "; ".join(f"{row['times']} x {row['fault']} in {row['stage']}" for row in rows) or "none"
