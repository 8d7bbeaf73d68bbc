"""Collect what both sides did to the same rows, or to rows and columns that belong together, fragment by fragment."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_dagster.format.transaction import DataReplacement, Delete, Merge, Overwrite, Restore, Rewrite, Update
from lance_dagster.merge.rules.column_matching import backing, paths_of
from lance_dagster.merge.rules.merge_side import Conflict, SideHistory, makers
from lance_dagster.merge.rules.row_changes import GONE, FragmentRowChanges
from lance_dagster.merge.rules.row_decisions import Decision, Situation
from lance_dagster.merge.rules.schema_merge import MergedSchema
from lance_dagster.merge.rules.strategy import BOTH, DEST_WINS, SOURCE_WINS, StrategyResolver, add, of_base
from lance_dagster.transactions.claims import Change
from lance_dagster.transactions.conflicts import touched_fragments

_ROWS = (Update, Delete, Overwrite, Restore)
_COLUMNS = (Merge, DataReplacement, Update, Overwrite, Restore)
_Rows = dict[int, BitMap]


@dataclass(slots=True, kw_only=True)
class RowConflicts:
    """Collect the conflicts about rows of all fragments, and report them together at the end."""

    schema: MergedSchema
    source: SideHistory
    dest: SideHistory
    resolver: StrategyResolver
    columns_moved: frozenset[int] = frozenset()
    rows_back: int = 0
    rows_removed: int = 0
    rows_updated: int = 0
    given_up_by_source: int = 0
    given_up_by_dest: int = 0
    _decisions: dict[int, Decision] = field(default_factory=dict)
    _lacking: dict[tuple[frozenset[int], bool], _Rows] = field(default_factory=dict)
    _both_moved: dict[tuple[frozenset[int], frozenset[int]], _Rows] = field(default_factory=dict)
    _twice: dict[int, tuple[str | None, _Rows]] = field(default_factory=dict)

    def rows_strategy(self) -> str | None:
        """Return the strategy for rows that both sides changed."""
        return self.resolver.winner("rows", "rows")

    def columns_strategy(self, fields: frozenset[int]) -> str | None:
        """Return the strategy for rows that lack the other side's values of some columns."""
        winners = {self.resolver.winner("column", f"column {path}") for path in self._paths(fields)}
        return winners.pop() if len(winners) == 1 else None

    def written_by(
        self,
        base_id: int,
        both_changes: tuple[FragmentRowChanges, FragmentRowChanges],
        source: frozenset[int],
        dest: frozenset[int],
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return of which fields each side's values count for the rows of a fragment.

        Args:
            base_id: The fragment of the merge base.
            both_changes: What became of its rows on the source, and on the dest.
            source: The fields the source wrote.
            dest: Those the dest wrote.
        """
        place, other = (row_changes.place for row_changes in both_changes)
        source_ids = {number: own for own, number in self.schema.from_source.items()}
        for number in source & dest:
            if place is not None and other is not None:
                source_file, dest_file = backing(place).get(source_ids.get(number, -1)), backing(other).get(number)
                if source_file == dest_file:
                    # An earlier merge brought it to both.
                    source -= {number}
                    continue
            if number not in self._twice:
                rows: _Rows = {}
                self._twice[number] = self._settle_column(number, rows), rows
            winner, rows = self._twice[number]
            add(rows, base_id, both_changes[0].alive & both_changes[1].alive)
            if winner == SOURCE_WINS:
                dest -= {number}
            else:
                source -= {number}
        return source, dest

    def decided(self, number: int, facts: Situation, decision: Decision) -> None:
        """Take note of what was decided about a fragment of the merge base."""
        if decision.from_source:
            self.columns_moved |= facts.source_columns
        self.rows_back += len(decision.alive - facts.dest.alive)
        self.rows_removed += len(facts.dest.alive - decision.alive)
        self.rows_updated += len(decision.from_source & facts.source.updated)
        self.given_up_by_source += len(decision.source_given_up)
        self.given_up_by_dest += len(decision.dest_given_up)
        if decision.conflicting:
            self._decisions[number] = decision
        if decision.lacking_source_columns and not self._settled(facts, decision, of_source=True):
            key = facts.source_columns, True
            add(self._lacking.setdefault(key, {}), number, decision.lacking_source_columns)
        if decision.lacking_dest_columns and not self._settled(facts, decision, of_source=False):
            key = facts.dest_columns, False
            add(self._lacking.setdefault(key, {}), number, decision.lacking_dest_columns)
        if decision.both_moved:
            rows = self._both_moved.setdefault((facts.source_columns, facts.dest_columns), {})
            add(rows, number, decision.both_moved)

    def beside(self, columns: frozenset[int], base_id: int, offsets: BitMap) -> None:
        """Take note of columns of the source that would come beside rows of the dest it does not have there."""
        add(self._both_moved.setdefault((columns, frozenset()), {}), base_id, offsets)

    def finish(self) -> None:
        """Tell the resolver what was found, all fragments together."""
        if self._decisions:
            self._tell_rows(self._decisions)
        for (columns, of_source), rows in self._lacking.items():
            count = sum(map(len, rows.values()))
            wrote = f"{_who(self.source if of_source else self.dest, _COLUMNS)} wrote its values"
            moved = (
                f"{_who(self.dest if of_source else self.source, _ROWS)} updated {count} rows without them{self._sure}"
            )
            self._tell_column(columns, (wrote, moved) if of_source else (moved, wrote), rows)
        for (columns, dest_columns), rows in self._both_moved.items():
            wrote = f"{_who(self.source, _COLUMNS)} wrote its values beside rows that moved"
            mover = _who(self.dest, (*_COLUMNS, Rewrite))
            dest_did = f"{mover} moved the rows or wrote {self._named(dest_columns)} beside them"
            self._tell_column(columns, (wrote, dest_did), rows)

    def _tell_rows(self, found: Mapping[int, Decision]) -> None:
        count = sum(len(decision.conflicting) for decision in found.values())
        options = [name for name in BOTH if all(name in decision.options for decision in found.values())]
        unit = f"{count} row{'s' * (count > 1)} {_place(found)}"
        did = [
            f"{_who_touched(side, frozenset(found))} changed or deleted them{self._sure}"
            for side in (self.source, self.dest)
        ]
        rows = of_base({number: decision.conflicting for number, decision in found.items()})
        self.resolver.settle(Conflict(kind="rows", unit=unit, source=did[0], dest=did[1]), options, rows)

    @property
    def _sure(self) -> str:
        stable = self.dest.manifest.stable_row_ids
        return "" if stable else ", as far as that can be told without stable row ids"

    def _settled(self, facts: Situation, decision: Decision, *, of_source: bool) -> bool:
        """Tell whether a strategy says what becomes of updated rows that lack the other side's columns."""
        if facts.uncertain:
            # A row might lose its new values to a column that was never written beside it.
            return False
        columns, owner, mover = facts.source_columns, SOURCE_WINS, facts.dest
        if not of_source:
            columns, owner, mover = facts.dest_columns, DEST_WINS, facts.source
        winner = self.columns_strategy(columns)
        if winner == owner:
            # The rows are taken from where the columns are; which new ones have to go, nobody may be able to tell.
            # Nor are they where the columns of the dest are, when they are where those of the source are.
            return not mover.rewritten and (of_source or not decision.dest_given_up)
        return winner is not None and all(self.schema.nullable(number) for number in columns)

    def _settle_column(self, number: int, rows: _Rows) -> str | None:
        did = [f"{_who(side, _COLUMNS)} wrote its values" for side in (self.source, self.dest)]
        unit = f"column {self._named(frozenset({number}))}"
        # Fragments that are decided later add their rows to `rows`.
        conflicting_rows = of_base(rows, frozenset({number}))
        return self.resolver.settle(
            Conflict(kind="column", unit=unit, source=did[0], dest=did[1]), rows=conflicting_rows
        )

    def _tell_column(self, columns: frozenset[int], did: tuple[str, str], rows: _Rows) -> None:
        unit = f"column {self._named(columns)}"
        self.resolver.refuse(Conflict(kind="column", unit=unit, source=did[0], dest=did[1]), of_base(rows))

    def _named(self, fields: frozenset[int]) -> str:
        return ", ".join(self._paths(fields))

    def _paths(self, fields: frozenset[int]) -> list[str]:
        return sorted(path for number, path in paths_of(self.schema.fields).items() if number in fields)


def _place(fragments: Collection[int]) -> str:
    """Say in which fragments of the merge base rows are; some may be in none."""
    known = sorted(number for number in fragments if number < GONE)
    if not known:
        return "that the merge base does not have"
    named = f"in fragment{'s' * (len(known) > 1)} {', '.join(map(str, known))} of the merge base"
    return named if len(known) == len(fragments) else f"{named}, and in none"


def _who_touched(side: SideHistory, fragments: frozenset[int]) -> str:
    """Name who changed rows of some fragments of the merge base; all who changed rows, where that cannot be told."""
    if side.anchor is None or not side.same_ids:
        return _who(side, _ROWS)
    elsewhere = frozenset(side.anchor.fragments.ids) - fragments

    def may_have(change: Change) -> bool:
        if not isinstance(change.operation, Update | Delete):
            return isinstance(change.operation, _ROWS) or change.transaction is None
        # A fragment the merge base does not have may hold rows that were moved.
        return not touched_fragments(change.operation) <= elsewhere

    return makers(side, may_have)


def _who(side: SideHistory, operations: tuple[type, ...]) -> str:
    return makers(side, lambda change: isinstance(change.operation, operations) or change.transaction is None)
