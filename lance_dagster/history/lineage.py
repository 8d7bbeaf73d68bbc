"""The lineage of versions: what a version contains, what two versions have in common, and what merges record.

A version contains every version that went into it. No graph has to be walked to tell which:

- On its own branch and on the branches below the forks it contains everything up to some number, since each version of
  a branch is made from the version before it.
- A merge records in the table metadata of its result, under the id of each branch that came in, the last version of
  that branch (`MergeRecord`). Later versions carry the records on, and a branch inherits the records of its fork point.

So one number for each branch id describes all of it (`Lineage.contained`), such as {main: 8, run/7: 3} for a version
`main@8` into which `run/7@3` was merged. "A contains B" is a comparison of two numbers, the merge base lies at the
lower of two numbers (`history.merge_base`), and ahead/behind counts listed names.

Invariants and traps:

- Records are keyed by branch id, never by name: names are reused and changed.
- The first version of a branch repeats its fork point under the name of the branch. Both are one commit, so counting
  starts above the first version, and a merge base on the parent may be read from the branch when clean-up removed the
  original.
- Version numbers are comparable on one branch only. Comparing numbers of two branches says nothing.
- A version that was cleaned up counts as a change of unknown content, never as no change: a merge that overlooked an
  overwrite there would double or lose rows.
- Rows can come in without their version, by a pick. Then the record holds `NO_VERSION` and only tells which ids those
  rows have here.
- `Restore` brings old table metadata back and so drops newer records. That is right: the content they describe is
  gone too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

from lance_dagster.errors import CorruptFileError, InvalidInputError, VersionNotFoundError
from lance_dagster.format.layout import MAIN, branch_file
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import (
    MERGE,
    MERGE_STRATEGY,
    MERGED_BRANCH,
    MERGED_PREFIX,
    Restore,
    Transaction,
    reset_target,
)
from lance_dagster.history.inventory import newest_expired_copy
from lance_dagster.history.refs.ref_files import Branch
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.store import put_once
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import (
    Alias,
    RowSpace,
    decode_aliases,
    decode_fields,
    encode_aliases,
    encode_fields,
)
from lance_dagster.transactions.taken_back import mark_taken_back

NO_VERSION = 0
"""The merged version in the record of a branch of which only single rows came in, by picks."""
_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecord:
    """The record of a merge about one merged branch.

    Attributes:
        merged: The last version of the branch that was merged, or `NO_VERSION`.
        dest: The version of the dest branch that the merge made.
        aliases: The row ids that rows of the branch have here, where they differ.
        fields: The field ids that fields of the branch have here, where they differ.
    """

    merged: int
    dest: int
    aliases: tuple[Alias, ...] = ()
    fields: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the value that is stored in the table metadata."""
        parts = (f"{self.merged}@{self.dest}", encode_aliases(self.aliases), encode_fields(self.fields))
        return " ".join(part for part in parts if part)


def merge_records_of(manifest: Manifest) -> dict[str, MergeRecord]:
    """Return the records of merges in a manifest, by branch id; malformed entries are skipped."""
    records = (
        (key.removeprefix(MERGED_PREFIX), _parsed_record(text))
        for key, text in manifest.table_metadata.items()
        if key.startswith(MERGED_PREFIX)
    )
    return {branch_id: record for branch_id, record in records if record is not None}


# Each version carries on the records of the versions before it, so the same few texts are met again and again.
@lru_cache(maxsize=256)
def _parsed_record(text: str) -> MergeRecord | None:
    numbers, _, aliases = text.partition(" ")
    merged, _, dest = numbers.partition("@")
    # Anybody can edit table metadata, so a value of another form is not taken for a record.
    if not _NUMBER.fullmatch(merged) or not _NUMBER.fullmatch(dest):
        return None
    return MergeRecord(
        merged=int(merged), dest=int(dest), aliases=tuple(decode_aliases(aliases)), fields=decode_fields(aliases)
    )


def records_for_aliases(dest: Manifest, aliases: Mapping[str, Sequence[Alias]]) -> dict[str, str]:
    """Return the table metadata that records the ids of rows which came in without their version.

    A later merge of that version recognises the rows by them and does not add them twice.

    Args:
        dest: The head that the rows come into.
        aliases: By the id of the branch that the rows are from, the ids they get.
    """
    records, metadata = merge_records_of(dest), {}
    for branch_id, new in aliases.items():
        # Aliases are appended and never replaced: rows that came in earlier keep the ids they have.
        record = records.get(branch_id, MergeRecord(merged=NO_VERSION, dest=dest.version + 1))
        metadata[f"{MERGED_PREFIX}{branch_id}"] = str(replace(record, aliases=(*record.aliases, *new)))
    return metadata


