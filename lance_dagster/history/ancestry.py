"""Find the parents of versions: which version was made from which, from names as far as possible.

Along a branch the first parent is the version of the next lower number, so a list of file names is enough. Only a
merge has to be read, since its second parent is recorded in its transaction. The first version of a branch repeats the
fork point. A log shows it as a version of its own; where parents are counted (`~`, `^`) it is the same commit.

Merges, moves of tags and pickled previews record a version as `branch@n` together with the id of the branch. Branches
are renamed, and names are given to other branches later; the id tells which branch is meant.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN, branch_file
from lance_dagster.format.transaction import MERGED_BRANCH
from lance_dagster.history.refs.branch_fence import dropped_versions
from lance_dagster.history.refs.ref_files import READY, Branch
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import Version, Versions

_FIRST_AND_SECOND = 2
_VERSION = re.compile(r"(.+)@([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class VersionRef:
    """A branch and a version number; the version need not exist."""

    branch: str
    number: int

    def __str__(self) -> str:
        """Return the ref expression that names the version."""
        return f"{self.branch}@{self.number}"


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A version as it was recorded: `branch@n`, and the id of the branch, empty where that is not known."""

    ref: str
    branch_id: str = ""

    def __str__(self) -> str:
        """Return the version as it was recorded."""
        return self.ref

    @property
    def version_ref(self) -> VersionRef | None:
        """The branch by the name it had then, and the number; None when the text has another form."""
        match = _VERSION.fullmatch(self.ref)
        return None if match is None else VersionRef(match[1], int(match[2]))


