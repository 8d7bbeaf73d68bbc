"""Conflicts, the strategies that settle them, and the findings that rules return.

A rule returns a `Finding` for every place where both sides changed the same thing, and says which strategies it can
carry out there. It asks the strategy who wins, and goes on with the result of that; without a winner it goes on as if
the dest won. Whether a finding refuses the merge is decided by the plan, for all findings in one place.

Invariant: a `ParsedStrategy` never changes, so the answer to "who wins" does not depend on which rule asks first.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar, get_args

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.merge.rules.row_origins import BaseRows

Winner = Literal["source-wins", "dest-wins"]
"""The side whose change a merge takes where both changed the same thing."""
SOURCE_WINS: Literal["source-wins"] = "source-wins"
DEST_WINS: Literal["dest-wins"] = "dest-wins"
BOTH: tuple[Winner, ...] = (SOURCE_WINS, DEST_WINS)
ConflictKind = Literal[
    "rows", "partition", "table", "column", "schema", "config", "table_metadata", "schema_metadata", "history"
]
"""The subject of a conflict."""
KINDS: tuple[ConflictKind, ...] = get_args(ConflictKind)
EVERYTHING = "*"
HISTORY: Literal["history"] = "history"
_UNIT = re.compile(
    # The key of a partition may be empty.
    r"partition .*|(column|version|metadata of column|(config|table_metadata|schema_metadata) key) .+"
    r"|the whole table|rows (where .+|of any key)",
    re.DOTALL,
)
"""The units that a strategy can be given for."""
_ROWS_UNIT = re.compile(r"\d+ rows?( .+)?", re.DOTALL)
_SCOPES = ("partition ", "rows where ")
"""The prefixes of units of claims."""
_UNITS_LISTED = 5
_COLUMN_UNIT = re.compile(r"(column|metadata of column) (.+)", re.DOTALL)

Strategy = Winner | Mapping[str, Winner] | None
"""One strategy for everything, or one for each unit or kind of conflict, such as {"column price": "source-wins"}.

"*" stands for all that is not named. A version that was cleaned up is waived by a strategy for "history" only.
"""
Rows = Mapping[int, BitMap]
"""Offsets by fragment id."""
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One reason why two sides cannot be merged: what it is about, and what both sides did.

    `unit` names the conflict within the table, and is the key of a strategy for this conflict alone. The unit of a
    conflict about rows only counts the rows, so a strategy for rows is given by the kind. `table` is the URI of the
    table, and `hint` says which strategies settle the conflict. `keys` name the first few of its rows, such as "id 7",
    where the table declares a key or a side upserted by key columns; "..." follows where there are more rows.
    """

    kind: ConflictKind
    unit: str
    source: str
    dest: str
    table: str = field(default="", compare=False)
    hint: str = field(default="", compare=False)
    keys: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        """Say what it is about and what both sides did."""
        rows = f" ({', '.join(self.keys)})" if self.keys else ""
        return f"{self.unit}{rows}: {self.source}; {self.dest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingRows:
    """Rows of a conflict: rows of the merge base by its fragments, other rows by the fragments of their side.

    Rows of a side may be given by their place there even if the merge base has them. `fields` are the ids, on the dest,
    of fields that both sides wrote beside these rows: a row whose values are still equal is not shown.
    """

    base: BaseRows = field(default_factory=dict)
    source: Rows = field(default_factory=dict)
    dest: Rows = field(default_factory=dict)
    fields: frozenset[int] = frozenset()