VersionPlace = tuple[str, str, int]
"""The id and the name of a branch, and the number of one of its versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSegment:
    """The part of one branch that a version descends through.

    Attributes:
        branch: The name of the branch.
        id: The id of the branch.
        forked: The number of the fork point, on the branch below.
        first: The number of the branch's own first version, which repeats the fork point. It equals `forked`, unless
            an earlier branch had the name.
        number: The newest version of the branch that belongs to the descent.
    """

    branch: str
    id: str
    forked: int
    first: int
    number: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A version, the segments it descends through, `main` last, and by branch id how far it contains each branch."""

    state: State
    segments: tuple[BranchSegment, ...]
    contained: Mapping[str, int]

    @property
    def id(self) -> str:
        """The id of the version's own branch."""
        return self.segments[0].id

    def contains(self, lineage: "Lineage") -> bool:
        """Tell whether this version contains the version of `lineage`."""
        return self.contained.get(lineage.id, -1) >= lineage.state.number

    def has_all_of(self, lineage: "Lineage") -> bool:
        """Tell whether this version has all content of another version: contains it, or the fork point it repeats."""
        for segment in lineage.segments:
            if self.contained.get(segment.id, -1) >= segment.number:
                return True
            if segment.number != segment.first:
                return False
        return False


def lineage_of(state: State, refs: Refs, branches: Mapping[str, Branch] = MappingProxyType({})) -> Lineage:
    """Find out what a version contains; reads the files of its branch and of the branches below.

    Args:
        state: The version.
        refs: The refs of the table.
        branches: The branches that the caller has read; their files are not read again.

    Raises:
        InvalidInputError: Its branch, or a branch below it, was deleted.
        CorruptFileError: The files of the branches contradict each other.
    """
    segments: list[BranchSegment] = []
    name, number = state.branch, state.manifest.version
    while name != MAIN:
        own = state.of if name == state.branch else None
        branch = own or branches.get(name) or refs.branches.find(name)
        # Branch files can be damaged or edited by hand; without this check a circle of forks would never end.
        if any(segment.branch == name for segment in segments):
            path = f"{refs.store.uri}/{branch_file(name)}"
            raise CorruptFileError(path, f"branch {name!r} is said to be forked from itself, through others")
        if branch is None:
            raise InvalidInputError(f"branch {name!r} of {refs.store.uri} is gone, so its fork point is unknown")
        # A version below the first version of its branch was put by a late writer and belongs to no branch of the name.
        if branch.first > number:
            path = f"{refs.store.uri}/{branch_file(name)}"
            raise CorruptFileError(path, f"it says {name}@{number} comes after {branch.parent}")
        forked, first = branch.parent_version, branch.first
        segments.append(BranchSegment(branch=name, id=branch.id, forked=forked, first=first, number=number))
        name, number = branch.parent_branch, branch.parent_version
    segments.append(BranchSegment(branch=MAIN, id=MAIN, forked=0, first=0, number=number))
    records = merge_records_of(state.manifest).items()
    # A record of single rows (`NO_VERSION`) does not mean that any version is contained.
    contained = {branch_id: record.merged for branch_id, record in records if record.merged != NO_VERSION}
    # A merge may have recorded a newer version of a branch below than the fork point: after a sync, for one.
    for segment in segments:
        contained[segment.id] = max(segment.number, contained.get(segment.id, -1))
    return Lineage(state, tuple(segments), contained)


