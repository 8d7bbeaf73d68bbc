"""Stored files do not change: no operation on a table, such as a merge, writes to an existing file.

Only the time of a file may become a later one: a copy that is made again is renewed, so that no collection takes it for
an old one that nothing names.
"""

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from tests.properties.merging.laws import hold

Stored = tuple[int, bytes]
"""Of a file: which file it is, and the digest of its bytes."""
_HINTS = "latest_version_hint.json"
"""What programs may believe or not; each commit puts another in its place."""
_FILES = 100_000


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
                    found[entry.path] = (told.st_ino, _digest(entry.path, told.st_ino, told.st_size, told.st_mtime_ns))
    return found


# A file is read once, and again where its time says that it was written or renewed.
@lru_cache(_FILES)
def _digest(path: str, *_: int) -> bytes:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).digest()


def kept(before: Mapping[str, Stored], after: Mapping[str, Stored]) -> None:
    """Check that every earlier file still exists, and has the same bytes."""
    changed = [path for path, file in before.items() if after.get(path) != file]
    hold(not changed, "stored files", f"{changed} changed or are gone")
