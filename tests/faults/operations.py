"""The operations that are done on a table while the storage fails, a process dies or a rival is faster.

All operations start from the same folder, so that each can be the rival of every other one. They take no state from an
earlier attempt: a caller repeats one after a crash by calling it again.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from tests.backdating import DAY, age
from tests.table_factory import SCHEMA, entries

_UNSYNCED = {"durability": "process"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, and how a caller may go on after an error."""

    act: Callable[[Path], object]
    """Does it to the tables in a folder, which it opens itself."""
    branch: str = "main"
    """The branch of its commit."""
    once: bool = False
    """Done twice, it changes rows twice: a caller repeats it only where it did not happen."""
    atomic: bool = True
    """An error that does not say "unknown" means that nothing happened; else names move one by one."""
    commits: bool = True
    """It is a commit; else an error of the storage leaves open whether a name moved."""
    resumes: bool = False
    """A caller who was told that its commit may have landed commits the transaction again, and else repeats it all."""
    reads: bool = False
    """The change depends on the newest version: where a listing lags, it is made from the one before."""
    drafts: tuple[str, ...] = ()
    """Names that readers see before they are complete, as is documented."""
    alone: bool = False
    """No other writer may be active, and what a listing shows has to be complete."""
    instead: Callable[[Path], object] | None = None
    """What it amounts to where it would be refused, but looked for reasons before the rival made one."""
    tables: tuple[str, ...] = ("table", "new", "copy")
    """The tables that pylance and `verify` look at afterwards. Older versions of a moved one name its former place."""


def prepare(folder: Path) -> None:
    """Make a table with everything that operations need."""
    table = LanceTable.create(folder / "table", SCHEMA, storage_options=_UNSYNCED)
    table.append(entries("a", 1, 2, 3))
    table.append(entries("b", 1, 2))
    for name, ref in (("production", "main@3"), ("spare", "main@2")):
        table.tags.create(name, ref)
    for name in ("run", "other", "gone"):
        table.branches.create(name)
        table.append(entries(name, 1), branch=name)
    table.branches.delete("gone")
    table.delete("key = 'b' and value = 1")
    table.append(entries("c", 1))
    table.delete("key = 'a' and value = 1", branch="run")
    # This writer puts its data file into the branch's own folder.
    lance.dataset(table.uri).checkout_version(("run", None)).insert(
        pa.table({"key": ["p"], "value": [1]}, schema=SCHEMA)
    )
    table.update({"value": "30"}, where="key = 'a' and value = 3", branch="run")
    age(table, 30 * DAY)


def prepare_moved(folder: Path) -> None:
    """Make the table, and a copy of its files, as a storage client makes one."""
    prepare(folder)
    shutil.copytree(folder / "table", folder / "moved")


def _table(folder: Path, name: str = "table") -> LanceTable:
    return LanceTable.open(folder / name, _UNSYNCED)


def _collect(table: LanceTable, grace: timedelta | None = None) -> object:
    return table.maintenance.collect_garbage(timedelta(0), dry_run=False, grace=grace)


def _publish(table: LanceTable) -> None:
    if "run" in table.branches.list():
        table.tags.move("production", str(table.merge("run")))
        table.branches.delete("run")


def _undo(table: LanceTable) -> None:
    # A publication deletes the branch after its merge, even if the branch was reset in between.
    if "run" in table.branches.list():
        table.restore("run@5", "run")


def _of(act: Callable[[LanceTable], object], **how: bool | str | tuple[str, ...]) -> Operation:
    return Operation(act=lambda folder: act(_table(folder)), **how)  # type: ignore[arg-type]


OPERATIONS: Mapping[str, Operation] = {
    "create": Operation(act=lambda folder: LanceTable.create(folder / "new", SCHEMA, storage_options=_UNSYNCED)),
    "append": _of(lambda table: table.append(entries("new", 1)), once=True, resumes=True),
    "append to a branch": _of(
        lambda table: table.append(entries("new", 2), branch="other"), once=True, branch="other", resumes=True
    ),
    "overwrite": _of(lambda table: table.overwrite(entries("only", 1)), resumes=True),
    "replace": _of(lambda table: table.replace_where("key = 'c'", entries("c", 7, 8)), resumes=True, reads=True),
    "delete": _of(lambda table: table.delete("key = 'a' and value = 2"), resumes=True, reads=True),
    "delete other rows": _of(lambda table: table.delete("key = 'a' and value = 3"), resumes=True, reads=True),
    "update": _of(
        lambda table: table.update({"value": "value * 10"}, where="value = 2"), once=True, resumes=True, reads=True
    ),
    "upsert": _of(lambda table: table.upsert(entries("c", 1, 5), on=["key", "value"]), resumes=True, reads=True),
    "compact": _of(lambda table: table.maintenance.compact(), reads=True),
    "merge": _of(lambda table: table.merge("run"), reads=True),
    "pick": _of(lambda table: table.cherry_pick("other@4"), reads=True),
    "revert": _of(lambda table: table.revert("main@4"), reads=True),
    "restore": _of(lambda table: table.restore("main@3"), once=True, resumes=True),
    "publish": _of(_publish, atomic=False, reads=True),
    "preview": _of(
        lambda table: table.branches.preview("run"), atomic=False, drafts=("table preview/run",), reads=True
    ),
    "create a tag": _of(lambda table: table.tags.create("release", "main@4"), commits=False),
    "tag an old version": _of(lambda table: table.tags.create("old", "main@1"), commits=False),
    "move a tag": _of(lambda table: table.tags.move("production", "main@4"), commits=False),
    "move another tag": _of(lambda table: table.tags.move("spare", "main@4"), commits=False),
    "rename a tag": _of(lambda table: table.tags.rename("spare", "kept"), atomic=False),
    "delete a tag": Operation(
        act=lambda folder: _table(folder).tags.delete("spare"),
        atomic=False,
        # A deletion that is repeated after a lost answer finds no tag, so a deletion whose tag disappears while it is
        # at work counts as done too.
        instead=lambda _: None,
    ),
    "create a branch": _of(lambda table: table.branches.create("fresh", "main@3"), atomic=False),
    "rename a branch": _of(lambda table: table.branches.rename("other", "renamed"), atomic=False),
    "reset a branch": Operation(
        act=lambda folder: _table(folder).branches.reset("other", "main@4"),
        atomic=False,
        drafts=("table other",),
        # A reset to a version of another branch creates the branch again, even if it was just deleted.
        instead=lambda folder: _table(folder).branches.create("other", "main@4"),
    ),
    "reset a branch to its own": Operation(
        act=lambda folder: _table(folder).branches.reset("run", "run@5"),
        atomic=False,
        once=True,
        # A merge cannot be undone, so a merge that lands after the reset looked for merges counts as done before it.
        instead=lambda folder: _undo(_table(folder)),
    ),
    "delete a branch": _of(lambda table: table.branches.delete("other"), atomic=False),
    "collect": _of(_collect, atomic=False),
    "collect at once": _of(lambda table: _collect(table, timedelta(0)), atomic=False, alone=True),
    "clone": _of(lambda table: table.maintenance.clone(Path(table.uri).parent / "copy"), atomic=False, reads=True),
    "clone deeply": _of(
        lambda table: table.maintenance.clone(Path(table.uri).parent / "copy", shallow=False), atomic=False, reads=True
    ),
}
MOVED: Mapping[str, Operation] = {
    "relocate": Operation(act=lambda folder: _table(folder, "moved").maintenance.relocate(), atomic=False, tables=()),
}