def records_for_merge(
    source: Lineage, dest: Lineage, base: Lineage, *, aliases: Mapping[str, Sequence[Alias]], fields: Mapping[int, int]
) -> dict[str, str]:
    """Return the table metadata that records what the next version of `dest` contains when `source` is merged.

    Args:
        source: The version that is merged.
        dest: The head it is merged into.
        base: Their merge base. `dest` contains all that it contains, even where the record is gone with its branch.
        aliases: By branch id, the row ids that rows of that branch get.
        fields: By the field ids of the source, the field ids of the result.
    """
    records, metadata = merge_records_of(dest.state.manifest), {}
    of_source, descent = merge_records_of(source.state.manifest), {segment.id for segment in source.segments}
    for branch_id, number in source.contained.items():
        # What the dest contains already, by itself or through the merge base, is not recorded again.
        newer = number > max(dest.contained.get(branch_id, -1), base.contained.get(branch_id, -1))
        if not newer and branch_id not in aliases:
            continue
        previous = records.get(branch_id)
        record = previous or MergeRecord(merged=number, dest=dest.state.number + 1)
        if newer:
            merged_in = branch_id in of_source and branch_id not in descent
            there = of_source[branch_id].fields if merged_in else {}
            # Branches that the source descends through share its field ids. A branch that was merged into the source
            # was translated then, so two translations follow one another.
            together = {
                **fields,
                **{origin: fields.get(translated, translated) for origin, translated in there.items()},
            }
            record = replace(record, merged=number, dest=dest.state.number + 1, fields={**record.fields, **together})
        record = replace(record, aliases=(*record.aliases, *aliases.get(branch_id, ())))
        metadata[f"{MERGED_PREFIX}{branch_id}"] = str(record)
    # Picks bring rows into the source without their version; the ids of such rows have to be recorded as well.
    strays = {branch_id: ids for branch_id, ids in aliases.items() if branch_id not in source.contained}
    return metadata | records_for_aliases(dest.state.manifest, strays)


def last_common(first: Lineage, second: Lineage) -> int:
    """Return the number of the last version that both descend from on the same branch; 0 when there is none."""
    numbers = {segment.id: segment.number for segment in first.segments}
    return max(
        (min(segment.number, numbers[segment.id]) for segment in second.segments if segment.id in numbers), default=0
    )


def field_ids(of: Lineage, base: Lineage) -> Mapping[int, int] | None:
    """Return the field ids that fields of the base's branch have in `of`; None when no merge recorded them."""
    record = merge_records_of(of.state.manifest).get(base.id)
    return None if record is None or record.merged == NO_VERSION else record.fields


def row_space(
    of: Lineage, versions: Versions, changes: Sequence[Change] = (), anchor: Manifest | None = None
) -> RowSpace:
    """Return the branch on which each range of row ids of a version was assigned.

    Args:
        of: The version.
        versions: The versions of the table.
        changes: The changes on the branch of `of` since `anchor`, oldest first. A version loses its merge records of
            deleted branches in time, and the versions before it still have them; so all versions since `anchor` are
            read.
        anchor: A version that `of` descends from; the first version whose merge records are read.

    Raises:
        VersionNotFoundError: A fork point was cleaned up, and its copy on the child branch too.
    """
    manifest = of.state.manifest
    # Without stable row ids, rows have addresses only, and no range of ids to be mapped.
    if not manifest.stable_row_ids:
        return RowSpace(())
    segments = [(MAIN, 0)]
    for child, parent in reversed(list(pairwise(of.segments))):
        # Ids from `next_row_id` at the fork on were minted on the child; the same numbers were minted again on the
        # parent.
        forked = load_or_copy((parent.id, parent.branch, child.forked), (of,), versions)
        segments.append((child.id, forked.manifest.next_row_id))
    aliases = {} if anchor is None else _aliases(anchor)
    for change in changes:
        if isinstance(change.operation, Restore):
            # A restore brings the metadata of an old version back, so the records since that version no longer hold.
            aliases = {} if change.after is None else _aliases(change.after)
        elif change.is_merge and change.after is not None:
            _learn(aliases, change.after)
    _learn(aliases, manifest)
    return RowSpace.of(segments, manifest.next_row_id, aliases)


def row_space_since(of: Lineage, shared: Lineage, versions: Versions) -> RowSpace:
    """Return the row space of a version, with everything that was recorded since `shared`, which it contains."""
    anchor, since, _ = base_and_changes(of, shared, versions)
    return row_space(of, versions, since, anchor)


def _aliases(manifest: Manifest) -> dict[str, dict[Alias, None]]:
    return {own: dict.fromkeys(record.aliases) for own, record in merge_records_of(manifest).items()}


def _learn(aliases: dict[str, dict[Alias, None]], manifest: Manifest) -> None:
    """Add the aliases of a later version: an id stands for the same row for ever, so none is ever removed."""
    for own, more in _aliases(manifest).items():
        aliases[own] = aliases.get(own, {}) | more


