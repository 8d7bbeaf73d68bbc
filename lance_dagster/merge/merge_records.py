"""Find the versions that picked changes come from, and the records of merges that a branch can do without.

A pick records the versions that its change comes from, as branch ids with version numbers (`b7@12`): the picked
version, the versions that a picked merge brought (such as `b7@3-7`), and the versions that the picked version itself
was picked from.

A branch can do without the record of a deleted branch, unless rows of the deleted branch may come in again. The deleted
branch cannot be merged any more, but another branch that contains it can. Where the merge base of the two contains the
deleted branch as well, no row is inserted twice; otherwise only the record tells which rows are there already.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN, PUBLISHED
from lance_dagster.format.transaction import (
    CHANGE_ORIGIN_PROPERTIES,
    MERGE_RECORD_PREFIXES,
    MERGED_PREFIX,
    PICKED_FROM,
    PICKS_MERGED,
)
from lance_dagster.history.lineage import Lineage, lineage_of
from lance_dagster.history.merge_base import merge_base
from lance_dagster.history.refs.ref_files import PUBLISHED_ID, READY
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.claims import Change

_MERGED_AT = re.compile(r"[0-9]{1,20}@([0-9]{1,20})")
_ORIGIN = re.compile(r"(.+)@(?:([0-9]{1,20})-)?([0-9]{1,20})")


def identity(of: State) -> str:
    """Return the name of a version in the properties of other versions: its commit id where it has one."""
    return of.id or str(of)


def origins(of: Lineage, parent: Lineage) -> str:
    """Return as text the versions that a version contains beyond its parent, and the versions it was picked from."""
    before = of.state.transaction.properties.get(PICKED_FROM, "") if of.state.transaction else ""
    # A pick of a pick keeps the earlier origins, so that the change is recognised by the branch it was first made on.
    contained = parent.contained
    new = (
        _text(own, contained.get(own, -1) + 1, newest)
        for own, newest in of.contained.items()
        if newest > contained.get(own, -1)
    )
    return " ".join(dict.fromkeys([*new, *before.split()]))


def picked_across(changes: Iterable[Change], other_side: Lineage, base: Lineage) -> bool:
    """Tell whether a side inserted rows by a pick of a change that the other side has and the merge base does not."""
    # A picked deletion inserts no rows, so no row can be there twice.
    return any(
        (_overlap(_named(change, PICKED_FROM), other_side, base) and not change.adds_no_copy)
        or _overlap(_named(change, PICKS_MERGED), other_side, base)
        for change in changes
    )


def brings_copies(change: Change) -> bool:
    """Tell whether a version may put in rows that exist, or existed, in another place."""
    properties = change.transaction.properties if change.transaction is not None else {}
    return not CHANGE_ORIGIN_PROPERTIES.isdisjoint(properties) and not change.adds_no_copy


def picks_among(changes: Iterable[Change]) -> str:
    """Return as text the versions that picks among the changes come from, and versions of picks that merges brought."""
    copying = [change for change in changes if not change.adds_no_copy]
    origins_by_change = (_named(change, key) for change in copying for key in (PICKED_FROM, PICKS_MERGED))
    return " ".join(dict.fromkeys(_text(*versions) for named in origins_by_change for versions in named))


def claiming(
    changes: Sequence[Change],
    of: Lineage,
    other_changes: Sequence[Change],
    other_side: Lineage,
    *,
    inserted_anew: Callable[[Change], bool],
) -> list[Change]:
    """Return the changes of a side; changes that the other side has too are marked to claim nothing against it.

    Args:
        changes: What the side did since the merge base.
        of: The side.
        other_changes: What the other side did.
        other_side: The other side.
        inserted_anew: Tells which changes put in rows that the other side has no more.
    """
    # Origins have branch ids, versions of changes have branch names; the segments of the lineage translate.
    names = {line.id: line.branch for line in of.segments}
    picked = (place for change in other_changes for key in (PICKED_FROM, PICKS_MERGED) for place in _named(change, key))
    picked_versions = {f"{names[own]}@{newest}" for own, _, newest in picked if own in names}
    contained = other_side.contained

    def in_both(change: Change) -> bool:
        origins = _named(change, PICKED_FROM)
        is_there = any(0 <= newest <= contained.get(own, -1) for own, _, newest in origins)
        return is_there or change.version in picked_versions

    return [
        change if inserted_anew(change) else replace(change, in_both=in_both(change), known=contained)
        for change in changes
    ]


def _overlap(picked: Iterable[tuple[str, int, int]], lineage: Lineage, base: Lineage) -> bool:
    """Tell whether a side has a version that was picked, and the merge base does not have it."""
    return any(
        max(first, base.contained.get(own, -1) + 1) <= min(newest, lineage.contained.get(own, -1))
        for own, first, newest in picked
    )


def _named(change: Change, key: str) -> list[tuple[str, int, int]]:
    """Return the versions that a property names: the id of a branch, and the numbers of its first and last version."""
    recorded = change.transaction.properties.get(key, "") if change.transaction is not None else ""
    origins = (match for origin in recorded.split() if (match := _ORIGIN.fullmatch(origin)))
    return [(match[1], int(match[2] or match[3]), int(match[3])) for match in origins]


def _text(branch_id: str, first: int, newest: int) -> str:
    return f"{branch_id}@{newest}" if first == newest else f"{branch_id}@{first}-{newest}"


_FEW_RECORDS = 8


def kept_records(dest: Lineage, metadata: Mapping[str, str], refs: Refs, versions: Versions) -> dict[str, str]:
    """Return the table metadata without the records that no branch needs.

    When there are only a few records, all are kept: it takes requests to find out which branches exist and what they
    contain.

    Args:
        dest: The newest version of the branch; the next version gets the returned metadata.
        metadata: The table metadata of `dest`, or what a merge made of it.
        refs: The branches.
        versions: Reads the newest versions of the branches.
    """
    metadata = _without_published(metadata)
    recorded = {own for own in _recorded(metadata) if not own.endswith(PUBLISHED_ID)}
    if len(recorded) <= _FEW_RECORDS:
        return dict(metadata)
    # The branches are listed first, and their heads are read only if enough records could be dropped: each head is a
    # request.
    branches = refs.branches.all(exempt=(PUBLISHED,)).values()
    deleted = recorded - {MAIN, *(branch.id for branch in branches)}
    if len(deleted) <= _FEW_RECORDS:
        return dict(metadata)
    for name in (MAIN, *(branch.name for branch in branches if branch.state == READY)):
        if name != dest.state.branch:
            deleted -= _told_apart(deleted, dest, name, (refs, versions))
    dropped = {f"{prefix}{branch_id}" for branch_id in deleted for prefix in MERGE_RECORD_PREFIXES}
    return {key: value for key, value in metadata.items() if key not in dropped}


def _without_published(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return table metadata without the older records of branches that a repository keeps for its commits.

    Such a branch is merged once, in the order of the commits. Only the last one may be merged again, after a crash.
    """
    published = [key for key in metadata if key.startswith(MERGED_PREFIX) and key.endswith(PUBLISHED_ID)]
    newest_last = sorted(published, key=lambda key: _merged_at(metadata[key]))
    return {key: value for key, value in metadata.items() if key not in newest_last[:-_FEW_RECORDS]}


