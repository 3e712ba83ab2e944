"""How many bytes some folders hold at most, watched while something else writes and deletes."""

import os
import threading
from pathlib import Path


class Peak:
    """The most bytes that folders hold at once, each and all together, looked at many times a second."""

    def __init__(self, *folders: Path) -> None:
        self.each, self.all = [0] * len(folders), 0
        self._folders, self._stop = folders, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.01):
            sizes = [size_of(folder) for folder in self._folders]
            self.each = [max(known, size) for known, size in zip(self.each, sizes, strict=True)]
            self.all = max(self.all, sum(sizes))


def size_of(folder: Path) -> int:
    sizes = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                sizes += (Path(parent) / name).lstat().st_size
            except FileNotFoundError:  # it was renamed or deleted meanwhile
                continue
    return sizes
