"""Three-way merge of two versions that share a merge base, for appended, replaced and overwritten rows.

Why it is safe. A row is where its fragment is, and a fragment is known by the names of its data files: ids are handed
out independently on every branch and prove nothing across them. Compared with the merge base, each side kept a
fragment, removed it, let its deletion vector grow, or added one. Kept on one side and changed on the other: the change
holds. Changed on both: a conflict, whatever the change was, because a fragment that is missing may have been deleted
or only compacted elsewhere, and guessing wrong would lose or double rows. Added fragments are all kept, unless one
side claimed their scope as its own (`claims`): two runs that both replace January remove nothing and add everything,
and only their claims show that they contradict each other.

Everything that moves rows without saying so (an update that keeps row ids, a compaction, a changed column) is refused
by name. A conflict is found before anything is written.

The result takes the dest's fragments as they are and adds the source's under new ids and new row ids; nothing but
metadata is new. Data files already lie under the table's root. Files that another engine put into the branch's own
folder are listed for copying, since that folder goes away with the branch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lance_dagster.changes.claims import APPEND, OVERWRITE, Claim, claims_of
from lance_dagster.changes.conflicts import touched_fragments
from lance_dagster.format.codec import smallest_row_id
from lance_dagster.format.model import DeletionFile, Fragment, Manifest
from lance_dagster.format.transaction import (
    MERGE,
    MERGED_PREFIX,
    Append,
    Delete,
    OtherOperation,
    Overwrite,
    Restore,
    Transaction,
    Update,
)

RUN_ID = "dagster/run_id"
_HARMLESS = frozenset({"CreateIndex", "ReserveFragments", "UpdateConfig", "UpdateBases"})

RowsMatching = Callable[[Iterable[int], str], int]
"""Counts the live rows of some fragments of one side that match a predicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One version a side made since the merge base. `transaction` is None when its file is gone."""

    version: str
    writer: str
    transaction: Transaction | None

    @property
    def who(self) -> str:
        """The Dagster run that made the version, else what was merged, else the program that wrote it."""
        properties = self.transaction.properties if self.transaction else {}
        if run := properties.get(RUN_ID):
            return f"run {run}"
        return f"the merge of {properties[MERGE]}" if MERGE in properties else self.writer

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the version claims. A replaced table claims everything, whoever wrote it."""
        if self.transaction is None:
            return ()
        claims = claims_of(self.transaction.properties)
        if not claims and isinstance(self.transaction.operation, Overwrite | Restore):
            return (Claim(mode=OVERWRITE),)
        return claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a merge: where it is now, what it did since the merge base, how to look at its rows."""

    name: str
    manifest: Manifest
    changes: Sequence[Change]
    rows_matching: RowsMatching


@dataclass(frozen=True, slots=True)
class Conflict:
    """One reason why two sides cannot be merged: what it is about, and what both sides did."""

    unit: str
    source: str
    dest: str

    def __str__(self) -> str:
        """Say what it is about and what both sides did."""
        return f"{self.unit}: {self.source}; {self.dest}"


@dataclass(frozen=True, slots=True)
class CarriedDeletion:
    """A deletion vector of the source that the result stores again: its path holds the fragment's id."""

    source_fragment: Fragment
    fragment_id: int
    deletion: DeletionFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge without conflicts, ready to be committed on the dest.

    `operation` has its data files and deletion vectors as the source names them; the caller places them under the
    dest's root (`foreign` lists the fragments whose files may need copying) and writes `deletions`.
    """

    operation: Append | Update | Overwrite
    deletions: tuple[CarriedDeletion, ...]
    table_metadata: Mapping[str, str]
    config: Mapping[str, str]


def plan_merge(base: Manifest, source: Side, dest: Side) -> MergePlan | tuple[Conflict, ...]:
    """Merge `source` into `dest`, or return every conflict there is.

    Args:
        base: The newest version both sides contain.
        source: What is merged.
        dest: What it is merged into; the result is its next version.
    """
    delta = _Delta.between(base, source.manifest, dest.manifest)
    conflicts = [
        *_incomprehensible(base, source, delta),
        *_schema_conflicts(base, source, dest, delta),
        *_once_per_unit(_claim_conflicts(source, dest, delta)),
        *_fragment_conflicts(source, dest, delta),
    ]
    maps: list[Mapping[str, str]] = []
    for kind in ("table_metadata", "config"):
        merged, clashes = _merged_map(
            *(getattr(state, kind) for state in (base, source.manifest, dest.manifest))
        )
        maps.append(merged)
        conflicts += [
            Conflict(f"{kind} key {key!r}", f"{source.name} changed it", f"{dest.name} changed it differently")
            for key in clashes
        ]
    if conflicts:
        return tuple(dict.fromkeys(conflicts))
    return _plan(source.manifest, dest.manifest, delta, table_metadata=maps[0], config=maps[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """What the source did to the base's fragments, matched with the dest's by the names of their files."""

    added: tuple[Fragment, ...]
    """The source's fragments that neither base nor dest have."""
    removed: tuple[Fragment, ...]
    """The dest's fragments, untouched since the base, that the source removed."""
    masked: tuple[tuple[Fragment, Fragment], ...]
    """Pairs of dest and source fragment where only the source deleted rows."""
    contested: tuple[Fragment, ...]
    """Base fragments that both sides changed."""
    dest_added: tuple[Fragment, ...]
    dest_changed: bool

    @classmethod
    def between(cls, base: Manifest, source: Manifest, dest: Manifest) -> "_Delta":
        in_base, in_source, in_dest = (_by_files(state) for state in (base, source, dest))
        removed: list[Fragment] = []
        masked: list[tuple[Fragment, Fragment]] = []
        contested: list[Fragment] = []
        for names, fragment in in_base.items():
            theirs, mine = in_dest.get(names), in_source.get(names)
            if mine is not None and _same_deletions(mine, fragment):
                continue
            if theirs is None or not _same_deletions(theirs, fragment):
                contested.append(fragment)
            elif mine is None:
                removed.append(theirs)
            else:
                masked.append((theirs, mine))
        dest_added = tuple(fragment for names, fragment in in_dest.items() if names not in in_base)
        kept = sum(1 for names, own in in_base.items() if _untouched(in_dest.get(names), own))
        return cls(
            added=tuple(
                fragment
                for names, fragment in in_source.items()
                if names not in in_base and names not in in_dest
            ),
            removed=tuple(removed),
            masked=tuple(masked),
            contested=tuple(contested),
            dest_added=dest_added,
            dest_changed=bool(dest_added) or kept < len(in_base),
        )