@dataclass(slots=True)
class Ancestry:
    """Look up parents for one operation. Results are cached without expiry, so each operation makes its own."""

    refs: Refs
    versions: Versions
    _numbers: dict[str, list[int]] = field(default_factory=dict)
    # The newest version of a branch, listed before the file of the branch was read.
    _newest: dict[str, int] = field(default_factory=dict)
    _branches: dict[str, Branch | None] = field(default_factory=dict)
    # This is filled only where a recorded name does not fit its id, since it takes reading every branch.
    _names: dict[str, str] | None = None
    _described: dict[VersionRef, Version] = field(default_factory=dict)

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of a branch's versions, ascending."""
        if name not in self._numbers:
            branch = self.branch(name)
            # A version below the first one was put by a late writer to an earlier branch of the name.
            first = 0 if branch is None else branch.first
            self._numbers[name] = [number for number in self.versions.numbers(name) if number >= first]
        return self._numbers[name]

    def list_newest(self, name: str) -> None:
        """List the newest version of a name that may be a branch; call this before its file is read."""
        newest = self.versions.newest(name) if self.refs.branches.may_have(name) else None
        if newest is not None:
            self._newest[name] = newest

    def newest(self, name: str) -> int | None:
        """Return the newest version of a branch; None when it has none."""
        branch = self.branch(name)
        listed = self._newest.get(name)
        if listed is not None and branch is not None and listed >= branch.first:
            return listed
        # A version below the first one was put by a late writer to an earlier branch of the name.
        self._newest.pop(name, None)
        return self.versions.newest(name)

    def branch_of(self, place: VersionRef) -> Branch | None:
        """Return the branch of a version, if its file was read after the version was listed as the newest version.

        Such a version belongs to this branch, and not to an earlier or a later branch of the name.
        """
        return self._branches.get(place.branch) if self._newest.get(place.branch) == place.number else None

    def branch(self, name: str) -> Branch | None:
        """Return a branch; None for `main`, and for a branch that does not exist.

        Raises:
            CorruptFileError: The branch files form a circle of forks.
        """
        if name not in self._branches:
            line: list[str] = []
            at = name
            # The whole chain of forks is read at once, since a walk along first parents asks for each of them anyway.
            while at != MAIN and at not in self._branches:
                branch = self._branches[at] = self.refs.branches.find(at)
                line.append(at)
                at = MAIN if branch is None else branch.parent_branch
            if at in line:
                path = f"{self.refs.store.uri}/{branch_file(name)}"
                raise CorruptFileError(path, f"branch {name!r} is said to be forked from itself, through others")
        return self._branches.get(name)

    def id_of(self, name: str) -> str | None:
        """Return the id of a branch, or None when it does not exist."""
        branch = self.branch(name)
        return MAIN if name == MAIN else None if branch is None else branch.id

    def exists(self, place: VersionRef) -> bool:
        """Tell whether there is such a version."""
        return self._newest_up_to(place.branch, place.number) == place.number

    def describe(self, place: VersionRef) -> Version:
        """Describe a version."""
        version = self._described.get(place)
        if version is None:
            # The listed numbers are passed on, so that describing many versions lists each branch once.
            version = self.versions.describe_number(place.branch, place.number, self.numbers(place.branch))
            self._described[place] = version
        return version

    def before(self, place: VersionRef) -> VersionRef | None:
        """Return the next older version that exists, on the same branch or below its fork point; None when none does.

        Versions that were cleaned up are skipped.
        """
        number = self._newest_up_to(place.branch, place.number - 1)
        if number is not None:
            return VersionRef(place.branch, number)
        branch = self.branch(place.branch)
        while branch is not None:
            number = self._newest_up_to(branch.parent_branch, branch.parent_version)
            if number is not None:
                return VersionRef(branch.parent_branch, number)
            branch = self.branch(branch.parent_branch)
        return None

    def merged(self, version: Version) -> VersionRef | None:
        """Return the merged version of a merge; None when it is gone, or when `version` is not a merge."""
        if len(version.parents) < _FIRST_AND_SECOND:
            return None
        place = self.resolve_recorded(RecordedVersion(version.parents[1], version.properties.get(MERGED_BRANCH, "")))
        return place if place is not None and self.exists(place) else None

    def resolve_recorded(self, recorded: RecordedVersion) -> VersionRef | None:
        """Return a recorded version under the present name of its branch; None when the branch is gone.

        Whether that version still exists is not checked.
        """
        place = recorded.version_ref
        if place is not None and recorded.branch_id and self.id_of(place.branch) != recorded.branch_id:
            # The branch was renamed or deleted. A branch that has the name today has other versions.
            name = self._name_of_branch_id(recorded.branch_id)
            place = None if name is None else VersionRef(name, place.number)
        return place if place is not None and self.id_of(place.branch) is not None else None

    def merged_version_gone(self, version: Version) -> VersionNotFoundError:
        """Return the error for a merged version that is gone."""
        return VersionNotFoundError(
            f"{version.parents[1]}, which was merged as {version} of {self.versions.store.uri}, is gone: its branch "
            "was deleted, or it was cleaned up"
        )

    def recorded_version_gone(self, recorded: RecordedVersion) -> VersionNotFoundError:
        """Return the error for a recorded version whose branch is gone."""
        name = recorded.ref.rpartition("@")[0]
        successor = ", and another branch has its name" if self.id_of(name) is not None else ""
        return VersionNotFoundError(f"{recorded} of {self.refs.store.uri} is gone: its branch was deleted{successor}")

    def fork_of(self, place: VersionRef) -> VersionRef:
        """Return the fork point that the first version of a branch repeats; return any other version unchanged.

        The fork point may have been cleaned up.
        """
        branch = self.branch(place.branch)
        while branch is not None and branch.first == place.number:
            place = VersionRef(branch.parent_branch, branch.parent_version)
            branch = self.branch(place.branch)
        return place

    def parent(self, place: VersionRef, which: int) -> VersionRef:
        """Return a parent of a version that exists; the first version of a branch counts as its fork point.

        Raises:
            VersionNotFoundError: The parent was cleaned up, or this is the first version of the table.
            InvalidInputError: The version has fewer parents.
        """
        origin = self.fork_of(place)
        branch = self.branch(origin.branch)
        # An interrupted reset has left the versions before it; its transaction says which older version is its parent.
        dropped = None if branch is None else dropped_versions(branch)
        named = dropped is None or origin.number - 1 not in dropped
        if which == 1 and named and self.exists(VersionRef(origin.branch, origin.number - 1)):
            return self.repeated(VersionRef(origin.branch, origin.number - 1))
        # Where the fork point was cleaned up, the first version of the branch stands in for it: it has the same
        # content, but its transaction is the fork, so the parents of a merge cannot be told from it.
        version = self.describe(origin if self.exists(origin) else place)
        if which == 1 and origin == VersionRef(version.branch, version.number) and not version.cut and version.parents:
            return self.repeated(self._parse_parent(version.parents[0], version))
        merged = self.merged(version) if which == _FIRST_AND_SECOND else None
        if merged is not None:
            return self.repeated(merged)
        raise self._no_parent(origin, version, which)

    def _no_parent(self, origin: VersionRef, version: Version, which: int) -> Exception:
        where = self.versions.store.uri
        count = len(version.parents)
        if origin == VersionRef(version.branch, version.number) and which > max(count, 1):
            has = "no parent" if not count else "one parent" if count == 1 else f"{count} parents"
            return InvalidInputError(f"{version} of {where} has {has}, so it has no '^{which}'")
        if origin == VersionRef(version.branch, version.number) and which == _FIRST_AND_SECOND:
            return self.merged_version_gone(version)
        if not count:
            return VersionNotFoundError(f"{version} is the first version of {where}; nothing comes before it")
        # This is not an error of the caller: the history exists in part, and the message says where it continues.
        older = self.before(origin)
        remaining = f"the newest version before it that is left is {older}" if older else "no older version is left"
        return VersionNotFoundError(
            f"the history of {version} of {where} is cut: the version it was made from was cleaned up; {remaining}"
        )

    def repeated(self, place: VersionRef) -> VersionRef:
        """Return the fork point that a version repeats, unless it was cleaned up."""
        fork = self.fork_of(place)
        return fork if self.exists(fork) else place

    def _newest_up_to(self, branch: str, number: int) -> int | None:
        numbers = self.numbers(branch)
        place = bisect_right(numbers, number)
        return numbers[place - 1] if place else None

    def _parse_parent(self, text: str, version: Version) -> VersionRef:
        place = RecordedVersion(text).version_ref
        if place is None:
            raise CorruptFileError(f"{self.versions.store.uri}/{version}", f"it says it was made from {text!r}")
        return place

    def _name_of_branch_id(self, branch_id: str) -> str | None:
        if self._names is None:
            # A rename in progress: both files carry the id, and the new branch does not have all versions yet.
            ready = (branch for branch in self.refs.branches.all().values() if branch.state == READY)
            self._names = {branch.id: branch.name for branch in ready}
        return self._names.get(branch_id)
