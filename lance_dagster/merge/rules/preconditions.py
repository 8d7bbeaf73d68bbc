"""Refuse sides whose rows cannot be compared, before anything else is looked at."""

from collections.abc import Iterator

from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import CHANGE_ORIGIN_PROPERTIES, DataOverlay, Restore, UpdateMemWalState
from lance_dagster.merge.rules.merge_input import MergeInput
from lance_dagster.merge.rules.strategy import Conflict, Finding
from lance_dagster.transactions.claims import SideHistory

_UNKNOWN = (DataOverlay, UpdateMemWalState)
_WAIVED = "cannot be held against that; a strategy for 'history' says that it was nothing"


def blocking_findings(given: MergeInput) -> Iterator[Finding]:
    """Find what no strategy settles and what makes it impossible to compare rows.

    The sides have different row ids or files, or versions that were cleaned up or have an unknown operation.
    """
    for conflict in _blocking(given.base, given.source, given.dest, crosswise=given.crosswise):
        yield Finding(conflict=conflict, options=())


def _blocking(base: Manifest, source: SideHistory, dest: SideHistory, *, crosswise: bool) -> Iterator[Conflict]:
    if crosswise and not base.stable_row_ids:
        told = f"{source.name} and {dest.name} took in the same versions on other ways"
        unknown = "which rows both have cannot be told without stable row ids"
        yield Conflict(kind="history", unit="history", source=told, dest=unknown)
    if not base.stable_row_ids and all(_brought_back(side) for side in (source, dest)):
        told = f"{source.name} and {dest.name} took changes over or back"
        unknown = "which rows that brought to both cannot be told without stable row ids"
        yield Conflict(kind="history", unit="history", source=told, dest=unknown)
    one, other = source.manifest, dest.manifest
    if not base.stable_row_ids == one.stable_row_ids == other.stable_row_ids:
        has = [f"{side.name} {_verb(side.manifest)} them" for side in (source, dest)]
        yield Conflict(kind="history", unit="stable row ids", source=has[0], dest=has[1])
    # Data files of the legacy format 0.1 and of later formats must never be in one table.
    if _first_generation(one) != _first_generation(other):
        has = [f"{side.name} has version {side.manifest.file_version}" for side in (source, dest)]
        yield Conflict(kind="history", unit="format of data files", source=has[0], dest=has[1])
    yield from _unknown(source, dest)


def _unknown(source: SideHistory, dest: SideHistory) -> Iterator[Conflict]:
    """Find versions with an operation whose meaning for a merge is unknown."""
    for side in (source, dest):
        for change in side.changes:
            if isinstance(change.operation, _UNKNOWN):
                told = f"{change.author} made a {type(change.operation).__name__}"
                unit, unknown = f"version {change.version}", "nobody knows what that means for a merge"
                did = (told, unknown) if side is source else (unknown, told)
                yield Conflict(kind="history", unit=unit, source=did[0], dest=did[1])


def incompatible_columns(given: MergeInput) -> Iterator[Finding]:
    """Find columns of which one side has values that do not fit the other's column."""
    source, dest = given.source.name, given.dest.name
    for path in given.incompatible:
        did = f"{source} has it in one type", f"{dest} has it in another one, changed since both parted"
        conflict = Conflict(kind="column", unit=f"column {path}", source=did[0], dest=did[1])
        yield Finding(conflict=conflict, options=())


def missing_versions(given: MergeInput) -> Iterator[Finding]:
    """Find versions that were cleaned up, and with them what they claimed.

    A strategy for "history" waives them: it says that they claimed nothing. Rows are found without them.
    """
    for side in (given.source, given.dest):
        for change in side.changes:
            if change.transaction is None:
                told = f"it was cleaned up on {side.name}, and with it whether it replaced rows"
                did = (told, _WAIVED) if side is given.source else (_WAIVED, told)
                unit = f"version {change.version}"
                yield Finding(conflict=Conflict(kind="history", unit=unit, source=did[0], dest=did[1]))


def can_be_waived(conflict: Conflict) -> bool:
    """Tell whether a strategy for "history" settles a conflict, as it does those that `missing_versions` finds."""
    return conflict.kind == "history" and _WAIVED in (conflict.source, conflict.dest)


def _brought_back(side: SideHistory) -> bool:
    """Tell whether a side may have put rows in that are there already, or were once, elsewhere."""
    first = side.anchor.version if side.anchor is not None else 0
    return any(
        change.transaction is not None
        and (
            not CHANGE_ORIGIN_PROPERTIES.isdisjoint(change.transaction.properties)
            or (isinstance(change.operation, Restore) and change.operation.version < first)
        )
        for change in side.changes
    )


def _verb(manifest: Manifest) -> str:
    return "has" if manifest.stable_row_ids else "does not have"


def _first_generation(manifest: Manifest) -> bool:
    return manifest.file_version.startswith("0.")