def side_history(of: Lineage, opposite: Lineage, base: Lineage, versions: Versions) -> SideHistory:
    """Return the history of `of` since its merge base with `opposite`, without what `opposite` contains."""
    anchor, since, same_ids = base_and_changes(of, base, versions)
    changes, merges = _apart(of, opposite, versions)
    return SideHistory(
        name=str(of.state),
        manifest=of.state.manifest,
        changes=mark_taken_back(changes, base.state.id),
        settled=_settled(merges),
        anchor=anchor,
        since=since,
        same_ids=same_ids,
        space=row_space(of, versions, since, anchor),
        common=last_common(of, base),
        fields=field_ids(of, base),
    )


def changes_since(of: Lineage, excluded: Lineage, versions: Versions) -> list[Change]:
    """Return the changes of `of` that `excluded` does not contain, oldest first.

    Versions that were cleaned up appear as one change without a transaction. A merge of a version that `excluded`
    contains already does not count as a change.
    """
    return _apart(of, excluded, versions)[0]


def has_changes(of: Lineage, excluded: Lineage, versions: Versions) -> bool:
    """Tell whether `of` may have other content than `excluded`, which does not contain `of`.

    A merge of what `excluded` contains brings nothing new, unless it settled a conflict by a strategy.
    """
    changes, merges = _apart(of, excluded, versions)
    return bool(changes or _settled(merges))


def _settled(merges: Sequence[Change]) -> list[Change]:
    return [merge for merge in merges if merge.transaction and MERGE_STRATEGY in merge.transaction.properties]


def _apart(of: Lineage, excluded: Lineage, versions: Versions) -> tuple[list[Change], list[Change]]:
    """Return the changes of `of` that `excluded` does not contain, and its merges of versions in `excluded`."""
    changes, merges = list[Change](), list[Change]()
    for segment in reversed(of.segments):
        for change in _changes(segment, max(segment.first, excluded.contained.get(segment.id, -1)), versions):
            (merges if _merges_from(change.transaction, excluded) else changes).append(change)
    return changes, merges


def base_and_changes(of: Lineage, base: Lineage, versions: Versions) -> tuple[Manifest | None, list[Change], bool]:
    """Return a merge base as the branch of a version has it, and all changes of that branch since.

    Returns:
        The manifest of the base: the base itself, the first version of a branch that repeats it, or the merge that
        brought it in; None when this version was cleaned up. The changes since, oldest first. Whether the fragments of
        this manifest have the same ids as in the base, which they have not after a merge.
    """
    segments, number = list(reversed(of.segments)), base.state.manifest.version
    # If the base lies on the branch itself or below one of its forks, the fragments have the same ids all the way.
    holders = (segment for segment in segments if segment.id == base.id and number <= segment.number)
    on_branch = next(holders, None)
    if on_branch is not None:
        after = segments[segments.index(on_branch) :]
        repeats = after[1] if len(after) > 1 and after[1].forked == number else None
        copy = None if repeats is None else versions.find(repeats.branch, repeats.first, repeats.id)
        anchor = base.state.manifest if copy is None else copy.manifest
        return anchor, _changes_after(after, number, versions), True
    record = merge_records_of(of.state.manifest).get(base.id)
    # The base came in by a merge. Only the merge of exactly this version shows its fragments; an older or newer merge
    # has other rows.
    if record is None or record.merged != number:
        return None, [], False
    segment = next(segment for segment in segments if record.dest <= segment.number)
    merged = versions.find(segment.branch, record.dest, segment.id)
    if merged is None:
        return None, [], False
    return merged.manifest, _changes_after(segments[segments.index(segment) :], record.dest, versions), False


def _changes_after(segments: Sequence[BranchSegment], after: int, versions: Versions) -> list[Change]:
    # A branch above the fork begins with a copy of its fork point, which is not a change.
    return [change for segment in segments for change in _changes(segment, max(after, segment.first), versions)]


def _changes(segment: BranchSegment, after: int, versions: Versions) -> Iterator[Change]:
    """Yield the changes of a branch after one of its versions, oldest first.

    A run of versions that were cleaned up is one change without a transaction: how many there were, and what they did,
    is not known, so whoever asks has to assume the worst.
    """
    if after >= segment.number:
        return
    branch, expected = segment.branch, after + 1
    # Versions are numbered from 1; asking for a version 0 would only cost a listing.
    states = _without_dropped(versions.find_range(branch, max(after, 1), segment.number, segment.id), after)
    before: State | None = None
    for state in states:
        number = state.manifest.version
        if number == after:
            before = state
            continue
        if not _follows(state, expected - 1):
            yield Change(version=f"{branch}@{expected}", writer="an unknown writer", transaction=None)
            before = None
        yield Change(
            version=f"{branch}@{number}",
            writer=state.writer,
            transaction=state.transaction,
            before=None if before is None else before.manifest,
            after=state.manifest,
            id=state.id,
            parent_id="" if before is None else before.id,
        )
        before, expected = state, number + 1
    if expected <= segment.number:
        yield Change(version=f"{branch}@{expected}", writer="an unknown writer", transaction=None)


