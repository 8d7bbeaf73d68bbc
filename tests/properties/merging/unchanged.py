"""What is stored stays as it is: no work on a table, merges least of all, writes into a file that is there."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.properties.merging.laws import hold

Stored = tuple[int, int, int]
"""Of a file: its size, when it was written, and which file it is."""
_HINTS = "latest_version_hint.json"
"""What programs may believe or not; each commit puts another in its place."""


def stored(folder: Path) -> dict[str, Stored]:
    """Every file of a table. Branches are made files of too, but no history here moves or deletes one."""
    found, waiting = {}, [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.name != _HINTS:
                    told = entry.stat()
                    found[entry.path] = (told.st_size, told.st_mtime_ns, told.st_ino)
    return found


def kept(before: Mapping[str, Stored], after: Mapping[str, Stored]) -> None:
    """Hold that every file that was there is there, and was not written again."""
    changed = [path for path, file in before.items() if after.get(path) != file]
    hold(not changed, "stored files", f"{changed} changed or are gone")
