"""Who wins where both sides changed the same thing: nobody, unless a strategy says so."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_dagster.changes.merge.disputed import Dispute
from lance_dagster.changes.sides import Conflict
from lance_dagster.errors import InvalidInputError

SOURCE_WINS, DEST_WINS = "source-wins", "dest-wins"
BOTH = (SOURCE_WINS, DEST_WINS)
EVERYTHING, HISTORY = "*", "history"
KINDS = ("rows", "partition", "table", "column", "schema", "config", "table_metadata", "schema_metadata", HISTORY)
Strategy = str | Mapping[str, str] | None
"""One strategy for everything, or one for each unit or kind of conflict, such as {"column price": "source-wins"}.

Under "*" is that of all others. Of what was cleaned up, only one for "history" says that it was nothing.
"""


@dataclass(slots=True)
class Arbiter:
    """Settles conflicts by a strategy, and collects those it cannot settle."""

    strategy: Strategy = None
    conflicts: list[Conflict] = field(default_factory=list)
    disputes: dict[Conflict, list[Dispute]] = field(default_factory=dict)

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

    def settle(self, conflict: Conflict, options: Sequence[str] = BOTH, rows: Dispute | None = None) -> str | None:
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

    def refuse(self, conflict: Conflict, rows: Dispute | None = None) -> None:
        """Take a conflict that no strategy settles, and the rows it is about."""
        self.conflicts.append(conflict)
        if rows is not None:
            self.disputes.setdefault(conflict, []).append(rows)

    def winner(self, kind: str, unit: str) -> str | None:
        """Return the strategy given for a unit, else for its kind, else for everything that both sides did.

        Where nobody knows what a side did, a strategy for everything does not say who is to lose it.
        """
        strategy = self.strategy if isinstance(self.strategy, Mapping) else {EVERYTHING: self.strategy}
        others = strategy.get(EVERYTHING) if kind != HISTORY else None
        return strategy.get(unit, strategy.get(kind, others))