def _follows(state: State, number: int) -> bool:
    """Tell whether version `number` is the parent of a version: the next lower number, or the target of its reset."""
    return state.manifest.version == number + 1 or reset_target(state.transaction) == number


def _without_dropped(states: list[State], after: int) -> list[State]:
    """Leave out the versions that a reset dropped; an interrupted reset leaves some of them for a while."""
    resets = [(to, state.number) for state in states if (to := reset_target(state.transaction)) is not None]
    return [state for state in states if not any(after <= to < state.number < reset for to, reset in resets)]


def _merges_from(transaction: Transaction | None, lineage: Lineage) -> bool:
    properties = transaction.properties if transaction else {}
    # The id of the branch is compared, not its name: the branch may be renamed, or another branch may have its name.
    number = properties.get(MERGE, "").rpartition("@")[2]
    return bool(_NUMBER.fullmatch(number)) and lineage.contained.get(properties.get(MERGED_BRANCH, ""), -1) >= int(
        number
    )


def load_or_copy(place: VersionPlace, lineages: Sequence[Lineage], versions: Versions) -> State:
    """Read a version; if it was cleaned up, read the first version of a branch that was forked from it, a copy.

    Raises:
        VersionNotFoundError: There is neither.
    """
    steps = (step for lineage in lineages for step in pairwise(lineage.segments))
    segment, branch, number = place
    forks = (child for child, parent in steps if (parent.id, child.forked) == (segment, number))
    repeated = ((child.id, child.branch, child.first) for child in forks)
    for own, name, count in (place, *repeated):
        try:
            return versions.load(name, count, own)
        except VersionNotFoundError:
            continue
    dropped = _put_back(place, versions)
    if dropped is not None:
        return dropped
    names = " and ".join(str(lineage.state) for lineage in lineages)
    raise VersionNotFoundError(f"{branch}@{number}, which {names} have in common, was cleaned up")


def _put_back(place: VersionPlace, versions: Versions) -> State | None:
    """Put a version back that a reset dropped; return None when no reset did, or no copy is left.

    A reset drops nothing that was merged, but a merge that was under way can land after it looked for merges. The
    version is then part of another branch, and later merges start from it. A collection puts it back as well, and
    keeps the copy until then.
    """
    own, branch, number = place
    later = versions.find_range(branch, number, versions.newest(branch) or number, own)
    resets = ((reset_target(state.transaction), state.number) for state in later)
    if not any(to is not None and to < number < reset for to, reset in resets):
        return None
    data = newest_expired_copy(versions.store, branch, own, number)
    if data is None:
        return None
    put_once(versions.store, versions.manifest_path(branch, number), data)
    return versions.find(branch, number, own)


class AheadBehind:
    """Count how far versions are ahead of and behind each other, from listed names alone; lists each branch once."""

    def __init__(self, branches: Mapping[str, Branch], versions: Versions) -> None:
        """Take the branches of the table, by name; nothing is listed yet."""
        self._branches = {branch.id: branch for branch in branches.values()}
        self._versions = versions
        self._numbers: dict[str, list[int]] = {}

    def ahead(self, of: Lineage, excluded: Lineage) -> int:
        """Count the versions that `of` contains and `excluded` does not.

        The first version of a branch does not count, as it repeats its fork point. Versions that were cleaned up, or
        that were deleted with their branch, cannot be counted.
        """
        return sum(
            self._between(branch_id, excluded.contained.get(branch_id, -1), number)
            for branch_id, number in of.contained.items()
        )

    def numbers(self, branch: str) -> list[int]:
        """Return the version numbers of a branch."""
        if branch not in self._numbers:
            self._numbers[branch] = self._versions.numbers(branch)
        return self._numbers[branch]

    def _between(self, branch_id: str, after: int, up_to: int) -> int:
        if after >= up_to:
            return 0
        branch = self._branches.get(branch_id)
        if branch is None and branch_id != MAIN:
            return 0
        # Gaps that a clean-up left are not counted, since the listing is what exists.
        name, first = (MAIN, 0) if branch is None else (branch.name, branch.first)
        return sum(max(after, first) < number <= up_to for number in self.numbers(name))
