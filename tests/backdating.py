"""Make a table older: change the times inside the files of its folder, and the times at which they were stored."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from lance_dagster import LanceTable
from lance_dagster.format.codec import decode_manifest_file, encode_manifest_file, encode_transaction

DAY = timedelta(days=1)


def age(table: LanceTable, by: timedelta, below: str = "") -> None:
    """Make everything in a table's folder, or below a folder in it, older."""
    for path in sorted(Path(table.uri, below).rglob("*")):
        if path.is_file():
            stored = path.stat().st_mtime - by.total_seconds()
            if path.suffix == ".manifest":
                say(path, by)
            os.utime(path, (stored, stored))


def free_names(table: LanceTable) -> None:
    """Free the names of deleted branches, as the first deletion a day later does: numbers begin as usual again."""
    for fence in Path(table.uri, "_refs/deleted").iterdir():
        fence.unlink()


def say(manifest: Path, ago: timedelta) -> None:
    """Move the time inside a manifest to an earlier one."""
    version, transaction = decode_manifest_file(manifest.read_bytes(), manifest.name)
    assert transaction is not None
    older = replace(version, timestamp=version.timestamp - int(ago.total_seconds() * 1e9))
    manifest.write_bytes(encode_manifest_file(older, encode_transaction(transaction)))


def stored(path: Path, ago: timedelta) -> None:
    """Change the modification time of a file to an earlier or later one."""
    then = path.stat().st_mtime - ago.total_seconds()
    os.utime(path, (then, then))


def manifest(table: LanceTable, number: int, branch: str = "main") -> Path:
    """The manifest of a version."""
    line = Path(table.uri) if branch == "main" else Path(table.uri, "tree", branch)
    return line / "_versions" / f"{2**64 - 1 - number:020d}.manifest"


def files(table: LanceTable, below: str = "") -> set[str]:
    """The files of a table, by their paths below it, without locks."""
    root = Path(table.uri)
    found = (path for path in (root / below).rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(root).as_posix() for path in found}
