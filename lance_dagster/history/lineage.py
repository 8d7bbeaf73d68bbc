"""What merges write down in the table metadata of their result: which versions are in it, and which ids are whose.

The key holds the id of a branch, the value the last version of it that was merged and the version that brought it; then
the ids that rows and fields of that branch have here where they are others.

What a version contains, and what two versions have in common.

A version contains the branches it lies on, each up to where the next one was forked, and the branches that were
merged into it, each up to the version that was merged. Version numbers go on counting when a branch is forked, so one
number for each branch says all of it. A merge records these numbers in the table metadata of its result; a branch
inherits the records of the version it was forked from.

How far two versions are apart: how many versions each contains that the other does not.

A version contains each branch up to some number, so the lists of version names tell; no version is opened but the two.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN, branch_file
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import MERGE, MERGED_BRANCH, MERGED_PREFIX, Restore, Transaction
from lance_dagster.history.refs.ref_store import DELETING, Branch, Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.claims import Change
from lance_dagster.transactions.row_id_spaces import (
    Alias,
    RowSpace,
    decode_aliases,
    decode_fields,
    encode_aliases,
    encode_fields,
)

NO_VERSION = 0
"""Stands in a record of rows that came to a version by themselves, without the version they are from."""
_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecord:
    """What a merge wrote down about a branch: its last version merged, as which version, and what ids are here.

    `aliases` are those of its rows, `fields` those of its fields where they are others.
    """

    merged: int
    dest: int
    aliases: tuple[Alias, ...] = ()
    fields: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as it stands in the table metadata."""
        parts = (f"{self.merged}@{self.dest}", encode_aliases(self.aliases), encode_fields(self.fields))
        return " ".join(part for part in parts if part)


def merge_records_of(manifest: Manifest) -> dict[str, MergeRecord]:
    """Return by branch id what merges wrote down."""
    found: dict[str, MergeRecord] = {}
    for key, text in manifest.table_metadata.items():
        numbers, _, aliases = text.partition(" ")
        merged, _, dest = numbers.partition("@")
        if key.startswith(MERGED_PREFIX) and _NUMBER.fullmatch(merged) and _NUMBER.fullmatch(dest):
            known = tuple(decode_aliases(aliases)), decode_fields(aliases)
            record = MergeRecord(merged=int(merged), dest=int(dest), aliases=known[0], fields=known[1])
            found[key.removeprefix(MERGED_PREFIX)] = record
    return found


def records_for_aliases(dest: Manifest, aliases: Mapping[str, Sequence[Alias]]) -> dict[str, str]:
    """Return the table metadata that says what the ids of rows are which came without their version.

    So that a later merge of that version knows them.
    """
    known, found = merge_records_of(dest), {}
    for branch_id, new in aliases.items():
        had = known.get(branch_id, MergeRecord(merged=NO_VERSION, dest=dest.version + 1))
        found[f"{MERGED_PREFIX}{branch_id}"] = str(replace(had, aliases=(*had.aliases, *new)))
    return found


_Place = tuple[str, str, int]
"""A branch's id and name, and the number of one of its versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSegment:
    """A stretch of history: a branch, its id, the version it was forked from and the newest one that counts.

    `first` is the number of its own first version, which repeats the one it was forked from: mostly the same number.
    """

    branch: str
    id: str
    forked: int
    first: int
    number: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A version with its own branch and those below it, main last, and how far it contains each branch, by id."""

    state: State
    segments: tuple[BranchSegment, ...]
    contained: Mapping[str, int]

    @property
    def id(self) -> str:
        """The id of the version's own branch."""
        return self.segments[0].id

    def contains(self, other: "Lineage") -> bool:
        """Tell whether everything another version has is in this one."""
        return self.contained.get(other.id, -1) >= other.state.number


def lineage_of(state: State, refs: Refs) -> Lineage:
    """Find out what a version contains.

    Raises:
        InvalidInputError: Its branch, or one below it, was deleted.
    """
    segments: list[BranchSegment] = []
    branch, number = state.branch, state.number
    while branch != MAIN:
        found = refs.branch(branch)
        if any(segment.branch == branch for segment in segments):
            path = f"{refs.store.uri}/{branch_file(branch)}"
            raise CorruptFileError(path, f"branch {branch!r} is said to be forked from itself, through others")
        if found is None:
            raise InvalidInputError(f"branch {branch!r} of {refs.store.uri} is gone, and with it where it was forked")
        if found.first > number:
            path = f"{refs.store.uri}/{branch_file(branch)}"
            raise CorruptFileError(path, f"it says {branch}@{number} comes after {found.parent}")
        forked, first = found.parent_version, found.first
        segments.append(BranchSegment(branch=branch, id=found.id, forked=forked, first=first, number=number))
        branch, number = found.parent_branch, found.parent_version
    segments.append(BranchSegment(branch=MAIN, id=MAIN, forked=0, first=0, number=number))
    records = merge_records_of(state.manifest).items()
    contained = {branch_id: record.merged for branch_id, record in records if record.merged != NO_VERSION}
    for segment in segments:
        contained[segment.id] = max(segment.number, contained.get(segment.id, -1))
    return Lineage(state, tuple(segments), contained)


