"""Which versions single changes were taken over from, and what that means for a merge of these versions.

A pick writes down the versions its change is from, as branch ids with numbers: that of the branch, those of branches
that a picked merge brought, and those the picked version was picked from itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lance_dagster.changes.sides import Change
from lance_dagster.format.transaction import PICKED_FROM, Delete
from lance_dagster.history.lineage import Lineage

_ORIGIN = re.compile(r"(.+)@([0-9]{1,20})")


def origins(of: Lineage, parent: Lineage) -> str:
    """Return what says which versions the way from a version's parent to it is from."""
    before = of.state.transaction.properties.get(PICKED_FROM, "") if of.state.transaction else ""
    new = (f"{own}@{number}" for own, number in of.contained.items() if number > parent.contained.get(own, -1))
    return " ".join(dict.fromkeys([*new, *before.split()]))


def picked_across(changes: Iterable[Change], other: Lineage, base: Lineage) -> bool:
    """Tell whether rows were put in by taking over a change that the other side contains, and the base does not."""
    return any(_is_of(change, other, base) and not isinstance(change.operation, Delete) for change in changes)


def claiming(changes: Sequence[Change], of: Lineage, others: Sequence[Change], other: Lineage) -> list[Change]:
    """Return the changes of a side, those that the other side has as well as claiming nothing against it.

    Args:
        changes: What the side did since the merge base.
        of: The side.
        others: What the other side did.
        other: The other side.
    """
    names = {line.id: line.branch for line in of.lines}
    taken = {f"{names[own]}@{number}" for change in others for own, number in _origins(change) if own in names}
    return [
        replace(change, known=True) if change.version in taken or _is_of(change, other) else change
        for change in changes
    ]


def _is_of(change: Change, other: Lineage, base: Lineage | None = None) -> bool:
    known = base.contained if base is not None else {}
    return any(known.get(own, -1) < number <= other.contained.get(own, -1) for own, number in _origins(change))


def _origins(change: Change) -> list[tuple[str, int]]:
    told = change.transaction.properties.get(PICKED_FROM, "") if change.transaction is not None else ""
    return [(found[1], int(found[2])) for one in told.split() if (found := _ORIGIN.fullmatch(one))]
