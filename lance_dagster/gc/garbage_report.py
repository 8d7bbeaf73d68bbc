"""The report of a collection: which versions expired, and how many files and bytes were deleted or kept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pendulum

from lance_dagster.history.inventory import Kind
from lance_dagster.store import ObjectInfo
from lance_dagster.verify.manifest_rules import ERROR, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """A number of files, and their size in bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """The report of a garbage collection: what it deleted, or would delete, what it kept, and why.

    Attributes:
        dry_run: Whether the collection only reports what it would do.
        done: Whether everything below was done. False after a dry run, after an error in `problems`, where versions
            were needed again with a settling time of zero, and where a branch was recovered from settled versions.
        expiry_done: Whether the versions in `expired` expired, even where no file was deleted afterwards.
        now: The time that ages were measured with: the earlier one of the storage's clock and the local clock.
        expired: By branch, the numbers of the versions that nothing needs, oldest first.
        garbage: By kind, files that no version names.
        waiting: By kind, files that only expired versions name; they are deleted once the settling time is over.
        young: By kind, files younger than the grace period that no version names; a writer may be about to commit them.
        kept: By version, such as `main@3`, every reason that keeps it.
        held: By branch, how many versions only that branch keeps. They can expire once it is deleted; mostly it is
            enough to sync the branch, or to merge it where it is among `unmerged`.
        unmerged: The branches in `held` with versions that `main` does not contain.
        branches: Branches whose creation or deletion was interrupted, or that have no metadata; they are removed.
        put_back: Expired versions that are needed again and were put back.
        others: How many objects in the folder do not belong to the table; they are left alone.
        paths: The files of `garbage`, relative to the table's folder.
        problems: What is wrong with the table. After an error nothing is deleted.
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
    unmerged: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()
    others: int = 0
    paths: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not forbid deletion."""
        return all(problem.severity != ERROR for problem in self.problems)

    def __str__(self) -> str:
        """Return one line about what was or would be deleted, and a line for each problem."""
        files = sum(count.files for count in self.garbage.values())
        size = sum(count.bytes for count in self.garbage.values())
        expired = sum(map(len, self.expired.values()))
        did = "dry run: " if self.dry_run else "" if self.done else "not done: "
        planned = (
            f"{did}{expired:,} {'version expires' if expired == 1 else 'versions expire'}, "
            f"{files:,} {'file' if files == 1 else 'files'} to delete ({size:,} bytes)"
        )
        reported = planned.replace("expires", "expired").replace("expire,", "expired,").replace("to delete", "deleted")
        return "\n".join([reported if self.done and not self.dry_run else planned, *map(str, self.problems)])

    @property
    def versions(self) -> int:
        """The number of versions that expired."""
        return sum(len(numbers) for numbers in self.expired.values())

    @property
    def files(self) -> int:
        """The number of files that are garbage."""
        return sum(count.files for count in self.garbage.values())

    @property
    def bytes(self) -> int:
        """The size of the garbage in bytes."""
        return sum(count.bytes for count in self.garbage.values())


def counted(files: Mapping[Kind, Sequence[ObjectInfo]]) -> dict[str, FileCount]:
    """Count files by kind; leave out kinds without files."""
    return {
        str(kind): FileCount(files=len(entries), bytes=sum(entry.size for entry in entries))
        for kind, entries in files.items()
        if entries
    }


def by_branch(versions: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Group versions by branch, oldest first."""
    numbers_by_branch: dict[str, list[int]] = {}
    for branch, number in sorted(versions):
        numbers_by_branch.setdefault(branch, []).append(number)
    return {branch: tuple(numbers) for branch, numbers in numbers_by_branch.items()}