def records_for_merge(
    source: Lineage, dest: Lineage, base: Lineage, *, aliases: Mapping[str, Sequence[Alias]], fields: Mapping[int, int]
) -> dict[str, str]:
    """Return the table metadata that says what the next version of `dest` contains when `source` is merged.

    Args:
        source: What is merged.
        dest: What it is merged into.
        base: Their merge base. `dest` contains what it contains, though a record may be gone with its branch.
        aliases: By branch id, the ids that rows of that branch get.
        fields: By the ids of fields of the source, those they get.
    """
    known, found = merge_records_of(dest.state.manifest), {}
    theirs, own = merge_records_of(source.state.manifest), {segment.id for segment in source.segments}
    for branch_id, number in source.contained.items():
        newer = number > max(dest.contained.get(branch_id, -1), base.contained.get(branch_id, -1))
        if not newer and branch_id not in aliases:
            continue
        had = known.get(branch_id)
        record = had or MergeRecord(merged=number, dest=dest.state.number + 1)
        if newer:
            there = theirs[branch_id].fields if branch_id in theirs and branch_id not in own else {}
            # The ids of a branch of the source are those of the source, unless a merge into it said others.
            together = {**fields, **{one: fields.get(two, two) for one, two in there.items()}}
            record = replace(record, merged=number, dest=dest.state.number + 1, fields={**record.fields, **together})
        record = replace(record, aliases=(*record.aliases, *aliases.get(branch_id, ())))
        found[f"{MERGED_PREFIX}{branch_id}"] = str(record)
    # Rows may have come to the source by themselves, without the version they are from.
    strays = {branch_id: some for branch_id, some in aliases.items() if branch_id not in source.contained}
    return found | records_for_aliases(dest.state.manifest, strays)


def version_that_merged(source: Lineage, dest: Lineage, versions: Versions) -> State | None:
    """Return the version of `dest` that brought in everything `source` has, or None when there is something new.

    The newest version stands in for one that was cleaned up, or where nothing had to be brought in.
    """
    if not dest.contains(source):
        return None if changes_since(source, dest, versions) else dest.state
    record = merge_records_of(dest.state.manifest).get(source.id)
    number = dest.state.number if record is None else record.dest
    segment = next((segment for segment in reversed(dest.segments) if number <= segment.number), dest.segments[0])
    try:
        return versions.load(segment.branch, number, segment.id)
    except VersionNotFoundError:
        return dest.state


def merge_base(source: Lineage, dest: Lineage, refs: Refs, versions: Versions) -> Lineage:
    """Return the newest version that both contain.

    Where branches were merged crosswise there may be several, none of which contains another; then it is the one of
    the branch that comes first: the rows of the others are known by their ids.

    Raises:
        VersionNotFoundError: It was cleaned up.
    """
    segments = {segment.id: segment for segment in (*source.segments, *dest.segments)}
    both = {
        own: number
        for own in source.contained.keys() & dest.contained.keys()
        # The first version of a branch repeats one of its parent's.
        if (number := min(source.contained[own], dest.contained[own]))
        > (segments[own].forked if own in segments else -1)
        or own == MAIN
    }
    names = {own: segment.branch for own, segment in segments.items()}
    best = _newest(None, _places(both, names), (source, dest), (refs, versions))
    if best is None or any(number > best.contained.get(own, -1) for own, number in both.items()):
        # A third branch was merged into both. When it is gone, its rows are known by their ids all the same.
        left = (branch for branch in refs.branches().values() if branch.state != DELETING)
        others = {branch.id: branch.name for branch in left if branch.id not in names}
        best = _newest(best, _places(both, others), (source, dest), (refs, versions))
    if best is None:
        raise InvalidInputError(f"{source.state} and {dest.state} of {refs.store.uri} have no version in common")
    return best


def _places(numbers: Mapping[str, int], names: Mapping[str, str]) -> list[_Place]:
    return [(own, names[own], numbers[own]) for own in numbers.keys() & names.keys()]


