"""Small manifests and histories of both sides as literals, to test rules without a table or a store."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count

import numpy as np
from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import encode_row_ids, encode_versions
from lance_dagster.format.model import DataFile, DeletionFile, Field, Flag, Fragment, Fragments, Manifest
from lance_dagster.format.transaction import Append, Operation, Transaction
from lance_dagster.merge.rules.merge_input import EqualRows, Lookups, MergeInput
from lance_dagster.merge.rules.merge_side import MergeSide, sides_of
from lance_dagster.merge.rules.strategy import Finding, Strategy
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import RowSpace

ID, AMOUNT = Field(id=0, name="id", logical_type="int64"), Field(id=1, name="amount", logical_type="int64")
FIELDS = (ID, AMOUNT)
BASE_VERSION, ROWS_OF_BASE = 2, 4
_deletions, _deleted_rows = count(1), dict[int, frozenset[int]]()


def fragment(
    number: int, file: str, ids: Iterable[int], *, deleted: Iterable[int] = (), created_at: int = 1, updated_at: int = 1
) -> Fragment:
    """Make a fragment of one file, with stable row ids.

    Args:
        number: Its id.
        file: The name of the file.
        ids: The row id of each row.
        deleted: The offsets of deleted rows.
        created_at: The version that created its rows.
        updated_at: The version that last updated them.
    """
    row_ids = np.array(list(ids), np.uint64)
    offsets, deletion = frozenset(deleted), None
    if offsets:
        deletion = DeletionFile(kind=0, read_version=1, id=next(_deletions), deleted_rows=len(offsets))
        _deleted_rows[deletion.id] = offsets
    return Fragment(
        id=number,
        files=(DataFile(path=file, fields=(0, 1), column_indices=(0, 1), major=2, minor=0),),
        physical_rows=len(row_ids),
        deletion=deletion,
        row_ids=encode_row_ids(row_ids),
        created_at=encode_versions(np.full(len(row_ids), created_at, np.uint64)),
        updated_at=encode_versions(np.full(len(row_ids), updated_at, np.uint64)),
    )


def manifest(*fragments: Fragment, version: int = BASE_VERSION, next_row_id: int = ROWS_OF_BASE) -> Manifest:
    """Make a version with stable row ids."""
    return Manifest(
        version=version,
        fields=FIELDS,
        fragments=Fragments(fragments),
        max_fragment_id=max((one.id for one in fragments), default=None),
        writer_flags=int(Flag.STABLE_ROW_IDS),
        next_row_id=next_row_id,
    )


FOUR_ROWS = fragment(0, "base.lance", range(ROWS_OF_BASE))
BASE = manifest(FOUR_ROWS)
"""The merge base of most tests: one fragment of four rows with the row ids 0 to 3."""


def change(
    name: str, operation: Operation, before: Manifest, after: Manifest, properties: Mapping[str, str] | None = None
) -> Change:
    """Make a version that a side made; its writer is `ann` for the source and `bob` for the dest."""
    transaction = Transaction(
        read_version=before.version, uuid=f"{name}-{after.version}", operation=operation, properties=properties or {}
    )
    writer = "ann" if name == "run" else "bob"
    return Change(version=f"{name}@{after.version}", writer=writer, transaction=transaction, before=before, after=after)


def side(
    name: str,
    after: Manifest = BASE,
    operation: Operation | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    base: Manifest = BASE,
) -> SideHistory:
    """Make a side with one change since the merge base, or with none: `run` is the source, `main` the dest."""
    made = replace(after, version=base.version + 1)
    changes = [] if operation is None else [change(name, operation, base, made, properties)]
    state = made if changes else after
    lines = [("main", 0)] if name == "main" else [("main", 0), (name, base.next_row_id)]
    return SideHistory(
        name=f"{name}@{state.version}",
        manifest=state,
        changes=changes,
        anchor=base,
        since=changes,
        same_ids=True,
        space=RowSpace.of(lines, state.next_row_id, {}),
        common=base.version,
    )


def merge_input(
    source: SideHistory,
    dest: SideHistory | None = None,
    *,
    base: Manifest = BASE,
    strategy: Strategy = None,
    matching: Mapping[str, Mapping[int, BitMap]] | None = None,
    equal_rows: EqualRows | None = None,
) -> MergeInput:
    """Make the input of a merge; `matching` has the rows, by fragment, that a predicate matches in any version."""

    def matches(
        state: Manifest, numbers: Iterable[int], predicate: str, _: Mapping[str, str] | None
    ) -> Mapping[int, BitMap]:
        if matching is None or predicate not in matching:
            raise InvalidInputError(f"version {state.version} has no columns for {predicate}")
        return {number: matching[predicate][number] for number in numbers if number in matching[predicate]}

    return MergeInput(
        base=base,
        space=RowSpace.of([("main", 0)], base.next_row_id, {}),
        source=source,
        dest=dest or side("main", base, base=base),
        lookups=Lookups(deleted=deleted, matching=matches, equal_rows=equal_rows),
        strategy=strategy,
    )


def deleted(_: Manifest, of: Fragment) -> BitMap:
    """Return the deleted rows of a fragment made here."""
    return BitMap(_deleted_rows[of.deletion.id]) if of.deletion is not None else BitMap()


def both_sides(
    source: SideHistory, dest: SideHistory | None = None, *, base: Manifest = BASE
) -> tuple[MergeSide, MergeSide]:
    """Return the sides of a merge as the rules get them."""
    return sides_of(merge_input(source, dest, base=base))


def appended(*ids: int, file: str = "new.lance") -> tuple[Manifest, Append]:
    """Append rows to the merge base, as fragment 1."""
    made_at = BASE.version + 1
    new = fragment(1, file, ids, created_at=made_at, updated_at=made_at)
    return replace(BASE, fragments=BASE.fragments.added([new]), next_row_id=max(ids) + 1), Append(fragments=[new])


def described(findings: Iterable[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the kind and unit of findings, and the strategies that settle them."""
    return [(found.conflict.kind, found.conflict.unit, found.options) for found in findings]
