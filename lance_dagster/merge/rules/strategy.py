"""Which rows a conflict is about, noted where it is found.

A note is a function: what it takes to know the rows is looked up when somebody asks for them, and not by a merge.

Who wins where both sides changed the same thing: nobody, unless a strategy says so.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.merge.rules.merge_side import Conflict

Rows = Mapping[int, BitMap]
"""Offsets by fragment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingRows:
    """Rows of a conflict: those of the merge base by its fragments, others by the fragments of the side that has them.

    Rows of a side may be given by where they lie there too if the base has them. `fields` are the ids, on the dest, of
    fields that both sides wrote beside these rows: where the values are still the same, there is nothing to tell.
    """

    base: Rows = field(default_factory=dict)
    source: Rows = field(default_factory=dict)
    dest: Rows = field(default_factory=dict)
    fields: frozenset[int] = frozenset()


RowsLookup = Callable[[], ConflictingRows]


def of_base(rows: Rows, fields: frozenset[int] = frozenset()) -> RowsLookup:
    """Note rows of the merge base."""
    return lambda: ConflictingRows(base=rows, fields=fields)


def of_side(rows: Rows, *, source: bool) -> RowsLookup:
    """Note rows of one side, by where they lie there."""
    return lambda: ConflictingRows(source=rows) if source else ConflictingRows(dest=rows)


def add(rows: dict[int, BitMap], number: int, offsets: BitMap) -> None:
    """Add rows of a fragment to those that are collected."""
    if offsets:
        rows[number] = rows.get(number, BitMap()) | offsets


SOURCE_WINS, DEST_WINS = "source-wins", "dest-wins"
BOTH = (SOURCE_WINS, DEST_WINS)
EVERYTHING, HISTORY = "*", "history"
KINDS = ("rows", "partition", "table", "column", "schema", "config", "table_metadata", "schema_metadata", HISTORY)
Strategy = str | Mapping[str, str] | None
"""One strategy for everything, or one for each unit or kind of conflict, such as {"column price": "source-wins"}.

Under "*" is that of all others. Of what was cleaned up, only one for "history" says that it was nothing.
"""


@dataclass(slots=True)
class StrategyResolver:
    """Settles conflicts by a strategy, and collects those it cannot settle."""

    strategy: Strategy = None
    conflicts: list[Conflict] = field(default_factory=list)
    locations: dict[Conflict, list[RowsLookup]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no strategy.

        Raises:
            InvalidInputError: Says which there are.
        """
        strategy = self.strategy
        given = list(strategy.values()) if isinstance(strategy, Mapping) else [] if strategy is None else [strategy]
        for name in given:
            if name not in BOTH:
                raise InvalidInputError(f"{name!r} is no strategy; use {SOURCE_WINS!r} or {DEST_WINS!r}")
        for key in strategy if isinstance(strategy, Mapping) else ():
            # A unit, such as "column price", has more than one word; who misspells one is told the conflict again.
            if " " not in str(key) and key not in (*KINDS, EVERYTHING):
                close = difflib.get_close_matches(str(key), KINDS, n=1)
                hint = (
                    f"did you mean {close[0]!r}?"
                    if close
                    else f"there are {', '.join(KINDS)}, and units such as 'column price'"
                )
                raise InvalidInputError(f"{key!r} is no kind of conflict; {hint}")

    def settle(self, conflict: Conflict, options: Sequence[str] = BOTH, rows: RowsLookup | None = None) -> str | None:
        """Return which strategy holds for a conflict, or None when it stays one.

        Args:
            conflict: What both sides did.
            options: The strategies that can be carried out.
            rows: The rows it is about, where these can be told.
        """
        winner = self.winner(conflict.kind, conflict.unit)
        if winner in options:
            return winner
        self.refuse(conflict, rows)
        return None

    def refuse(self, conflict: Conflict, rows: RowsLookup | None = None) -> None:
        """Take a conflict that no strategy settles, and the rows it is about."""
        self.conflicts.append(conflict)
        if rows is not None:
            self.locations.setdefault(conflict, []).append(rows)

    def winner(self, kind: str, unit: str) -> str | None:
        """Return the strategy given for a unit, else for its kind, else for everything that both sides did.

        Where nobody knows what a side did, a strategy for everything does not say who is to lose it.
        """
        strategy = self.strategy if isinstance(self.strategy, Mapping) else {EVERYTHING: self.strategy}
        others = strategy.get(EVERYTHING) if kind != HISTORY else None
        return strategy.get(unit, strategy.get(kind, others))
