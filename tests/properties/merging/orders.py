"""Branches merged one after another: the order makes no difference to the rows, if all of them can be merged."""

from collections.abc import Sequence
from itertools import pairwise

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.properties.merging import laws
from tests.properties.merging.symmetry import same_rows


def merged_in(table: LanceTable, name: str, dest: str, order: Sequence[str]) -> MergeConflictError | None:
    """Merge branches into a new fork of another one; return the reason if that is refused."""
    table.branches.create(name, dest)
    try:
        for source in order:
            table.merge(source, into=name)
    except MergeConflictError as error:
        return error
    return None


def any_order(table: LanceTable, dest: str, orders: Sequence[Sequence[str]]) -> dict[str, MergeConflictError | None]:
    """Check that all orders that are not refused give the same rows; return the outcome of each by its fork."""
    found = {f"in-order-{n}": merged_in(table, f"in-order-{n}", dest, order) for n, order in enumerate(orders)}
    made = [name for name, refused in found.items() if refused is None]
    for one, other in pairwise(made):
        same_rows(table, one, other, "order")
    for name in made:
        laws.well_formed(table, name)
    return found
