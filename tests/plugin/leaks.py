"""Search all files that a run left behind for a text, including compressed content and databases."""

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

_DATABASE = b"SQLite format 3\0"


def leaks(folder: Path, *texts: str) -> list[tuple[str, str]]:
    """Return the files below a folder that contain one of the texts, each with the text."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for blob in _contents(path):
            found += [(str(path.relative_to(folder)), text) for text in texts if text.encode() in blob]
    return found


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if data.startswith(_DATABASE):
        # Dagster stores the snapshots of jobs compressed.
        with sqlite3.connect(path) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in database.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - names of the database itself
                    yield from (_unpacked(value) for value in row if isinstance(value, bytes | str))


def _unpacked(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value
