"""Operations on many tables that may be interrupted anywhere, and a process that dies while doing one."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lance_dagster import LanceRepository, RefNotFoundError, TableNotFoundError
from lance_dagster.types import CommitRetention
from tests.faults import operations as faults
from tests.repository.scripted_repository import FAST, new_repository, rows, run

_CHANGES = frozenset({"os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime"})
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation with its preparation, and with what repeats it after an interruption."""

    prepare: Callable[[LanceRepository], object]
    act: Callable[[LanceRepository], object]


def one_published(repository: LanceRepository) -> None:
    """Make a repository whose channel has a run of two tables."""
    repository.publish(run(repository, 1, "a", "b"), channel="production")


def _two_published(repository: LanceRepository) -> None:
    one_published(repository)
    repository.publish(run(repository, 2, "a", "b"), channel="production")


def _merge_waits(repository: LanceRepository) -> None:
    run(repository, 2, "a", "b")
    one_published(repository)


def _foreign_commit_waits(repository: LanceRepository) -> None:
    one_published(repository)
    repository.table("a").append(rows(7))
    run(repository, 2, "a", "b")


def _main_is_ahead(repository: LanceRepository) -> None:
    one_published(repository)
    repository.publish(run(repository, 2, "a", "b"))


def _folder_moved(repository: LanceRepository) -> None:
    one_published(repository)
    root = Path(repository.root)
    (root / "a.lance").rename(root / "moved.lance")


def _remove(repository: LanceRepository) -> None:
    # A removal that was done cannot be repeated.
    with suppress(TableNotFoundError):
        repository.remove_table("a")


def _held(repository: LanceRepository) -> None:
    one_published(repository)
    repository.channels.hold("production", reason="wait")


def _forked_and_appended(repository: LanceRepository) -> None:
    for name in ("a", "b"):
        table = repository.fork(name, "run/9")
        # A step that is repeated finds its own rows.
        if not table.count_rows("run/9", filter="id = 9"):
            table.append(rows(9), branch="run/9")


def _removed(repository: LanceRepository) -> None:
    one_published(repository)
    repository.remove_table("a")


def _revert(repository: LanceRepository, message: str) -> None:
    # The commit is named by its id: a repeated revert must not revert itself.
    repository.revert(next(commit.id for commit in repository.log() if commit.message == message))
    # The operation does not report which tables could not follow.
    repository.maintenance.repair()


def _collect(repository: LanceRepository) -> None:
    now = timedelta(0)
    repository.maintenance.collect(CommitRetention(promotions=1, keep_for=now, grace=now), dry_run=False)


def _delete_channel(repository: LanceRepository) -> None:
    # A channel that was deleted cannot be deleted again.
    with suppress(RefNotFoundError):
        repository.channels.delete("production", reason="over")


OPERATIONS: Mapping[str, Operation] = {
    "publish": Operation(
        prepare=lambda repository: run(repository, 1, "a", "b"),
        act=lambda repository: repository.publish("run/1", channel="production"),
    ),
    "publish a merge": Operation(
        prepare=_merge_waits, act=lambda repository: repository.publish("run/2", channel="production")
    ),
    "publish over a foreign commit": Operation(
        prepare=_foreign_commit_waits, act=lambda repository: repository.publish("run/2", channel="production")
    ),
    "fork and append": Operation(prepare=one_published, act=_forked_and_appended),
    "commit": Operation(
        prepare=lambda repository: [repository.table(name).append(rows(7)) for name in ("a", "b")],
        act=lambda repository: repository.commit("what the stream brought"),
    ),
    "promote": Operation(
        prepare=_main_is_ahead, act=lambda repository: repository.channels.promote("production", reason="good")
    ),
    "roll back": Operation(
        prepare=_two_published, act=lambda repository: repository.channels.rollback("production", reason="doubled")
    ),
    "roll back one table": Operation(
        prepare=_two_published,
        act=lambda repository: repository.channels.rollback("production", reason="doubled", tables=["a"], hold=False),
    ),
    "release": Operation(
        prepare=_held,
        act=lambda repository: repository.channels.release("production", reason="go on"),
    ),
    "revert": Operation(prepare=_two_published, act=lambda repository: _revert(repository, "publish run/2")),
    "revert a removal": Operation(prepare=_removed, act=lambda repository: _revert(repository, "remove a")),
    "collect": Operation(prepare=_two_published, act=_collect),
    "delete a channel": Operation(prepare=one_published, act=_delete_channel),
    "tag": Operation(prepare=one_published, act=lambda repository: repository.tags.create("v1", "production")),
    "move a table": Operation(prepare=_folder_moved, act=lambda repository: repository.move_table("a", "moved")),
    "remove a table": Operation(prepare=one_published, act=_remove),
    "adopt": Operation(
        prepare=lambda repository: (repository.remove_table("a"), repository.remove_table("b")),
        act=lambda repository: repository.adopt(["a", "b"]),
    ),
}


def complete(repository: LanceRepository, act: Callable[[LanceRepository], object]) -> None:
    """Do an operation, and bring up the tables that, by its result, lag behind."""
    done = act(repository)
    if isinstance(done, tuple) and done[-1]:
        # A repository tag that is created again creates the missing tags of the tables.
        act(repository)
    elif getattr(done, "lagging", ()):
        repository.maintenance.repair()


def in_a_folder(name: str) -> faults.Operation:
    """The operation in the form for the enumeration of faults: it opens the repository itself."""
    return opened_by(lambda folder: LanceRepository.open(folder, FAST), name)


def opened_by(open_: Callable[[Path], LanceRepository], name: str) -> faults.Operation:
    """The operation in that form, with a function that opens the repository."""

    def act(folder: Path) -> None:
        complete(open_(folder), OPERATIONS[name].act)

    # Older versions of a branch have the paths of the table's former place.
    tables = () if name == "move a table" else ("a.lance", "b.lance", "c.lance")
    drafts = {
        "fork and append": ("a.lance run/9", "b.lance run/9"),
        # Commits find a moved table by its id as soon as its new place is registered, and then under its new name.
        "move a table": ("main", "channel production"),
    }.get(name, ())
    return faults.Operation(act=act, atomic=False, reads=True, drafts=drafts, tables=tables)


def fresh(folder: Path, operation: str) -> LanceRepository:
    """Make a repository for an operation."""
    repository = new_repository(folder, "a", "b", "c")
    OPERATIONS[operation].prepare(repository)
    return repository


def die_at_change(root: str, operation: str, step: int) -> None:
    """Do an operation on local disk, and kill the process just before one change to the file system."""
    repository, left = LanceRepository.open(root, FAST), step

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if not arguments or not str(arguments[0]).startswith(root):
            return
        if event in _CHANGES or (event == "open" and arguments[2] & _FOR_WRITING):
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(watch)
    OPERATIONS[operation].act(repository)