def _newest(
    best: Lineage | None, places: Iterable[_Place], sides: tuple[Lineage, Lineage], of: tuple[Refs, Versions]
) -> Lineage | None:
    for place in sorted(places):
        found = lineage_of(_load(place, sides, of[1]), of[0])
        if best is None or found.contains(best):
            best = found
    return best


def is_criss_cross(source: Lineage, dest: Lineage, base: Lineage) -> bool:
    """Tell whether both sides contain versions that their merge base does not: merges went crosswise."""
    shared = source.contained.keys() & dest.contained.keys()
    forked = {segment.id: segment.forked for segment in (*source.segments, *dest.segments)}
    return any(
        (number := min(source.contained[own], dest.contained[own])) > base.contained.get(own, -1)
        and number > forked.get(own, -1)
        for own in shared
    )


def last_common(one: Lineage, other: Lineage) -> int:
    """Return the number up to which two versions lie on the same line; 0 when they never did."""
    numbers = {segment.id: segment.number for segment in one.segments}
    return max(
        (min(segment.number, numbers[segment.id]) for segment in other.segments if segment.id in numbers), default=0
    )


def field_ids(of: Lineage, base: Lineage) -> Mapping[int, int] | None:
    """Return which fields of a version on another branch have other ids here; None when no merge wrote it down."""
    record = merge_records_of(of.state.manifest).get(base.id)
    return None if record is None or record.merged == NO_VERSION else record.fields


def row_space(
    of: Lineage, versions: Versions, changes: Sequence[Change] = (), anchor: Manifest | None = None
) -> RowSpace:
    """Return where the row ids of a version come from.

    Args:
        of: The version.
        versions: Where versions are read.
        changes: Some of what was done on its line, oldest first. Records of branches that are gone are not carried on
            for ever; what they said is found there.
        anchor: A version of its line from before that, with the records it had.

    Raises:
        VersionNotFoundError: A version that one of its branches was forked from was cleaned up, on both branches.
    """
    manifest = of.state.manifest
    if not manifest.stable_row_ids:
        return RowSpace(())
    segments = [(MAIN, 0)]
    for child, parent in reversed(list(pairwise(of.segments))):
        forked = _load((parent.id, parent.branch, child.forked), (of,), versions)
        segments.append((child.id, forked.manifest.next_row_id))
    aliases = {} if anchor is None else _aliases(anchor)
    for change in changes:
        if isinstance(change.operation, Restore):
            aliases = {} if change.after is None else _aliases(change.after)
        elif change.is_merge and change.after is not None:
            _learn(aliases, change.after)
    _learn(aliases, manifest)
    return RowSpace.of(segments, manifest.next_row_id, aliases)


def row_space_since(of: Lineage, shared: Lineage, versions: Versions) -> RowSpace:
    """Return where the row ids of a version come from, with what was recorded since one that it contains."""
    anchor, since, _ = base_and_changes(of, shared, versions)
    return row_space(of, versions, since, anchor)


def _aliases(manifest: Manifest) -> dict[str, dict[Alias, None]]:
    return {own: dict.fromkeys(record.aliases) for own, record in merge_records_of(manifest).items()}


def _learn(aliases: dict[str, dict[Alias, None]], manifest: Manifest) -> None:
    """Add what a later version of the same line says: an id means the same row for good, so nothing is taken back."""
    for own, more in _aliases(manifest).items():
        aliases[own] = aliases.get(own, {}) | more


def changes_since(of: Lineage, other: Lineage, versions: Versions) -> list[Change]:
    """Return what `of` did that `other` does not contain, oldest first.

    Versions that were cleaned up are a change without transaction. A merge of what `other` contains is no change.
    """
    return [
        change
        for segment in reversed(of.segments)
        for change in _changes(segment, max(segment.first, other.contained.get(segment.id, -1)), versions)
        if not _merges_from(change.transaction, other)
    ]


def base_and_changes(of: Lineage, base: Lineage, versions: Versions) -> tuple[Manifest | None, list[Change], bool]:
    """Return a merge base as the line of a version has it, and all the line did since.

    Returns:
        The base itself, as the first version of the branch repeats it, or as the merge that brought it in left it;
        None when that cannot be looked at. What followed, oldest first. Whether fragments have the ids of the base.
    """
    segments = list(reversed(of.segments))
    on_line = next(
        (segment for segment in segments if segment.id == base.id and base.state.number <= segment.number), None
    )
    if on_line is not None:
        after = segments[segments.index(on_line) :]
        repeats = after[1] if len(after) > 1 and after[1].forked == base.state.number else None
        anchor = base.state.manifest if repeats is None else _repeated(repeats, base.state, versions)
        return anchor, list(_path(after, base.state.number, versions)), True
    record = merge_records_of(of.state.manifest).get(base.id)
    if record is None or record.merged != base.state.number:
        return None, [], False
    segment = next(segment for segment in segments if record.dest <= segment.number)
    try:
        merged = versions.load(segment.branch, record.dest, segment.id)
    except VersionNotFoundError:
        return None, [], False
    return merged.manifest, list(_path(segments[segments.index(segment) :], record.dest, versions)), False


