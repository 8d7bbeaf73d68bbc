"""Which records of merges a branch can do without: those of branches that are gone, unless they may come in again.

A branch that is gone cannot be merged any more, but another one that has it can. When the merge base of the two has it
as well, nothing comes twice; else the record is what tells.
"""

from collections.abc import Mapping

from lance_dagster.changes.row_spaces import Translation
from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import MERGED_PREFIX, OF_MERGES, SQUASHED_PREFIX
from lance_dagster.history.lineage import Lineage, lineage_of, merge_base
from lance_dagster.history.records import NOTHING, records_of
from lance_dagster.history.ref_files import READY
from lance_dagster.history.refs import Refs
from lance_dagster.history.versions import Versions

_FEW_RECORDS = 8


def kept_records(dest: Lineage, metadata: Mapping[str, str], refs: Refs, versions: Versions) -> dict[str, str]:
    """Return the table metadata without the records that nobody needs.

    A few records are kept in any case: to know which branches there are, and what they contain, takes requests.

    Args:
        dest: The version that is to be followed by one with this metadata.
        metadata: Its table metadata.
        refs: The branches.
        versions: Where their newest versions are read.
    """
    recorded = _recorded(metadata)
    if len(recorded) <= _FEW_RECORDS:
        return dict(metadata)
    branches = refs.branches().values()
    gone = recorded - {MAIN, *(branch.id for branch in branches)}
    if len(gone) <= _FEW_RECORDS:
        return dict(metadata)
    for name in (MAIN, *(branch.name for branch in branches if branch.state == READY)):
        if name != dest.state.branch:
            gone -= _told_apart(gone, dest, name, (refs, versions))
    dropped = {f"{prefix}{branch_id}" for branch_id in gone for prefix in OF_MERGES}
    return {key: value for key, value in metadata.items() if key not in dropped}


def _told_apart(gone: set[str], dest: Lineage, branch: str, of: tuple[Refs, Versions]) -> set[str]:
    """Return the branches of which another one has something that its merge base with the dest has not."""
    refs, versions = of
    try:
        head = versions.head(branch)
        if not gone & _recorded(head.manifest.table_metadata):
            return set()
        other = lineage_of(head, refs)
        base = merge_base(other, dest, refs, versions)
    except (NotFoundError, InvalidInputError):
        # Deleted meanwhile, or what both have in common is gone: nobody knows, and a merge does not fail for that.
        return gone
    return {branch_id for branch_id in gone if _brings(branch_id, other, base)}


def _brings(branch_id: str, other: Lineage, base: Lineage) -> bool:
    """Tell whether a version has more of a branch than another one: versions of it, a squash, or single rows."""
    metadata = [lineage.state.manifest.table_metadata for lineage in (other, base)]
    if branch_id in _squashed(metadata[1]):
        return False
    if branch_id in _squashed(metadata[0]):
        return True
    numbers = [lineage.contained.get(branch_id, NOTHING) for lineage in (other, base)]
    if max(numbers) > NOTHING:
        return numbers[0] > numbers[1]
    records = [records_of(lineage.state.manifest).get(branch_id) for lineage in (other, base)]
    rows = [
        Translation(tuple(sorted((alias.first, alias.end, alias.here) for alias in (record.aliases if record else ()))))
        for record in records
    ]
    return bool(rows[0].beyond(rows[1]).stretches)


def _squashed(metadata: Mapping[str, str]) -> set[str]:
    return {key.removeprefix(SQUASHED_PREFIX) for key in metadata if key.startswith(SQUASHED_PREFIX)}


def _recorded(metadata: Mapping[str, str]) -> set[str]:
    return _squashed(metadata) | {key.removeprefix(MERGED_PREFIX) for key in metadata if key.startswith(MERGED_PREFIX)}
