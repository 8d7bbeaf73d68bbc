"""Use a table whose small manifests claim billions of rows, in a separate process, and print the memory that it took.

python -m tests.faults.claimed_rows folder operation
"""

import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance

from lance_dagster import LanceTable
from lance_dagster.errors import LanceDagsterError
from lance_dagster.format.codec import (
    decode_manifest_file,
    encode_manifest_file,
    encode_transaction,
    row_id_range,
    version_run,
)
from lance_dagster.format.model import Fragment, Fragments
from tests.history.rewritten_manifests import manifest_file
from tests.table_factory import entries, new_table

CLAIMED = 2**31
ROOM = 8 << 30
OPERATIONS: dict[str, Callable[[LanceTable], object]] = {
    "revert an append": lambda table: table.revert("main@2"),
    "revert a deletion": lambda table: table.revert("main@3"),
    "revert an update": lambda table: table.revert("main@4"),
    "revert a compaction": lambda table: table.revert("main@6"),
    "rows of an append": lambda table: table.diff("main@1", "main@2").stat(),
    "rows of a deletion": lambda table: table.diff("main@2", "main@3").stat(),
    "rows of an update": lambda table: table.diff("main@3", "main@4").stat(),
    "rows of everything": lambda table: table.diff("main@1", "main").stat(),
    "rows by key": lambda table: table.diff("main@2", "main", on=["value"]).stat(),
    "merge": lambda table: table.merge("run"),
    "cherry-pick": lambda table: table.cherry_pick("run"),
    "preview": lambda table: table.preview_merge("run"),
    "conflict": lambda table: list(table.preview_merge("other").conflicts),
    "conflicting rows": lambda table: table.preview_merge("other").conflicting_rows().read_all(),
    "source wins": lambda table: table.merge("other", strategy="source-wins"),
    "squash": lambda table: table.merge("run", mode="squash"),
    "restore": lambda table: table.restore("main@2"),
    "add a column": lambda table: table.columns.add({"twice": "value * 2"}),
    "replace": lambda table: table.replace_where("key = 'a'", entries("a", 5)),
    "content id": lambda table: table.maintenance.content_id(),
    "log": lambda table: table.log(first_parent=False),
    "verify": lambda table: table.maintenance.verify(),
    "compact": lambda table: table.maintenance.compact(),
    "collect": lambda table: table.maintenance.collect_garbage(dry_run=True),
    "delete": lambda table: table.delete("value = 5"),
    "upsert": lambda table: table.upsert(entries("new", 5), on=["value"]),
    "read": lambda table: table.read(),
}


def claiming(folder: Path, *, stable: bool) -> LanceTable:
    """A table of a hundred rows with a history, in which every fragment of those rows claims billions of them."""
    if stable:
        table = new_table(folder, entries("a", *range(100)))
    else:
        for count in (0, 100):
            lance.write_dataset(entries("a", *range(count)), folder / "table", mode="append")
        table = LanceTable.open(folder / "table")
    for branch in ("run", "other"):
        table.branches.create(branch)
    table.delete("value = 50")
    table.update({"key": "'b'"}, where="value = 51")
    table.append(entries("c", 200))
    table.maintenance.compact(target_rows=1000)
    table.update({"key": "'r'"}, where="value = 3", branch="run")
    table.update({"key": "'o'"}, where="value = 51", branch="other")
    for branch in ("main", "run", "other"):
        for number in table.branches.version_numbers(branch):
            _claim(table, branch, number)
    return LanceTable.open(table.uri)


def _claim(table: LanceTable, branch: str, number: int) -> None:
    path = manifest_file(table, branch, number)
    manifest, transaction = decode_manifest_file(path.read_bytes(), str(path))
    assert transaction is not None
    fragments = Fragments(_claiming(fragment) for fragment in manifest.fragments)
    operation: Any = transaction.operation
    for name in ("fragments", "updated_fragments", "new_fragments"):
        if hasattr(operation, name):
            operation = replace(operation, **{name: tuple(map(_claiming, getattr(operation, name)))})
    changed = replace(manifest, fragments=fragments, next_row_id=4 * CLAIMED)
    path.write_bytes(encode_manifest_file(changed, encode_transaction(replace(transaction, operation=operation))))


def _claiming(fragment: Fragment) -> Fragment:
    if fragment.physical_rows < 90:
        return fragment
    ids = {} if fragment.row_ids is None else {"row_ids": row_id_range(0, CLAIMED)}
    versions = (
        {}
        if fragment.created_at is None
        else {"created_at": version_run(CLAIMED, 1), "updated_at": version_run(CLAIMED, 1)}
    )
    return replace(fragment, physical_rows=CLAIMED, **ids, **versions)  # type: ignore[arg-type]


def main(folder: str, ids: str) -> None:
    """Do each operation on its own copy of a table; print the outcome and by how many MiB peak memory rose."""
    # The address space is limited, so that an allocation for claimed rows fails at once and does not harm the machine.
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    made = claiming(Path(folder) / "made", stable=ids == "stable")
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        # Branches refer to the table by its path, so the copy is put at the path of the original.
        shutil.copytree(made.uri, f"{folder}/{number}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            operation(LanceTable.open(made.uri))
            found = "done"
        except LanceDagsterError as error:
            found = type(error).__name__
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sys.stdout.write(f"{name}: {(after - before) // 1024} {found}\n")
        shutil.rmtree(made.uri)
        shutil.move(f"{folder}/{number}", made.uri)


if __name__ == "__main__":
    main(*sys.argv[1:])