def _by_files(manifest: Manifest) -> dict[frozenset[str], Fragment]:
    return {fragment.file_names: fragment for fragment in manifest.fragments}


def _same_deletions(one: Fragment, other: Fragment) -> bool:
    # The id is random and stays when a merge stores the vector again under another fragment id.
    left, right = one.deletion, other.deletion
    if left is None or right is None:
        return left is right
    return (left.id, left.deleted_rows) == (right.id, right.deleted_rows)


def _untouched(found: Fragment | None, own: Fragment) -> bool:
    return found is not None and _same_deletions(found, own)


def _incomprehensible(base: Manifest, source: Side, delta: _Delta) -> Iterable[Conflict]:
    """Find what the source did that this merge cannot carry over without losing its meaning."""
    refusal = "only appended, replaced, deleted and overwritten rows can be merged"
    for change in source.changes:
        operation = change.transaction.operation if change.transaction else None
        if operation is None:
            yield Conflict(f"version {change.version}", "its transaction is gone", refusal)
        elif isinstance(operation, OtherOperation) and operation.name in _HARMLESS:
            continue
        elif not isinstance(operation, Append | Delete | Update | Overwrite):
            name = change.transaction.operation_name if change.transaction else ""
            yield Conflict(f"version {change.version}", f"{change.who} made a {name}", refusal)
        elif isinstance(operation, Update) and not change.claims and not source.manifest.stable_row_ids:
            yield Conflict(f"version {change.version}", f"{change.who} updated rows", refusal)
    if source.manifest.stable_row_ids != base.stable_row_ids:
        yield Conflict("stable row ids", f"{source.name} switched them", refusal)
    for fragment in delta.added:
        smallest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if source.manifest.stable_row_ids and (smallest is None or smallest < base.next_row_id):
            yield Conflict(
                f"fragment {fragment.id} of {source.name}", "holds rows that were updated or moved", refusal
            )


