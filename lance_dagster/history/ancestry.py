"""Which version was made from which, told by names as far as names tell.

Along a branch the version before is the one of the next lower number, so a list of file names is enough; only merges
have to be looked into. The first version of a branch repeats the version it was forked from, number included. It is a
version of its own in a log, and the same commit where parents are counted.

Merges, moves of tags and pickled copies write a version down as `branch@n`, and the id of the branch beside it:
branches are renamed, and a name may be given to another one later. The id tells which one is meant.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN, branch_file
from lance_dagster.format.transaction import MERGED_BRANCH
from lance_dagster.history.refs.ref_store import READY, Branch, Refs
from lance_dagster.history.versions import Version, Versions

_FIRST_AND_SECOND = 2
_VERSION = re.compile(r"(.+)@([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class VersionRef:
    """A branch and a number, whether or not there is such a version."""

    branch: str
    number: int

    def __str__(self) -> str:
        """Return the ref expression that names the version."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A version as it was written down: `branch@n`, and the id of the branch, empty where that is not known."""

    ref: str
    branch_id: str = ""

    def __str__(self) -> str:
        """Return it as it was written."""
        return self.ref

    @property
    def version_ref(self) -> VersionRef | None:
        """The branch by the name it had then, and the number; None when it cannot be read."""
        match = _VERSION.fullmatch(self.ref)
        return None if match is None else VersionRef(match[1], int(match[2]))


