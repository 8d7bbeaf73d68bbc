"""Operations that may be interrupted anywhere, and a process that dies while doing one."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.store import open_store
from tests.backdating import DAY, age
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import SCHEMA, context_on, entries

_CHANGES = frozenset({"os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime"})
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ROWS = pa.table({"key": ["p"], "value": [1]}, schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, and the preparation that it needs."""

    prepare: Callable[[LanceTable], None]
    act: Callable[[LanceTable], object]


def _two_lines(table: LanceTable) -> None:
    table.append(entries("a", 1, 2, 3))
    table.append(entries("b", 1, 2))
    table.tags.create("production", "main@3")
    table.branches.create("run")


def _merge_prepared(table: LanceTable) -> None:
    _two_lines(table)
    table.delete("key = 'b' and value = 1")
    table.delete("key = 'a' and value = 1", branch="run")
    table.append(entries("r", 1), branch="run")
    # This writer puts its data file into the branch's own folder.
    options = {key: value for key, value in table.storage_options.items() if key != "durability"} or None
    lance.dataset(table.uri, storage_options=options).checkout_version(("run", None)).insert(_ROWS)
    table.update({"value": "30"}, where="key = 'a' and value = 3", branch="run")


def _tag_prepared(table: LanceTable) -> None:
    _two_lines(table)
    table.append(entries("c", 1))


def _garbage_prepared(table: LanceTable) -> None:
    _two_lines(table)
    table.overwrite(entries("n", 1))
    table.overwrite(entries("n", 2))
    table.delete("key = 'a'", branch="run")
    table.maintenance.compact(branch="run")
    table.branches.create("gone")
    table.append(entries("g", 1), branch="gone")
    table.branches.delete("gone")
    if "://" not in table.uri:
        age(table, 30 * DAY)
    else:
        # S3 has times in whole seconds: a version that was replaced during the present second counts as in use.
        time.sleep(1 - time.time() % 1)


OPERATIONS: Mapping[str, Operation] = {
    "merge": Operation(prepare=_merge_prepared, act=lambda table: table.merge("run")),
    "tag": Operation(prepare=_tag_prepared, act=lambda table: table.tags.move("production", "main@4")),
    "garbage": Operation(
        prepare=_garbage_prepared,
        act=lambda table: table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=timedelta(0)),
    ),
}


def die_at_change(uri: str, operation: str, step: int) -> None:
    """Do an operation on local disk, and kill the process just before one change to the file system."""
    table, left = LanceTable.open(uri), step

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if not arguments or not str(arguments[0]).startswith(uri):
            return
        if event in _CHANGES or (event == "open" and arguments[2] & _FOR_WRITING):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(watch)
    OPERATIONS[operation].act(table)


def die_at_request(uri: str, options: Mapping[str, str], operation: str, step: int) -> None:
    """Do an operation, and kill the process just before one request to the store, or at the end."""
    left = step

    def script(request: Request) -> object:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return request.send()

    OPERATIONS[operation].act(LanceTable(context_on(ScriptedStore(open_store(uri, options), script))))
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)


def fresh(folder: Path, operation: str) -> LanceTable:
    """Make a table for an operation, without waiting for the disk."""
    OPERATIONS[operation].prepare(LanceTable.create(folder, SCHEMA, storage_options={"durability": "process"}))
    return LanceTable.open(folder)