UNTRACEABLE = (
    "the table has no stable row ids, so updated rows cannot be traced; reset one side to a version before its change"
)
"""The advice for a conflict that no strategy settles because rows cannot be traced."""
RowsLookup = Callable[[], ConflictingRows]
"""Finds the rows of a conflict when they are read. A merge never calls it: it may read data files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A conflict that a rule found, the strategies it can carry out there, and the rows it is about.

    `lossless` is the strategy that loses nothing of either side, if there is one, and `outcome` says what it leads to.
    `advice` says what to do where no strategy settles it. `on` are the key columns, as the dest calls them, of a
    conflict about keys.
    """

    conflict: Conflict
    options: tuple[Winner, ...] = BOTH
    rows: RowsLookup | None = None
    lossless: Winner | None = None
    outcome: str = ""
    advice: str = ""
    on: tuple[str, ...] = ()


def unsettled(
    kind: ConflictKind, unit: str, did: tuple[str, str], advice: str = "", *, rows: RowsLookup | None = None
) -> Finding:
    """Return a conflict that no strategy settles, given what the source and the dest did."""
    return Finding(
        conflict=Conflict(kind=kind, unit=unit, source=did[0], dest=did[1]), options=(), rows=rows, advice=advice
    )


def made_again(what: str, branch: str) -> str:
    """Return the advice to revert a change on one branch, and to make it again after the merge."""
    return f"undo {what} on {branch} (`revert`), try again, and make it once more on the result"


def made_after_reset(what: str, branch: str) -> str:
    """Return the advice to go back to before a change of the schema, and to make it after the merge.

    A revert does not help there: a column that was out of the schema once does not count as the same column again.
    """
    # `main` cannot be reset; a version that is restored there brings back the columns, too.
    verb, method = ("restore", "restore") if branch == MAIN else ("reset", "branches.reset")
    return f"{verb} {branch} to before {what} (`{method}`), try again, and make it once more on the result"


def column_unit(paths: Iterable[str]) -> str:
    """Return the unit of a conflict about one or several columns."""
    return f"column {', '.join(sorted(paths))}"


def in_base(rows: BaseRows, fields: frozenset[int] = frozenset()) -> RowsLookup:
    """Refer to rows of the merge base."""
    return lambda: ConflictingRows(base=rows, fields=fields)


def on_side(rows: Rows, *, source: bool) -> RowsLookup:
    """Refer to rows of one side, by their place there."""
    return lambda: ConflictingRows(source=rows) if source else ConflictingRows(dest=rows)


def add_rows(rows: dict[_Key, BitMap], key: _Key, offsets: BitMap) -> None:
    """Add rows of a fragment to collected rows."""
    if offsets:
        # A union with an empty set takes many times as long as a copy where a fragment has millions of rows.
        rows[key] = rows[key] | offsets if key in rows else offsets.copy()