@dataclass(slots=True)
class Ancestry:
    """Look-ups for one question. What it finds out it keeps, so do not keep it itself."""

    refs: Refs
    versions: Versions
    _numbers: dict[str, list[int]] = field(default_factory=dict)
    _branches: dict[str, Branch | None] = field(default_factory=dict)
    _names: dict[str, str] | None = None
    _described: dict[VersionRef, Version] = field(default_factory=dict)

    def numbers(self, branch: str) -> list[int]:
        """Return the numbers of a branch's versions, ascending."""
        if branch not in self._numbers:
            found = self.branch(branch)
            # Below its first one lies what a late writer put on a branch that had the name before.
            first = 0 if found is None else found.first
            self._numbers[branch] = [number for number in self.versions.numbers(branch) if number >= first]
        return self._numbers[branch]

    def branch(self, name: str) -> Branch | None:
        """Return what is stored about a branch; None for `main`, and for one that does not exist.

        Raises:
            CorruptFileError: It is said to be forked from itself, through others.
        """
        if name not in self._branches:
            line: list[str] = []
            at = name
            while at != MAIN and at not in self._branches:
                found = self._branches[at] = self.refs.branch(at)
                line.append(at)
                at = MAIN if found is None else found.parent_branch
            if at in line:
                path = f"{self.refs.store.uri}/{branch_file(name)}"
                raise CorruptFileError(path, f"branch {name!r} is said to be forked from itself, through others")
        return self._branches.get(name)

    def id_of(self, name: str) -> str | None:
        """Return the id of a branch, or None when it does not exist."""
        found = self.branch(name)
        return MAIN if name == MAIN else None if found is None else found.id

    def exists(self, place: VersionRef) -> bool:
        """Tell whether there is such a version."""
        return self._below(place.branch, place.number) == place.number

    def describe(self, place: VersionRef) -> Version:
        """Read a version in short."""
        found = self._described.get(place)
        if found is None:
            found = self.versions.describe_number(place.branch, place.number, self.numbers(place.branch))
            self._described[place] = found
        return found

    def before(self, place: VersionRef) -> VersionRef | None:
        """Return the next older version that is there, on the same branch or below its fork; None when none is.

        Where a clean-up left gaps, this goes on behind them.
        """
        number = self._below(place.branch, place.number - 1)
        if number is not None:
            return VersionRef(place.branch, number)
        branch = self.branch(place.branch)
        while branch is not None:
            number = self._below(branch.parent_branch, branch.parent_version)
            if number is not None:
                return VersionRef(branch.parent_branch, number)
            branch = self.branch(branch.parent_branch)
        return None

    def merged(self, version: Version) -> VersionRef | None:
        """Return the version a merge brought in; None when it is gone, or `version` is no merge."""
        if len(version.parents) < _FIRST_AND_SECOND:
            return None
        place = self.resolve_recorded(RecordedVersion(version.parents[1], version.properties.get(MERGED_BRANCH, "")))
        return place if place is not None and self.exists(place) else None

    def resolve_recorded(self, written: RecordedVersion) -> VersionRef | None:
        """Return a version that was written down by the name its branch has today; None when the branch is gone.

        Whether the branch has that number still is not looked at.
        """
        place = written.version_ref
        if place is not None and written.branch_id and self.id_of(place.branch) != written.branch_id:
            # Renamed, or gone: a branch that was made under the name since has other versions.
            name = self._name_of(written.branch_id)
            place = None if name is None else VersionRef(name, place.number)
        return place if place is not None and self.id_of(place.branch) is not None else None

    def no_merged(self, version: Version) -> VersionNotFoundError:
        """Return the error that says that what a merge brought in is gone."""
        return VersionNotFoundError(
            f"{version.parents[1]}, which was merged as {version} of {self.versions.store.uri}, is gone: its branch "
            "was deleted, or it was cleaned up"
        )

    def gone(self, written: RecordedVersion) -> VersionNotFoundError:
        """Return the error that says that the branch of a version which was written down is gone."""
        name = written.ref.rpartition("@")[0]
        other = ", and another one has its name" if self.id_of(name) is not None else ""
        return VersionNotFoundError(f"{written} of {self.refs.store.uri} is gone: its branch was deleted{other}")

    def fork_of(self, place: VersionRef) -> VersionRef:
        """Return the version that the first one of a branch repeats; any other version is returned as it is.

        The version it leads to may have been cleaned up.
        """
        branch = self.branch(place.branch)
        while branch is not None and branch.first == place.number:
            place = VersionRef(branch.parent_branch, branch.parent_version)
            branch = self.branch(place.branch)
        return place

    def parent(self, place: VersionRef, which: int) -> VersionRef:
        """Return the first or second parent of a version that is there, the first of a branch counting as its fork.

        Raises:
            VersionNotFoundError: The parent was cleaned up, or there is none since this is the first version.
            InvalidInputError: It has fewer parents.
        """
        made = self.fork_of(place)
        if which == 1 and self.exists(VersionRef(made.branch, made.number - 1)):
            return self.repeated(VersionRef(made.branch, made.number - 1))
        # The fork may be gone, but the branch's first version holds the same, its merges excepted.
        version = self.describe(made if self.exists(made) else place)
        if which == 1 and made == VersionRef(version.branch, version.number) and not version.cut and version.parents:
            return self.repeated(self._named(version.parents[0], version))
        merged = self.merged(version) if which == _FIRST_AND_SECOND else None
        if merged is not None:
            return self.repeated(merged)
        raise self._no_parent(made, version, which)

    def _no_parent(self, made: VersionRef, version: Version, which: int) -> Exception:
        where = self.versions.store.uri
        count = len(version.parents)
        if made == VersionRef(version.branch, version.number) and which > max(count, 1):
            has = "no parent" if not count else "one parent" if count == 1 else f"{count} parents"
            return InvalidInputError(f"{version} of {where} has {has}, so there is no '^{which}' of it")
        if made == VersionRef(version.branch, version.number) and which == _FIRST_AND_SECOND:
            return self.no_merged(version)
        if not count:
            return VersionNotFoundError(f"{version} is the first version of {where}; nothing comes before it")
        older = self.before(made)
        left = f"the newest version before it that is left is {older}" if older else "no older version is left"
        return VersionNotFoundError(
            f"the history of {version} of {where} is cut: the version it was made from was cleaned up; {left}"
        )

    def repeated(self, place: VersionRef) -> VersionRef:
        """Return the version that this one repeats, unless that is gone."""
        fork = self.fork_of(place)
        return fork if self.exists(fork) else place

    def _below(self, branch: str, number: int) -> int | None:
        numbers = self.numbers(branch)
        place = bisect_right(numbers, number)
        return numbers[place - 1] if place else None

    def _named(self, text: str, version: Version) -> VersionRef:
        place = RecordedVersion(text).version_ref
        if place is None:
            raise CorruptFileError(f"{self.versions.store.uri}/{version}", f"it says it was made from {text!r}")
        return place

    def _name_of(self, branch_id: str) -> str | None:
        if self._names is None:
            # One that is made by renaming has the id of the other one, and not yet all its versions.
            ready = (branch for branch in self.refs.branches().values() if branch.state == READY)
            self._names = {branch.id: branch.name for branch in ready}
        return self._names.get(branch_id)