def _schema_conflicts(base: Manifest, source: Side, dest: Side, delta: _Delta) -> Iterable[Conflict]:
    if source.manifest.fields == dest.manifest.fields:
        return
    if source.manifest.fields == base.fields:
        makers = _makers(dest.changes, lambda change: not isinstance(_operation(change), Append | Delete))
        yield Conflict("schema", f"{source.name} wrote rows of the old one", f"{makers} changed it")
    elif dest.manifest.fields != base.fields or delta.dest_changed or not _overwrote(source.manifest, base):
        yield Conflict("schema", f"{source.name} changed it", f"{dest.name} has rows that do not follow")


def _overwrote(source: Manifest, base: Manifest) -> bool:
    return not _by_files(source).keys() & _by_files(base).keys()


def _claim_conflicts(source: Side, dest: Side, delta: _Delta) -> Iterable[Conflict]:
    unclear: list[tuple[Change, Claim]] = []
    for mine in source.changes:
        for claim in mine.claims:
            for theirs in dest.changes:
                yield from _named_conflicts(mine, claim, theirs)
            if claim.exclusive:
                unclear += [(mine, claim)] if _names_do_not_tell(claim, dest.changes) else []
    for mine, claim in unclear:
        if delta.dest_added and _matches(dest, delta.dest_added, claim):
            makers = _makers(dest.changes, lambda change: not _tells(change))
            yield Conflict(_scope(claim), _did(mine, claim), f"{makers} put rows there on {dest.name}")
    for theirs in dest.changes:
        for claim in theirs.claims:
            if claim.exclusive and _names_do_not_tell(claim, source.changes) and delta.added:
                if _matches(source, delta.added, claim):
                    yield Conflict(_scope(claim), f"{source.name} put rows there", _did(theirs, claim))


def _once_per_unit(conflicts: Iterable[Conflict]) -> list[Conflict]:
    """Keep the first conflict about each unit: a partition named by both sides need not be looked up in the rows."""
    found: dict[str, Conflict] = {}
    for conflict in conflicts:
        found.setdefault(conflict.unit, conflict)
    return list(found.values())


def _named_conflicts(mine: Change, claim: Claim, theirs: Change) -> Iterable[Conflict]:
    """Compare claims by what they name: an overwritten table with anything, partitions by their keys."""
    for other in theirs.claims:
        if not (claim.exclusive or other.exclusive):
            continue
        if OVERWRITE in (claim.mode, other.mode):
            yield Conflict("the whole table", _did(mine, claim), _did(theirs, other))
            continue
        for partition in claim.shared_partitions(other) or ():
            yield Conflict(f"partition {partition}", _did(mine, claim), _did(theirs, other))


def _names_do_not_tell(claim: Claim, changes: Iterable[Change]) -> bool:
    """Tell whether some change says too little about its rows to compare it with a claim by name."""
    return any(not _tells(change) or not claim.partitions for change in changes)


def _tells(change: Change) -> bool:
    operation = _operation(change)
    if isinstance(operation, OtherOperation) and operation.name in _HARMLESS:
        return True
    return bool(change.claims) and all(claim.partitions for claim in change.claims)


def _matches(side: Side, fragments: Sequence[Fragment], claim: Claim) -> bool:
    if claim.predicate is None:
        return True
    return side.rows_matching([fragment.id for fragment in fragments], claim.predicate) > 0