@dataclass(frozen=True, slots=True)
class ParsedStrategy:
    """A strategy that was checked, as winners by unit, by kind and for everything else."""

    winners: Mapping[str, Winner]

    NONE: ClassVar["ParsedStrategy"]

    @classmethod
    def parse(cls, strategy: Strategy) -> "ParsedStrategy":
        """Check a strategy.

        Raises:
            InvalidInputError: The strategy is unknown, or is given for something that no conflict can be about.
        """
        if strategy is None:
            return cls({})
        winners: dict[str, Winner] = dict(strategy) if isinstance(strategy, Mapping) else {EVERYTHING: strategy}
        for key, name in winners.items():
            if name not in BOTH:
                raise InvalidInputError(f"{name!r} is not a strategy; use {SOURCE_WINS!r} or {DEST_WINS!r}")
            _check_key(str(key))
        return cls(winners)

    def winner(self, kind: ConflictKind, unit: str) -> Winner | None:
        """Return the strategy given for a unit, else for its kind, else for everything.

        A strategy for everything does not apply to the history: it must not discard changes of a side that no
        transaction describes any more.
        """
        fallback = self.winners.get(EVERYTHING) if kind != HISTORY else None
        return self.winners.get(unit, self.winners.get(kind, fallback))

    def winner_of(self, finding: Finding) -> Winner | None:
        """Return the strategy that settles a finding, or None when the conflict stays open."""
        winner = self.winner(finding.conflict.kind, finding.conflict.unit)
        return winner if winner in finding.options else None

    def winner_for_columns(self, paths: Iterable[str]) -> Winner | None:
        """Return the strategy that all columns have in common; None when they differ or have none."""
        paths = sorted(paths)
        # A conflict about several columns names them in one unit, which a strategy may be given for as well.
        together = self.winners.get(column_unit(paths))
        winners = {together or self.winner("column", column_unit([path])) for path in paths}
        return winners.pop() if len(winners) == 1 else None

    def open_among(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return the findings that refuse the merge."""
        return tuple(finding for finding in findings if self.winner_of(finding) is None)

    def check_columns(self, paths: Collection[str]) -> None:
        """Refuse a strategy for a column that neither side has.

        Args:
            paths: The paths of all columns of both sides and of the merge base.

        Raises:
            InvalidInputError: The error lists the units that exist.
        """
        for key in self.winners:
            match = _COLUMN_UNIT.fullmatch(key)
            # A path may contain the comma that stands between the columns of a unit.
            if match is None or match[2] in paths or set(match[2].split(", ")) <= set(paths):
                continue
            units = ", ".join(repr(f"{match[1]} {path}") for path in paths)
            raise InvalidInputError(
                f"neither side has the column that the strategy names, {key!r}; it may name {units}"
            )

    def check_scopes(self, units_known: Callable[[], Iterable[str]]) -> None:
        """Refuse a strategy for a partition or a condition that no conflict of a merge can be about.

        Args:
            units_known: Returns the units of all partitions and conditions that either side claimed, or that are in
                conflict.

        Raises:
            InvalidInputError: The error names the nearest unit, or lists the units that exist.
        """
        scopes = [key for key in self.winners if key.startswith(_SCOPES)]
        if not scopes:
            return
        units = list(dict.fromkeys(units_known()))
        for key in scopes:
            if key not in units:
                raise InvalidInputError(f"neither side claimed {key!r}; {_nearest(key, units)}")

    def without(self, keys: Collection[str]) -> "ParsedStrategy":
        """Return the part of this strategy that is for other keys."""
        return ParsedStrategy({key: winner for key, winner in self.winners.items() if key not in keys})

    def with_winners(self, winners: Mapping[str, Winner]) -> "ParsedStrategy":
        """Return this strategy with winners added for keys that it does not have."""
        return ParsedStrategy({**winners, **self.winners})


ParsedStrategy.NONE = ParsedStrategy({})


def _nearest(key: str, units: Sequence[str]) -> str:
    """Say which unit a misspelled one probably means, or which units there are."""
    # Names are compared without their common prefix, which would make different names look alike.
    kind = next(prefix for prefix in _SCOPES if key.startswith(prefix))
    names = {unit.removeprefix(kind): unit for unit in units if unit.startswith(kind)}
    if close := difflib.get_close_matches(key.removeprefix(kind), names, n=1):
        return f"did you mean {names[close[0]]!r}?"
    listed = ", ".join(map(repr, units[:_UNITS_LISTED])) + (", ..." if len(units) > _UNITS_LISTED else "")
    return f"the units are {listed}" if units else "neither side claimed a partition, or rows by a condition"


def _check_key(key: str) -> None:
    """Refuse a key that names no kind of conflict and cannot be a unit.

    Raises:
        InvalidInputError: The error lists the valid keys.
    """
    if key in (*KINDS, EVERYTHING) or _UNIT.fullmatch(key):
        return
    if _ROWS_UNIT.fullmatch(key):
        raise InvalidInputError(f"{key!r} only counts rows of a conflict; a strategy is given for all of them: 'rows'")
    close = difflib.get_close_matches(key, KINDS, n=1)
    valid_keys = f"there are {', '.join(KINDS)}, and units such as 'column price'"
    hint = f"did you mean {close[0]!r}?" if close else valid_keys
    raise InvalidInputError(f"{key!r} is not a kind of conflict; {hint}")
