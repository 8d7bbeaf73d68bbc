"""Which rows a conflict is about, noted where it is found.

A note is a function: what it takes to know the rows is looked up when somebody asks for them, and not by a merge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

Rows = Mapping[int, BitMap]
"""Offsets by fragment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disputed:
    """Rows of a conflict: those of the merge base by its fragments, others by the fragments of the side that has them.

    Rows of a side may be given by where they lie there too if the base has them. `fields` are the ids, on the dest, of
    fields that both sides wrote beside these rows: where the values are still the same, there is nothing to tell.
    """

    base: Rows = field(default_factory=dict)
    source: Rows = field(default_factory=dict)
    dest: Rows = field(default_factory=dict)
    fields: frozenset[int] = frozenset()


Dispute = Callable[[], Disputed]


def of_base(rows: Rows, fields: frozenset[int] = frozenset()) -> Dispute:
    """Note rows of the merge base."""
    return lambda: Disputed(base=rows, fields=fields)


def of_side(rows: Rows, *, source: bool) -> Dispute:
    """Note rows of one side, by where they lie there."""
    return lambda: Disputed(source=rows) if source else Disputed(dest=rows)


def add(rows: dict[int, BitMap], number: int, offsets: BitMap) -> None:
    """Add rows of a fragment to those that are collected."""
    if offsets:
        rows[number] = rows.get(number, BitMap()) | offsets
