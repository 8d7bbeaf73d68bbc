"""Three-way merge of two versions that share a merge base, for appended, replaced and overwritten rows.

Why it is safe. A row is where its fragment is, and a fragment is known by the names of its data files: ids are handed
out independently on every branch and prove nothing across them. Compared with the merge base, each side kept a
fragment, removed it, let its deletion vector grow, or added one. Kept on one side and changed on the other: the change
holds. Changed on both: a conflict, whatever the change was, because a fragment that is missing may have been deleted
or only compacted elsewhere, and guessing wrong would lose or double rows. Added fragments are all kept, unless one
side claimed their scope as its own (`claims`): two runs that both replace January remove nothing and add everything,
and only their claims show that they contradict each other.

Branches may be merged in any direction and more than once. A fragment that an earlier merge brought to both sides and
that the dest took out since then is not brought back. A version of the dest that was cleaned up claims nothing any
more, so its rows are looked at; of the source, it is refused.

Everything that moves rows without saying so (an update that keeps row ids, a compaction, a changed column) is refused
by name. A conflict is found before anything is written.

The result takes the dest's fragments as they are and adds the source's under new ids and new row ids; nothing but
metadata is new. Data files already lie under the table's root. Files that another engine put into the branch's own
folder are listed for copying, since that folder goes away with the branch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lance_dagster.changes.conflicts import touched_fragments
from lance_dagster.changes.overlaps import claim_conflicts
from lance_dagster.changes.sides import Change, Conflict, Side, makers
from lance_dagster.format.codec import smallest_row_id
from lance_dagster.format.model import DeletionFile, Fragment, Manifest
from lance_dagster.format.transaction import (
    MERGED_PREFIX,
    Append,
    Delete,
    Overwrite,
    Update,
)

_REFUSAL = "only appended, replaced, deleted and overwritten rows can be merged"


@dataclass(frozen=True, slots=True)
class CarriedDeletion:
    """A deletion vector that is stored again for the result, since its path holds the fragment's id.

    `source` is the source's fragment it is read from, `dest` the result's fragment it is written for.
    """

    source: Fragment
    dest: Fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge without conflicts, ready to be committed on the dest.

    `operation` has its data files and deletion vectors as the source names them; the caller places them under the
    dest's root and writes `deletions`.
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
    delta = _Delta.between(base, source, dest)
    conflicts = [
        *_incomprehensible(base, source, delta),
        *_schema_conflicts(base, source, dest, delta),
        *claim_conflicts(source, dest, added=delta.added, dest_added=delta.dest_added),
        *_fragment_conflicts(source, dest, delta),
    ]
    maps: list[Mapping[str, str]] = []
    for kind in ("table_metadata", "config"):
        merged, clashes = _merged_map(*(getattr(state, kind) for state in (base, source.manifest, dest.manifest)))
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
    """The source's fragments that the base has not and the dest never had."""
    removed: tuple[Fragment, ...]
    """The dest's fragments, untouched since the base, that the source removed."""
    masked: tuple[tuple[Fragment, Fragment], ...]
    """Pairs of dest and source fragment where only the source deleted rows."""
    contested: tuple[Fragment, ...]
    """Fragments that both sides had and changed."""
    dest_added: tuple[Fragment, ...]
    """The dest's fragments that neither base nor source have."""
    dest_changed: bool

    @classmethod
    def between(cls, base: Manifest, source: Side, dest: Side) -> "_Delta":
        in_base, in_source, in_dest = (_by_files(state) for state in (base, source.manifest, dest.manifest))
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
        added = {names: fragment for names, fragment in in_source.items() if names not in in_base}
        for names in added.keys() & (in_dest.keys() | dest.fragments.keys()):
            # An earlier merge brought it to both sides. What the dest did to it since then holds.
            fragment = added.pop(names)
            if not _same_deletions(fragment, in_dest.get(names) or dest.fragments[names]):
                contested.append(fragment)
        dest_added = tuple(
            fragment for names, fragment in in_dest.items() if names not in in_base and names not in in_source
        )
        kept = sum(1 for names, own in in_base.items() if _untouched(in_dest.get(names), own))
        return cls(
            added=tuple(added.values()),
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
    stable = source.manifest.stable_row_ids
    if stable != base.stable_row_ids:
        yield Conflict("stable row ids", f"{source.name} switched them", _REFUSAL)
    for change in source.changes:
        problem = _unmergeable(change, stable=stable)
        if problem:
            yield Conflict(f"version {change.version}", problem, _REFUSAL)
    for fragment in delta.added if stable else ():
        smallest = None if fragment.row_ids is None else smallest_row_id(fragment.row_ids)
        if smallest is None or smallest < base.next_row_id:
            yield Conflict(f"fragment {fragment.id} of {source.name}", "its rows were updated or moved", _REFUSAL)


def _unmergeable(change: Change, *, stable: bool) -> str | None:
    if change.transaction is None:
        return "its transaction is gone"
    if change.moves_no_row:
        return None
    if not isinstance(change.operation, Append | Delete | Update | Overwrite):
        return f"{change.who} made a {change.transaction.operation_name}"
    if isinstance(change.operation, Update) and not change.claims and not stable:
        # Without row ids nothing tells whether the rows are new or moved.
        return f"{change.who} updated rows"
    return None


def _schema_conflicts(base: Manifest, source: Side, dest: Side, delta: _Delta) -> Iterable[Conflict]:
    if source.manifest.fields == dest.manifest.fields:
        return
    if source.manifest.fields == base.fields:
        who = makers(dest.changes, lambda change: not isinstance(change.operation, Append | Delete))
        yield Conflict("schema", f"{source.name} wrote rows of the old one", f"{who} changed it")
    elif dest.manifest.fields != base.fields or delta.dest_changed or not _overwrote(source.manifest, base):
        yield Conflict("schema", f"{source.name} changed it", f"{dest.name} has rows that do not follow")


def _overwrote(source: Manifest, base: Manifest) -> bool:
    return not _by_files(source).keys() & _by_files(base).keys()


def _fragment_conflicts(source: Side, dest: Side, delta: _Delta) -> Iterable[Conflict]:
    if not delta.contested:
        return
    ids = frozenset(fragment.id for fragment in delta.contested)
    who = makers(dest.changes, lambda change: _may_touch(change, ids))
    rows = sum(fragment.rows for fragment in delta.contested)
    yield Conflict(
        f"{rows} rows in fragments {', '.join(map(str, sorted(ids)))} of the merge base",
        f"{source.name} deleted some",
        f"{who} changed, moved or deleted some",
    )


def _may_touch(change: Change, ids: frozenset[int]) -> bool:
    operation = change.operation
    if isinstance(operation, Update | Delete):
        return bool(touched_fragments(operation) & ids)
    return not isinstance(operation, Append)


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
    # The ids their rows have on the source may be those of other rows here.
    anew = (replace(fragment, row_ids=None, created_at=None, updated_at=None) for fragment in delta.added)
    added = tuple(_restored(fragment, fragment.deletion, dest.version) for fragment in anew)
    updated = tuple(_restored(theirs, mine.deletion, dest.version) for theirs, mine in delta.masked)
    numbered = (replace(fragment, id=first + offset) for offset, fragment in enumerate(added))
    pairs = (*zip(delta.added, numbered, strict=True), *zip((mine for _, mine in delta.masked), updated, strict=True))
    deletions = tuple(CarriedDeletion(*pair) for pair in pairs if pair[1].deletion is not None)
    operation: Append | Update | Overwrite
    if source.fields != dest.fields:
        operation = Overwrite(fragments=added, fields=source.fields, schema_metadata=source.schema_metadata)
    elif delta.removed or updated:
        operation = Update(
            removed_fragment_ids=tuple(fragment.id for fragment in delta.removed),
            updated_fragments=updated,
            new_fragments=added,
        )
    else:
        operation = Append(fragments=added)
    return MergePlan(operation=operation, deletions=deletions, table_metadata=table_metadata, config=config)


def _restored(fragment: Fragment, deletion: DeletionFile | None, read_version: int) -> Fragment:
    """Give a fragment a deletion vector that will be stored again for the result."""
    stored = None if deletion is None else replace(deletion, read_version=read_version, base_id=None)
    return replace(fragment, deletion=stored)