def _repeated(segment: BranchSegment, base: State, versions: Versions) -> Manifest:
    try:
        return versions.load(segment.branch, segment.first, segment.id).manifest
    except VersionNotFoundError:
        return base.manifest


def _path(segments: Sequence[BranchSegment], after: int, versions: Versions) -> Iterator[Change]:
    for segment in segments:
        yield from _changes(segment, max(after, segment.first), versions)


def _changes(segment: BranchSegment, after: int, versions: Versions) -> Iterator[Change]:
    """Return what a branch did after one of its versions; what was cleaned up as one change, however much it was."""
    expected, before = after + 1, None
    for state in _present(segment, after, versions):
        if state.number > expected:
            yield Change(version=f"{segment.branch}@{expected}", writer="somebody", transaction=None)
            before = None
        elif before is None:
            before = _before(segment, state.number, versions)
        expected = state.number + 1
        yield Change(
            version=str(state),
            writer=state.writer,
            transaction=state.transaction,
            before=before,
            after=state.manifest,
        )
        before = state.manifest
    if expected <= segment.number:
        yield Change(version=f"{segment.branch}@{expected}", writer="somebody", transaction=None)


def _present(segment: BranchSegment, after: int, versions: Versions) -> Iterator[State]:
    """Read the versions of a branch after one of them, oldest first; they are listed only where one is missing."""
    missing = segment.number + 1
    for number in range(after + 1, segment.number + 1):
        state = versions.find(segment.branch, number, segment.id)
        if state is None:
            missing = number
            break
        yield state
    for number in versions.numbers(segment.branch) if missing <= segment.number else ():
        if missing < number <= segment.number:
            yield versions.load(segment.branch, number, segment.id)


def _before(segment: BranchSegment, number: int, versions: Versions) -> Manifest | None:
    try:
        return versions.load(segment.branch, number - 1, segment.id).manifest
    except VersionNotFoundError:
        return None


def _merges_from(transaction: Transaction | None, other: Lineage) -> bool:
    properties = transaction.properties if transaction else {}
    number = properties.get(MERGE, "").rpartition("@")[2]
    return bool(_NUMBER.fullmatch(number)) and other.contained.get(properties.get(MERGED_BRANCH, ""), -1) >= int(number)


def _load(place: _Place, lineages: Sequence[Lineage], versions: Versions) -> State:
    """Read a version; where it was cleaned up, the first version of a branch forked from it, which repeats it."""
    steps = (step for lineage in lineages for step in pairwise(lineage.segments))
    segment, branch, number = place
    forks = (child for child, parent in steps if (parent.id, child.forked) == (segment, number))
    repeated = ((child.id, child.branch, child.first) for child in forks)
    for own, name, count in (place, *repeated):
        try:
            return versions.load(name, count, own)
        except VersionNotFoundError:
            continue
    both = " and ".join(str(lineage.state) for lineage in lineages)
    raise VersionNotFoundError(f"{branch}@{number}, which {both} have in common, was cleaned up")


class AheadBehind:
    """Counts versions by name; each branch is listed once."""

    def __init__(self, branches: Mapping[str, Branch], versions: Versions) -> None:
        """Look at the branches there are, by name."""
        self._branches = {branch.id: branch for branch in branches.values()}
        self._versions = versions
        self._numbers: dict[str, list[int]] = {}

    def ahead(self, of: Lineage, other: Lineage) -> int:
        """Count the versions that one contains and the other does not.

        The first version of a branch repeats the one it was forked from and does not count, nor does what was cleaned
        up, nor what lay on branches that are gone.
        """
        return sum(
            self._between(branch_id, other.contained.get(branch_id, -1), number)
            for branch_id, number in of.contained.items()
        )

    def numbers(self, branch: str) -> list[int]:
        """Return the numbers of the versions of a branch, by its name; listed once."""
        if branch not in self._numbers:
            self._numbers[branch] = self._versions.numbers(branch)
        return self._numbers[branch]

    def _between(self, branch_id: str, after: int, up_to: int) -> int:
        if after >= up_to:
            return 0
        branch = self._branches.get(branch_id)
        if branch is None and branch_id != MAIN:
            return 0
        name, first = (MAIN, 0) if branch is None else (branch.name, branch.first)
        return sum(max(after, first) < number <= up_to for number in self.numbers(name))
