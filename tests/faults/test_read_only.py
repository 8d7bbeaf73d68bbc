"""A file system that is mounted read-only: reads work, and every write is refused by one class of error."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.table_factory import entries, new_table

USE = """
import sys
from datetime import timedelta
import pyarrow as pa
from lance_dagster import LanceTable
from lance_dagster.errors import LanceDagsterError, PermissionRefusedError
uri = sys.argv[1]
rows = pa.table({"key": ["a"], "value": [1]}, LanceTable.open(uri).schema())
table = lambda: LanceTable.open(uri)
assert 3 == table().read().num_rows
assert table().maintenance.verify(deep=True).ok
for name, write in {
    "append": lambda: table().append(rows),
    "overwrite": lambda: table().overwrite(rows),
    "append to a branch": lambda: table().append(rows, branch="run"),
    "stage": lambda: table().stage(rows),
    "delete": lambda: table().delete("value = 1"),
    "update": lambda: table().update({"value": "2"}, where="value = 1"),
    "upsert": lambda: table().upsert(rows, on=["key"]),
    "compaction": lambda: table().maintenance.compact(),
    "merge": lambda: table().merge("run"),
    "tag": lambda: table().tags.create("x", "main"),
    "branch": lambda: table().branches.create("x"),
    "deleted branch": lambda: table().branches.delete("run"),
    "restore": lambda: table().restore("main@2"),
    "collection": lambda: table().maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0)),
    "new table": lambda: LanceTable.create(uri + "-new", rows.schema),
}.items():
    try:
        write()
    except LanceDagsterError as error:
        one = type(error) is PermissionRefusedError and "mounted read-only" in error.hint
        print(one, name, repr(error), error.hint)
    else:
        print(False, name, "was acknowledged")
"""
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$@"'


def test_every_write_is_refused_in_the_same_way(tmp_path: Path) -> None:
    """The hint says that the file system is read-only, and not that a permission is missing."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    table = new_table(tmp_path, entries("a", 1, 2))
    table.append(entries("a", 3))
    table.branches.create("run")
    table.append(entries("b", 1), branch="run")
    # The mount is in a namespace of its own, which ends with the process.
    command = ["unshare", "--mount", "sh", "-c", MOUNT, str(tmp_path), sys.executable, "-W", "ignore", "-c", USE]
    done = subprocess.run([*command, table.uri], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("needs the right to mount")
    assert 0 == done.returncode, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert 15 == len(lines)
    assert [] == [line for line in lines if not line.startswith("True")]