def _merged_at(record: str) -> int:
    match = _MERGED_AT.match(record)
    return int(match[1]) if match else 0


def _told_apart(deleted: set[str], dest: Lineage, branch: str, of: tuple[Refs, Versions]) -> set[str]:
    """Return the deleted branches of which `branch` may have rows that the merge base lacks: their records are needed.

    Where the merge base has the same records of a branch, it has all that came of that branch.
    """
    refs, versions = of
    try:
        head = versions.head(branch)
        # A head without any of these records spares the search for a merge base.
        if not deleted & _recorded(head.manifest.table_metadata):
            return set()
        base = merge_base(lineage_of(head, refs), dest, refs, versions)
    except (NotFoundError, InvalidInputError):
        # The branch was deleted meanwhile, or the merge base was cleaned up. All records are kept: a merge must not
        # fail because old records cannot be distinguished from records that are needed.
        return deleted
    metadata, before = head.manifest.table_metadata, base.state.manifest.table_metadata
    keys = {branch_id: [f"{prefix}{branch_id}" for prefix in MERGE_RECORD_PREFIXES] for branch_id in deleted}
    return {branch_id for branch_id, own in keys.items() if any(metadata.get(key) != before.get(key) for key in own)}


def _recorded(metadata: Mapping[str, str]) -> set[str]:
    return {key.removeprefix(prefix) for prefix in MERGE_RECORD_PREFIXES for key in metadata if key.startswith(prefix)}
