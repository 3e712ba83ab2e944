"""``python -m tests.faults.summary RECORD...``: one line for each fault, and the count.

A fault passes when all its tests passed. It fails when one failed, when none was run to its end, or when all
were skipped. The exit code is 1 when a fault failed or a test process did not end well.
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.catalogue import CATALOGUE

MOST_SENTENCES = 4
NOT_ENDED = "the test process ended in the middle of it"


@dataclass
class Shown:
    """What the tests of one fault showed."""

    said: list[str] = field(default_factory=list)
    """What passing tests told themselves: shown before the names of the others."""
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Whether the fault was survived."""
        return bool(self.said or self.passed) and not self.failed

    def words(self) -> str:
        """What happened, in words."""
        if self.failed:
            return joined(self.failed)
        if not self.passes:
            return "skipped: " + joined(self.skipped)
        return joined(self.said + self.passed) + (f" (skipped: {joined(self.skipped)})" if self.skipped else "")


@dataclass
class Process:
    """One test process."""

    name: str
    tests: int = 0
    exit: int | None = None
    seconds: float = 0.0

    def line(self) -> str:
        """Its line for people."""
        end = "did not end" if self.exit is None else f"exit code {self.exit}"
        return f"process: {self.name} {self.tests} tests, {self.seconds:.0f} s, {end}"


def joined(sentences: list[str]) -> str:
    """Different sentences, each once with how often it came, the first few."""
    counts = Counter(sentences)
    shown = [text if count == 1 else f"{text} ({count} cases)" for text, count in list(counts.items())[:MOST_SENTENCES]]
    left = len(counts) - len(shown)
    return "; ".join(shown) + (f"; and {left} more" if left else "")


def read_record(path: Path, faults: dict[str, Shown]) -> Process:
    """Add what one process recorded to ``faults``."""
    process = Process(path.stem)
    planned: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        record: dict[str, Any] = json.loads(line)
        if "planned" in record:
            planned = {test["test"]: test["faults"] for test in record["planned"]}
        elif "test" in record:
            planned.pop(record["test"], None)
            process.tests += 1
            for name in record["faults"]:
                kind = "said" if record["said"] and record["outcome"] == "passed" else record["outcome"]
                getattr(faults.setdefault(name, Shown()), kind).append(record["happened"])
        elif "exit" in record:
            process.exit, process.seconds = record["exit"], record["seconds"]
    for test, names in planned.items():
        for name in names:
            faults.setdefault(name, Shown()).failed.append(f"{test}: {NOT_ENDED}")
    return process


def report(paths: list[Path]) -> tuple[list[str], bool]:
    """The lines to print, and whether everything passed."""
    faults: dict[str, Shown] = {}
    processes = [read_record(path, faults) for path in paths]
    lines = [process.line() for process in processes]
    shown = [name for name in CATALOGUE if name in faults]
    lines += [f"fault: {name} {'pass' if faults[name].passes else 'fail'} {faults[name].words()}" for name in shown]
    passes = sum(faults[name].passes for name in shown)
    untested = [name for name in CATALOGUE if name not in faults]
    without = f"{len(untested)} without a test" + (f": {', '.join(untested)}" if untested else "")
    lines.append(f"faults: {passes} of {len(shown)} pass, {len(CATALOGUE)} in the catalogue, {without}")
    return lines, passes == len(shown) > 0 and all(process.exit == 0 for process in processes)


if __name__ == "__main__":
    printed, all_passed = report([Path(name) for name in sys.argv[1:]])
    print("\n".join(printed))
    sys.exit(0 if all_passed else 1)
