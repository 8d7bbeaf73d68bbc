"""Check that the rows of a replacement satisfy the predicate of its claim.

`replace_where` claims that its rows are all rows for which the predicate is true. A merge relies on the claim: it
removes rows by the predicate. A row outside of it would survive the next replacement of the same scope, and would then
occur twice.

The check reads only the columns that the predicate names. Arrow rows are checked while they are written, staged files
are read. Executors that write rows check them by a `RowTally` with the scope of `predicate_scope`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lance_dagster.datafiles import RowFilter, RowScope, RowTally, blob_columns, conform, evaluate_predicate
from lance_dagster.datafiles.writing import StagedFiles
from lance_dagster.edit.staged_files import read_staged
from lance_dagster.errors import InvalidInputError, Remedy, counted
from lance_dagster.format.shown_values import shown_rows
from lance_dagster.format.sql_text import columns_in
from lance_dagster.format.validation import check_string
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State

# An evaluation costs about two milliseconds, however few rows there are, so the rows of small batches are collected.
_ROWS_AT_ONCE = 64 * 1024
_SHOWN = 3
# Virtual columns of a scan. Their values in memory differ from their values in the table, which the commit gives to the
# rows.
_VIRTUAL = ("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version")
_REMEDY = Remedy("leave these rows out, or give a predicate that is true for them too; append adds any rows")


def predicate_scope(predicate: str, schema: pa.Schema) -> RowScope:
    """Return the scope of the rows that satisfy a predicate, by which other processes count them while they write.

    Args:
        predicate: The predicate.
        schema: The columns of the rows, in the types of the table.

    Raises:
        InvalidInputError: The predicate is invalid, or names a virtual column.
    """
    check_string("the predicate", predicate)
    _refuse_virtual(predicate, schema)
    # Before any row is written, and only for its error.
    evaluate_predicate(predicate, pa.Table.from_batches([], schema))
    # A scope has at least one column, and a constant predicate names none.
    columns = columns_in(predicate, schema.names) or schema.names[:1]
    return RowScope(within=RowFilter(predicate=predicate, expression=None, columns=tuple(columns)))


def refuse_outside(tally: RowTally) -> None:
    """Refuse a write whose tally has rows outside of the scope of `predicate_scope`.

    Raises:
        InvalidInputError: There are such rows. They may be in data files, which no version names.
    """
    if tally.scope is not None and tally.outside:
        complaint = _complaint(tally.outside, tally.rows, tally.scope.within.predicate)
        raise InvalidInputError(f"{complaint}, such as one with {tally.example}; nothing was committed", remedy=_REMEDY)


@dataclass(slots=True)
class PredicateCheck:
    """The check of the rows of one write against the predicate that the write claims."""

    predicate: str
    schema: pa.Schema
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _checked: int = 0

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, in the schema of the table, and check them; the last rows are checked at the end.

        Raises:
            InvalidInputError: A row does not satisfy the predicate. Earlier rows may be in data files, which no
                version names.
            SchemaMismatchError: A batch does not fit the schema.
        """
        for batch in batches:
            # Conformed first: the predicate is about values in the types of the table.
            conformed = conform(batch, self.schema)
            self._add(conformed.select(self._columns))
            yield conformed
        self._finish()

    def passed(self, batches: Iterable[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Check batches that are in memory, all batches at once, so that the error counts every row; return them.

        Raises:
            InvalidInputError: A row does not satisfy the predicate.
            SchemaMismatchError: A batch does not fit the schema.
        """
        conformed = [conform(batch, self.schema) for batch in batches]
        self._waiting.extend(batch.select(self._columns) for batch in conformed)
        self._finish()
        return conformed

    def check_staged(self, context: TableContext, head: State, staged: StagedFiles) -> None:
        """Check the rows of staged files, by the columns of the predicate.

        Raises:
            InvalidInputError: A row does not satisfy the predicate, or the predicate is about blobs and another column.
            StoreError: A file cannot be read.
        """
        blobs = [name for name in blob_columns(self.schema) if name in self._columns]
        # pylance fails to read a column of blobs of a file together with another column.
        if blobs and len(self._columns) > 1:
            raise InvalidInputError(
                f"staged files cannot be checked by the predicate {self.predicate!r}, since column {blobs[0]!r} holds "
                "blobs",
                remedy=Remedy("give the rows themselves, or a predicate without that column"),
            )
        # Without a column every row gives the same result; one column of the file tells how many rows there are.
        columns = self._columns or self.schema.names[:1]
        for batch in read_staged(context, head, staged, columns):
            self._add(batch.select(self._columns))
        self._finish()

    def _finish(self) -> None:
        """Check the rows that were collected since the last check.

        Raises:
            InvalidInputError: A row does not satisfy the predicate.
        """
        rows = pa.Table.from_batches(self._waiting) if self._waiting else None
        self._waiting = []
        if rows is None or not rows.num_rows:
            return
        self._checked += rows.num_rows
        _refuse_virtual(self.predicate, self.schema)
        satisfied = evaluate_predicate(self.predicate, rows)
        if not satisfied.all():
            raise self._refusal(rows.filter(pa.array(~satisfied)))

    @property
    def _columns(self) -> list[str]:
        return columns_in(self.predicate, self.schema.names)

    def _add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        if sum(waiting.num_rows for waiting in self._waiting) >= _ROWS_AT_ONCE:
            self._finish()

    def _refusal(self, wrong: pa.Table) -> InvalidInputError:
        values = _values(wrong)
        return InvalidInputError(
            f"{_complaint(wrong.num_rows, self._checked, self.predicate)}"
            f"{f': {values}' if values else ''}; nothing was committed",
            remedy=_REMEDY,
        )


def _complaint(wrong: int, checked: int, predicate: str) -> str:
    rows = f"{wrong:,} of {counted(checked, 'row')}"
    return f"{rows} {'does' if wrong == 1 else 'do'} not satisfy the predicate {predicate!r} of the replacement"


def _refuse_virtual(predicate: str, schema: pa.Schema) -> None:
    named = columns_in(predicate, _VIRTUAL)
    virtual = next((name for name in named if name not in schema.names), None)
    if virtual is not None:
        raise InvalidInputError(
            f"the predicate {predicate!r} names {virtual}, which new rows do not have before the commit",
            remedy=Remedy("delete the rows and append the new ones, or name a column of the table"),
        )


def _values(rows: pa.Table) -> str:
    """Return the values of rows and how many rows have each, the most frequent first."""
    columns = [name for name in rows.column_names if not pa.types.is_nested(rows.schema.field(name).type)]
    if not columns:
        return ""
    # Names that Arrow's `count_all` is not among, whatever the columns are called.
    numbered = [f"column {place}" for place in range(len(columns))]
    plain: Any = pa.Table.from_arrays([_plain(rows.column(name)) for name in columns], numbered)
    groups = plain.group_by(numbered, use_threads=False).aggregate([([], "count_all")])
    counts = groups.sort_by([("count_all", "descending")])
    shown = [
        f"{_described(columns, [row[name] for name in numbered])} ({counted(row['count_all'], 'row')})"
        for row in shown_rows(counts.slice(0, _SHOWN))
    ]
    more = counts.num_rows - len(shown)
    return ", ".join(shown) + (f" and {more} other values" if more > 1 else " and another value" if more else "")


def _described(columns: Sequence[str], values: Sequence[object]) -> str:
    named = zip(columns, values, strict=True)
    return " and ".join(f"{name} is null" if value is None else f"{name} = {value!r}" for name, value in named)


def _plain(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    # Arrow groups plain values only, not dictionaries and not extension types.
    storage: list[Any] = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    plain = [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in storage]
    return pa.chunked_array(plain)
