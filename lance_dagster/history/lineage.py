"""What a version contains, and what two versions have in common.

A version contains the branches it lies on, each up to where the next one was forked, and the branches that were
merged into it, each up to the version that was merged. Version numbers go on counting when a branch is forked, so one
number for each branch says all of it. A merge records these numbers in the table metadata of its result; a branch
inherits the records of the version it was forked from.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lance_dagster.changes.sides import Change
from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN, branch_file
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import MERGE, MERGED_BRANCH, MERGED_PREFIX, Transaction
from lance_dagster.history.refs import Refs
from lance_dagster.history.versions import State, Versions

_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A stretch of history: a branch, its id, the version it was forked from and the newest one that counts."""

    branch: str
    id: str
    forked: int
    number: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A version with its own branch and those below it, main last, and how far it contains each branch, by id."""

    state: State
    lines: tuple[Line, ...]
    contained: Mapping[str, int]

    @property
    def id(self) -> str:
        """The id of the version's own branch."""
        return self.lines[0].id

    def contains(self, other: "Lineage") -> bool:
        """Tell whether everything another version has is in this one."""
        return self.contained.get(other.id, -1) >= other.state.number


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened between two versions, oldest first, and every fragment that was there at some time."""

    changes: Sequence[Change]
    fragments: Mapping[frozenset[str], Fragment]


def lineage_of(state: State, refs: Refs) -> Lineage:
    """Find out what a version contains.

    Raises:
        InvalidInputError: Its branch, or one below it, was deleted.
    """
    lines: list[Line] = []
    branch, number = state.branch, state.number
    while branch != MAIN:
        found = refs.branch(branch)
        if any(line.branch == branch for line in lines):
            path = f"{refs.store.uri}/{branch_file(branch)}"
            raise CorruptFileError(path, f"branch {branch!r} is said to be forked from itself, through others")
        if found is None:
            raise InvalidInputError(f"branch {branch!r} of {refs.store.uri} is gone, and with it where it was forked")
        if found.parent_version > number:
            path = f"{refs.store.uri}/{branch_file(branch)}"
            raise CorruptFileError(path, f"it says {branch}@{number} comes after {found.parent}")
        lines.append(Line(branch=branch, id=found.id, forked=found.parent_version, number=number))
        branch, number = found.parent_branch, found.parent_version
    lines.append(Line(branch=MAIN, id=MAIN, forked=0, number=number))
    contained = {branch_id: merged for branch_id, (merged, _) in _records(state).items()}
    for line in lines:
        contained[line.id] = max(line.number, contained.get(line.id, -1))
    return Lineage(state, tuple(lines), contained)


def new_records(source: Lineage, dest: Lineage) -> dict[str, str]:
    """Return the table metadata that says what the next version of `dest` contains when `source` is merged."""
    return {
        f"{MERGED_PREFIX}{branch_id}": f"{number}@{dest.state.number + 1}"
        for branch_id, number in source.contained.items()
        if number > dest.contained.get(branch_id, -1)
    }


def merged_as(source: Lineage, dest: Lineage, versions: Versions) -> State | None:
    """Return the version of `dest` that brought in everything `source` has, or None when there is something new.

    The newest version stands in for one that was cleaned up, or where nothing had to be brought in.
    """
    if not dest.contains(source):
        return None if changes_since(source, dest, versions).changes else dest.state
    _, number = _records(dest.state).get(source.id, (0, dest.state.number))
    line = next((line for line in reversed(dest.lines) if number <= line.number), dest.lines[0])
    try:
        return versions.load(line.branch, number)
    except VersionNotFoundError:
        return dest.state


def merge_base(source: Lineage, dest: Lineage, refs: Refs, versions: Versions) -> State:
    """Return the newest version that both contain.

    Raises:
        VersionNotFoundError: It was cleaned up.
    """
    branches = {line.id: line.branch for line in (*source.lines, *dest.lines)}
    shared = source.contained.keys() & dest.contained.keys() & branches.keys()
    best: Lineage | None = None
    for branch_id in sorted(shared):
        number = min(source.contained[branch_id], dest.contained[branch_id])
        place = _load(branches[branch_id], number, (source, dest), versions)
        found = lineage_of(place, refs)
        if best is None or found.contains(best):
            best = found
    if best is None:
        raise InvalidInputError(f"{source.state} and {dest.state} of {refs.store.uri} have no version in common")
    return best.state


def fork_point(source: Lineage, dest: Lineage, versions: Versions) -> State:
    """Return the version from which on the branches of `source` are not part of `dest`.

    It is the merge base, unless the source took in a newer version of the dest meanwhile.
    """
    line = next(line for line in source.lines if line.id in dest.contained)
    return _load(line.branch, min(line.number, dest.contained[line.id]), (source, dest), versions)


def changes_since(of: Lineage, other: Lineage, versions: Versions) -> Stretch:
    """Return what `of` did that `other` does not contain.

    Versions that were cleaned up are a change without transaction. A merge of what `other` contains is no change.
    """
    changes: list[Change] = []
    fragments: dict[frozenset[str], Fragment] = {}
    for line in reversed(of.lines):
        after = max(line.forked, other.contained.get(line.id, -1))
        present = versions.numbers(line.branch) if after < line.number else ()
        expected = after + 1
        for number in (*(number for number in present if after < number <= line.number), line.number + 1):
            if number > expected:
                # One change for all of them: numbers may be far apart.
                changes.append(Change(version=f"{line.branch}@{expected}", writer="somebody", transaction=None))
            expected = number + 1
            if number > line.number:
                break
            state = versions.load(line.branch, number)
            fragments.update((fragment.file_names, fragment) for fragment in state.manifest.fragments)
            if not _merges_from(state.transaction, other):
                changes.append(Change(version=str(state), writer=state.writer, transaction=state.transaction))
    return Stretch(changes, fragments)


def _records(state: State) -> dict[str, tuple[int, int]]:
    """Return by branch id which version was merged last, and as which version."""
    found: dict[str, tuple[int, int]] = {}
    for key, record in state.manifest.table_metadata.items():
        merged, _, dest = record.partition("@")
        if key.startswith(MERGED_PREFIX) and _NUMBER.fullmatch(merged) and _NUMBER.fullmatch(dest):
            found[key.removeprefix(MERGED_PREFIX)] = int(merged), int(dest)
    return found


def _merges_from(transaction: Transaction | None, other: Lineage) -> bool:
    properties = transaction.properties if transaction else {}
    number = properties.get(MERGE, "").rpartition("@")[2]
    return bool(_NUMBER.fullmatch(number)) and other.contained.get(properties.get(MERGED_BRANCH, ""), -1) >= int(number)


def _load(branch: str, number: int, lineages: Sequence[Lineage], versions: Versions) -> State:
    """Read a version; where it was cleaned up, the first version of a branch forked from it, which repeats it."""
    steps = (step for lineage in lineages for step in pairwise(lineage.lines))
    repeated = (child.branch for child, parent in steps if (parent.branch, child.forked) == (branch, number))
    for holder in (branch, *repeated):
        try:
            return versions.load(holder, number)
        except VersionNotFoundError:
            continue
    both = " and ".join(str(lineage.state) for lineage in lineages)
    raise VersionNotFoundError(f"{branch}@{number}, which {both} have in common, was cleaned up")
