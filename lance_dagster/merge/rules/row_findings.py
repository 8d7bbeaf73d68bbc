"""Report what both sides did to the same rows, or to rows and columns that belong together.

A decision is made for each fragment. A conflict is reported once for all fragments, so that a refused merge of a large
table has a few conflicts and not thousands. Everything here is computed from decisions and changes nothing: the plan
may ask again under other strategies.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from pyroaring import BitMap

from lance_dagster.merge.rules.change_makers import row_makers, value_makers
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.row_decisions import DecidedFragment, Fields, RowRules
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.merge.rules.strategy import (
    BOTH,
    DEST_WINS,
    SOURCE_WINS,
    UNTRACEABLE,
    Conflict,
    Finding,
    Winner,
    add_rows,
    column_unit,
    in_base,
    made_again,
)
from lance_dagster.merge.rules.unnamed_updates import updated_in_place

_OffsetsByKey = dict[BaseKey, BitMap]


def row_findings(
    decided: Sequence[DecidedFragment], without_values: Iterable[tuple[Fields, int, BitMap]], rules: RowRules
) -> Iterator[Finding]:
    """Report the conflicts about rows, and about columns of rows.

    Args:
        decided: What was decided about each fragment.
        without_values: Columns of the source that would come beside rows of the dest which the source does not have:
            the columns, the fragment of the merge base and the offsets in it.
        rules: The rules that decided.
    """
    report = _Report(rules)
    yield from report.written_twice(decided)
    conflicting = [fragment for fragment in decided if fragment.decision.conflicting]
    if conflicting:
        yield report.changed_by_both(conflicting)
    for of_source in (True, False):
        yield from report.lacking_columns(decided, of_source=of_source)
        yield from report.deleted_after_update(decided, writer_is_source=of_source)
    yield from report.both_moved(decided, without_values)


class _Report:
    def __init__(self, rules: RowRules) -> None:
        self._rules, self._source, self._dest = rules, rules.source, rules.dest

    def written_twice(self, decided: Sequence[DecidedFragment]) -> Iterator[Finding]:
        """Report columns that both sides wrote beside the same rows."""
        rows_by_unit: dict[str, _OffsetsByKey] = {}
        fields_by_unit: dict[str, Fields] = {}
        for fragment in decided:
            for number, offsets in fragment.written_twice.items():
                unit = self._rules.schema.units[number]
                fields_by_unit[unit] = fields_by_unit.get(unit, frozenset()) | {number}
                add_rows(rows_by_unit.setdefault(unit, {}), fragment.number, offsets)
        for unit, rows in rows_by_unit.items():
            fields = fields_by_unit[unit]
            source, dest = (f"{self._who_wrote(side, fields)} wrote its values" for side in (self._source, self._dest))
            conflict = self._of_columns(fields, (source, dest))
            yield Finding(conflict=conflict, rows=in_base(rows, fields))

    def changed_by_both(self, decided: Sequence[DecidedFragment]) -> Finding:
        """Report the rows that both sides gave new values, or one gave new values and the other deleted."""
        rows = {fragment.number: fragment.decision.conflicting for fragment in decided}
        count = sum(map(len, rows.values()))
        unit = f"{count} row{'s' * (count > 1)} {_place(rows)}"
        source, dest = (self._did_to(side, rows) for side in (self._source, self._dest))
        # A side cannot win in some fragments only, so it is an option only where the decision for each allows it.
        options = tuple(name for name in BOTH if all(name in fragment.decision.options for fragment in decided))
        conflict = Conflict(kind="rows", unit=unit, source=source, dest=dest)
        again = made_again("the change of these rows", self._source.branch)
        advice = again if self._dest.manifest.stable_row_ids else UNTRACEABLE
        return Finding(conflict=conflict, options=options, rows=in_base(rows), advice=advice)

    def lacking_columns(self, decided: Sequence[DecidedFragment], *, of_source: bool) -> Iterator[Finding]:
        """Report rows that one side updated or moved away from columns that the other side wrote."""
        rows_by_columns: dict[Fields, _OffsetsByKey] = {}
        # Grouped by columns: fragments may lack different columns, and a strategy may be given for each column.
        for fragment in decided:
            situation, decision = fragment.situation, fragment.decision
            columns = situation.source_columns if of_source else situation.dest_columns
            lacking = decision.lacking_source_columns if of_source else decision.lacking_dest_columns
            if lacking and not self._is_settled(fragment, columns, of_source=of_source):
                add_rows(rows_by_columns.setdefault(columns, {}), fragment.number, lacking)
        writer, mover = (self._source, self._dest) if of_source else (self._dest, self._source)
        for columns, rows in rows_by_columns.items():
            count = sum(map(len, rows.values()))
            wrote = f"{self._who_wrote(writer, columns)} wrote its values"
            moved = f"{row_makers(mover, {}, rows)} updated {count} row{'s' * (count > 1)} without them{self._caveat}"
            conflict = self._of_columns(columns, (wrote, moved) if of_source else (moved, wrote))
            lossless = self._without_loss(columns, of_source=of_source)
            outcome = f"keeps the updates, and {count} updated row{'s are' if count > 1 else ' is'} null there"
            yield Finding(
                conflict=conflict,
                options=(),
                rows=in_base(rows),
                lossless=lossless,
                outcome=outcome,
                advice=self._written_again(columns, writer),
            )

    def _without_loss(self, columns: Fields, *, of_source: bool) -> Winner | None:
        """Return the strategy that keeps the updated rows as they are, with nulls in columns that are new."""
        schema = self._rules.schema
        added = schema.added_by_source if of_source else schema.added_by_dest
        # For a column that the merge base has, the values written beside these rows would be lost.
        if not columns <= added or not all(map(schema.nullable, columns)):
            return None
        return DEST_WINS if of_source else SOURCE_WINS

    def deleted_after_update(self, decided: Sequence[DecidedFragment], *, writer_is_source: bool) -> Iterator[Finding]:
        """Report rows that one side updated in place and the other side deleted, without stable row ids.

        With stable row ids the row rules know which rows were updated. Without stable row ids the new values count as
        written beside all rows of the fragment, so a deletion would take them away unnoticed.
        """
        writer, deleter = (self._source, self._dest) if writer_is_source else (self._dest, self._source)
        if writer.manifest.stable_row_ids:
            return
        rows: _OffsetsByKey = {}
        for fragment in decided:
            situation = fragment.situation
            changes = situation.dest if writer_is_source else situation.source
            columns = situation.source_columns if writer_is_source else situation.dest_columns
            # Values of columns that the result does not take from the writer are given up with their columns.
            if not columns and not situation.uncertain:
                continue
            deleted = situation.live - changes.alive - changes.rewritten
            lost = deleted & updated_in_place(writer, fragment.number) if deleted else deleted
            if lost:
                rows[fragment.number] = lost
        if not rows:
            return
        count = sum(map(len, rows.values()))
        wrote = f"{writer.name} may have given them new values, but records only their fragments"
        deletion = f"{row_makers(deleter, {}, rows)} deleted them{self._caveat}; a strategy can keep the deletion"
        unit = f"{count} row{'s' * (count > 1)} {_place(rows)}"
        did = (wrote, deletion) if writer_is_source else (deletion, wrote)
        conflict = Conflict(kind="rows", unit=unit, source=did[0], dest=did[1])
        # The deletion can win. To bring a row back with its new values, it would have to be traced.
        yield Finding(conflict=conflict, options=(DEST_WINS if writer_is_source else SOURCE_WINS,), rows=in_base(rows))

    def both_moved(
        self, decided: Sequence[DecidedFragment], without_values: Iterable[tuple[Fields, int, BitMap]]
    ) -> Iterator[Finding]:
        """Report rows that each side moved away from columns of the other: no place has the values of both."""
        rows_by_columns: dict[tuple[Fields, Fields], _OffsetsByKey] = {}
        nothing: Fields = frozenset()
        for fragment in decided:
            columns = fragment.situation.source_columns, fragment.situation.dest_columns
            if fragment.decision.both_moved:
                add_rows(rows_by_columns.setdefault(columns, {}), fragment.number, fragment.decision.both_moved)
        for source_columns, number, rows in without_values:
            add_rows(rows_by_columns.setdefault((source_columns, nothing), {}), number, rows)
        for (source_columns, dest_columns), moved in rows_by_columns.items():
            wrote = f"{self._who_wrote(self._source, source_columns)} wrote its values beside rows that moved"
            also = f" or wrote {', '.join(self._paths(dest_columns))} beside them" if dest_columns else ""
            # There is no option: it would take a new file with the columns of both, and a merge writes no such file.
            conflict = self._of_columns(source_columns, (wrote, f"{self._dest.name} moved the rows{also}"))
            advice = self._written_again(source_columns, self._source)
            yield Finding(conflict=conflict, options=(), rows=in_base(moved), advice=advice)

    @property
    def _caveat(self) -> str:
        stable = self._dest.manifest.stable_row_ids
        return "" if stable else ", as far as the history shows without stable row ids"

    def _did_to(self, side: MergeSide, rows: _OffsetsByKey) -> str:
        """Say what a side did to rows that are in conflict."""
        undoing = any(change.undone for change in side.history.changes)
        if not undoing and not any(side.ever_had(number, offsets) for number, offsets in rows.items()):
            # A change picked from another branch may be about rows that this branch never got.
            return f"{side.name} does not have them"
        return f"{row_makers(side, {}, rows)} changed or deleted them{self._caveat}"

    def _is_settled(self, decided: DecidedFragment, columns: Fields, *, of_source: bool) -> bool:
        """Tell whether a strategy says what becomes of updated rows that lack the other side's columns."""
        situation, decision = decided.situation, decided.decision
        if situation.uncertain:
            # A row might lose its new values to a column that was never written beside it.
            return False
        owner, mover = (SOURCE_WINS, situation.dest) if of_source else (DEST_WINS, situation.source)
        winner = self._rules.winner_for(columns)
        if winner == owner:
            # The rows are taken from where the columns are. That is impossible where it is unknown which of the new
            # rows have to go instead, and where the columns of both sides are wanted for the same rows.
            return not mover.rewritten and (of_source or not decision.dest_given_up)
        return winner is not None and all(self._rules.schema.nullable(number) for number in columns)

    def _written_again(self, columns: Fields, writer: MergeSide) -> str:
        return made_again(f"the values of {', '.join(self._paths(columns))}", writer.branch)

    def _who_wrote(self, side: MergeSide, fields: Fields) -> str:
        """Name who wrote values of columns, given by their ids in the result, beside rows that stayed."""
        own = {number for number, new in self._rules.schema.from_source.items() if new in fields}
        return value_makers(side, own if side.is_source else fields)

    def _of_columns(self, columns: Fields, did: tuple[str, str]) -> Conflict:
        return Conflict(kind="column", unit=column_unit(self._paths(columns)), source=did[0], dest=did[1])

    def _paths(self, fields: Fields) -> list[str]:
        return sorted({path for number, path in self._rules.schema.units.items() if number in fields})


def _place(fragments: Collection[BaseKey]) -> str:
    """Say in which fragments of the merge base rows are; some may be in none."""
    base_ids = sorted(number for number in fragments if isinstance(number, int))
    if not base_ids:
        return "that the merge base does not have"
    named = f"in fragment{'s' * (len(base_ids) > 1)} {', '.join(map(str, base_ids))} of the merge base"
    return named if len(base_ids) == len(fragments) else f"{named}, and in none"
