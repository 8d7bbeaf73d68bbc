"""Stored files do not change: no operation on a table, such as a merge, writes to an existing file."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.properties.merging.laws import hold

Stored = tuple[int, int, int]
"""Of a file: its size, when it was written, and which file it is."""
_HINTS = "latest_version_hint.json"
"""What programs may believe or not; each commit puts another in its place."""


def stored(folder: Path) -> dict[str, Stored]:
    """Every file of a table, including those of branches, since no history here moves or deletes a branch."""
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
    """Check that every earlier file still exists, and was not written again."""
    changed = [path for path, file in before.items() if after.get(path) != file]
    hold(not changed, "stored files", f"{changed} changed or are gone")