def _scope(claim: Claim) -> str:
    if claim.mode == OVERWRITE:
        return "the whole table"
    named = ", ".join(claim.partitions)
    return f"partition {named}" if named else f"rows where {claim.predicate}"


def _did(change: Change, claim: Claim) -> str:
    verb = {APPEND: "added rows to it", OVERWRITE: "replaced all rows"}.get(claim.mode, "replaced it")
    return f"{change.who} {verb} in {change.version}"


def _fragment_conflicts(source: Side, dest: Side, delta: _Delta) -> Iterable[Conflict]:
    if not delta.contested:
        return
    ids = frozenset(fragment.id for fragment in delta.contested)
    makers = _makers(dest.changes, lambda change: _may_touch(change, ids))
    rows = sum(fragment.rows for fragment in delta.contested)
    yield Conflict(
        f"{rows} rows in fragments {', '.join(map(str, sorted(ids)))} of the merge base",
        f"{source.name} deleted some",
        f"{makers} changed, moved or deleted some",
    )


def _may_touch(change: Change, ids: frozenset[int]) -> bool:
    operation = _operation(change)
    if isinstance(operation, Update | Delete):
        return bool(touched_fragments(operation) & ids)
    return not isinstance(operation, Append)


def _operation(change: Change) -> object:
    return change.transaction.operation if change.transaction else None


def _makers(changes: Iterable[Change], select: Callable[[Change], bool]) -> str:
    named = [f"{change.who} ({change.version})" for change in changes if select(change)]
    return ", ".join(named) or "an unknown writer"


def _merged_map(
    base: Mapping[str, str], source: Mapping[str, str], dest: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Merge key by key; a key that is absent has the value None. Records of merges belong to the dest alone."""
    merged, clashes = dict(dest), []
    for key in base.keys() | source.keys():
        was, mine, theirs = base.get(key), source.get(key), dest.get(key)
        if key.startswith(MERGED_PREFIX) or mine in (was, theirs):
            continue
        if theirs != was:
            clashes.append(key)
        elif mine is None:
            merged.pop(key, None)
        else:
            merged[key] = mine
    return merged, sorted(clashes)


def _plan(
    source: Manifest, dest: Manifest, delta: _Delta, *, table_metadata: Mapping[str, str], config: Mapping[str, str]
) -> MergePlan:
    first = 0 if dest.max_fragment_id is None else dest.max_fragment_id + 1
    deletions = [
        CarriedDeletion(fragment, first + offset, replace(fragment.deletion, read_version=dest.version, base_id=None))
        for offset, fragment in enumerate(delta.added)
        if fragment.deletion is not None
    ]
    added = tuple(_with_deletion(fragment, fragment.deletion, dest.version) for fragment in delta.added)
    updated: list[Fragment] = []
    for theirs, mine in delta.masked:
        if mine.deletion is not None:
            stored = replace(mine.deletion, read_version=dest.version, base_id=None)
            deletions.append(CarriedDeletion(mine, theirs.id, stored))
            updated.append(replace(theirs, deletion=stored))
    operation: Append | Update | Overwrite
    if source.fields != dest.fields:
        operation = Overwrite(fragments=added, fields=source.fields, schema_metadata=source.schema_metadata)
    elif delta.removed or updated:
        operation = Update(
            removed_fragment_ids=tuple(fragment.id for fragment in delta.removed),
            updated_fragments=tuple(updated),
            new_fragments=added,
        )
    else:
        operation = Append(fragments=added)
    return MergePlan(
        operation=operation, deletions=tuple(deletions), table_metadata=table_metadata, config=config
    )


def _with_deletion(fragment: Fragment, deletion: DeletionFile | None, read_version: int) -> Fragment:
    if deletion is None:
        return fragment
    return replace(fragment, deletion=replace(deletion, read_version=read_version, base_id=None))
