"""What a garbage collection found and did, as values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pendulum

from lance_dagster.changes.problems import ERROR, Problem
from lance_dagster.history.inventory import Kind
from lance_dagster.store import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """How many files, and how many bytes they have."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """What a garbage collection deleted, or would delete, and what it kept and why.

    Attributes:
        dry_run: Whether this only says what would be done.
        done: Whether everything below was done; False after a dry run, where a problem forbade it, and where versions
            were needed again with a settling time of zero.
        expiry_done: Whether the versions in `expired` did expire: as `done`, and also where no file was deleted since
            versions were needed again.
        now: The time by the storage's clock that ages were measured with.
        expired: By branch, the numbers of the versions that nothing needs, oldest first.
        garbage: By kind, files that no version names.
        waiting: By kind, files that only expired versions name; they go when these have been expired for long enough.
        young: By kind, files that no version names yet; somebody may be about to commit them.
        kept: By version, such as `main@3`, everything that keeps it.
        held: By branch, how many versions stay for its sake alone: nothing else keeps them once it is deleted.
            Mostly it is enough to merge it, or to sync it.
        branches: Branches that were half deleted, or had no metadata, and are gone.
        put_back: Versions that expired and are needed again, so they are there again.
        others: How many objects lie there that are not of a table; they are left alone.
        paths: The files of `garbage`, below the table's folder.
        problems: What is wrong. After an error nothing is deleted.
    """

    dry_run: bool
    done: bool = False
    expiry_done: bool = False
    now: pendulum.DateTime
    expired: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    garbage: Mapping[str, FileCount] = field(default_factory=dict)
    waiting: Mapping[str, FileCount] = field(default_factory=dict)
    young: Mapping[str, FileCount] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()
    others: int = 0
    paths: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing forbids to delete; warnings do not."""
        return all(problem.severity != ERROR for problem in self.problems)

    @property
    def versions(self) -> int:
        """How many versions expired."""
        return sum(len(numbers) for numbers in self.expired.values())

    @property
    def files(self) -> int:
        """How many files are garbage."""
        return sum(count.files for count in self.garbage.values())

    @property
    def bytes(self) -> int:
        """How many bytes the garbage has."""
        return sum(count.bytes for count in self.garbage.values())


def counted(files: Mapping[Kind, Sequence[Entry]]) -> dict[str, FileCount]:
    """Count files by kind; kinds without any are left out."""
    return {
        str(kind): FileCount(files=len(entries), bytes=sum(entry.size for entry in entries))
        for kind, entries in files.items()
        if entries
    }


def by_branch(versions: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Group versions by branch, oldest first."""
    found: dict[str, list[int]] = {}
    for branch, number in sorted(versions):
        found.setdefault(branch, []).append(number)
    return {branch: tuple(numbers) for branch, numbers in found.items()}
