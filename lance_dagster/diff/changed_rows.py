"""Stream the rows that differ between two versions as Arrow record batches.

A stream of rows of both versions needs one schema: the columns of the newer version, then the columns that only the
older one has. A column that changed its type appears twice, under its name with the newer values and as `<name>_before`
with the older values. A value that a version lacks is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import batch_size, take
from lance_dagster.diff.manifest_diff import Comparison
from lance_dagster.diff.row_comparison import RowDifferences, parts_of
from lance_dagster.diff.versioned_rows import RowOffsets, VersionedRows
from lance_dagster.errors import InvalidInputError

CHANGE_TYPE, CHANGE_ID = "_change_type", "_change_id"
INSERT, DELETE, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
_BEFORE = "_before"


@dataclass(frozen=True, slots=True)
class _StreamColumn:
    """A column of the stream, and its name in each version; None in a version that does not have it."""

    column: "pa.Field[Any]"
    before: str | None
    after: str | None


class ChangedRows:
    """Reads the rows that differ as streams."""

    def __init__(
        self, before: VersionedRows, after: VersionedRows, comparison: Comparison, columns: Sequence[str] | None
    ) -> None:
        """Take the versions and the columns to read; None for all."""
        self._before, self._after = before, after
        self._names = _readable(comparison, columns)
        self._comparison = comparison

    def added(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read the rows only the newer version has, as it has them."""
        return _read_version(self._after, changes.added, self._names[1])

    def removed(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read the rows only the older version has, as it had them."""
        return _read_version(self._before, changes.removed, self._names[0])

    def feed(self, changes: RowDifferences) -> pa.RecordBatchReader:
        """Read rows of every kind as a change feed; a preimage is followed by its postimage.

        Raises:
            InvalidInputError: The table has a column with the name of a column of the feed.
        """
        shown = self._shown()
        doubled = {CHANGE_TYPE, CHANGE_ID} & {column.column.name for column in shown}
        if doubled:
            raise InvalidInputError(
                f"the feed has a column {min(doubled)!r} of its own, and so has the table; name the columns to read "
                "without it (`columns`), or rename it"
            )
        marks: list[pa.Field[Any]] = [
            pa.field(CHANGE_TYPE, pa.string(), nullable=False),
            pa.field(CHANGE_ID, pa.int64(), nullable=False),
        ]
        schema = pa.schema([*marks, *(column.column for column in shown)])

        def batches() -> Iterator[pa.RecordBatch]:
            number = 0
            for table, kinds in self._context(changes, shown):
                # A preimage and its postimage are one change, so both get the same id.
                rows_each = len(kinds)
                ids = number + np.arange(table.num_rows) // rows_each
                number += table.num_rows // rows_each
                columns: list[Any] = [
                    pa.array(kinds * (table.num_rows // rows_each), pa.string()),
                    pa.array(ids, pa.int64()),
                ]
                feed = pa.table([*columns, *table.columns], schema=schema)
                yield from feed.to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _context(self, changes: RowDifferences, shown: Sequence[_StreamColumn]) -> Iterator[tuple[pa.Table, list[str]]]:
        for rows in self._before.batches(changes.removed, self._names[0]):
            yield _as_stream(rows, shown, after=False), [DELETE]
        step = batch_size(self._after.dataset.schema)
        for part in parts_of(len(changes.changed_after), step):
            olds = self._before.take(changes.changed_before[part], self._names[0])
            news = self._after.take(changes.changed_after[part], self._names[1])
            images = pa.concat_tables([_as_stream(olds, shown, after=False), _as_stream(news, shown, after=True)])
            count = olds.num_rows
            # The rows are interleaved: preimage and postimage of each row follow one another.
            yield take(images, np.arange(2 * count).reshape(2, count).T.ravel()), [PREIMAGE, POSTIMAGE]
        for rows in self._after.batches(changes.added, self._names[1]):
            yield _as_stream(rows, shown, after=True), [INSERT]

    def _shown(self) -> list[_StreamColumn]:
        olds, news = self._before.schema(self._names[0]), self._after.schema(self._names[1])
        matched, before, after = self._comparison.matched, self._comparison.before, self._comparison.after
        origins = {
            after.by_id[matched[field.id]].name: field.name for field in before.below(None) if field.id in matched
        }
        shown: list[_StreamColumn] = []
        remaining = list(olds.names)
        for column in news:
            origin = origins.get(column.name)
            if origin in remaining and (kind := _common_type(olds.field(origin).type, column.type)) is not None:
                remaining.remove(origin)
                shown.append(_StreamColumn(_nullable(column.with_type(kind)), origin, column.name))
            else:
                shown.append(_StreamColumn(_nullable(column), None, column.name))
        # A column with old values under `<name>_before` must not hide a column of the table that has this name.
        names = {shown_column.column.name for shown_column in shown}
        for name in remaining:
            column = _nullable(olds.field(name))
            renamed = column.with_name(_unused_name(name, names))
            names.add(renamed.name)
            shown.append(_StreamColumn(renamed, name, None))
        return shown


def _readable(comparison: Comparison, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the columns to read from each version, in the order of that version."""
    before, after = comparison.before, comparison.after
    if columns is None:
        return [field.name for field in before.below(None)], [field.name for field in after.below(None)]
    origins = {new: old for old, new in comparison.matched.items()}
    news = {field.name: field for field in after.below(None)}
    olds = {field.name: field for field in before.below(None)}
    of_old = [
        before.by_id[origins[news[name].id]].name for name in columns if name in news and news[name].id in origins
    ]
    of_old += [name for name in columns if name not in news and name in olds]
    return list(dict.fromkeys(of_old)), [name for name in columns if name in news]


def _read_version(side: VersionedRows, offsets: RowOffsets, names: Sequence[str]) -> pa.RecordBatchReader:
    schema = side.schema(names)

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in side.batches(offsets, names):
            # pylance may mark columns nullable that the schema does not; the stream has one schema.
            yield from (rows if rows.schema == schema else rows.cast(schema)).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _as_stream(rows: pa.Table, shown: Sequence[_StreamColumn], *, after: bool) -> pa.Table:
    arrays = []
    for shown_column in shown:
        name = shown_column.after if after else shown_column.before
        if name is None:
            arrays.append(pa.nulls(rows.num_rows, shown_column.column.type))
            continue
        values = rows.column(name)
        arrays.append(values if values.type == shown_column.column.type else values.cast(shown_column.column.type))
    return pa.table(arrays, schema=pa.schema([shown_column.column for shown_column in shown]))


def _nullable(column: "pa.Field[Any]") -> "pa.Field[Any]":
    # A row of the other version may have no value in this column.
    return column.with_nullable(nullable=True)


def _unused_name(name: str, names: set[str]) -> str:
    if name in names:
        name = f"{name}{_BEFORE}"
    while name in names:
        name = f"{name}_"
    return name


def _common_type(before: pa.DataType, after: pa.DataType) -> Any:  # noqa: ANN401  # as below
    """Return a type that holds the values of both types unchanged; None if there is none.

    The nullability of inner fields does not matter.
    """
    if before == after:
        return after
    old_type, new_type = _relaxed(before), _relaxed(after)
    return new_type if old_type == new_type else None


def _relaxed(arrow: Any) -> Any:  # noqa: ANN401  # any Arrow type; the stubs have no union of them
    if pa.types.is_struct(arrow):
        fields = [arrow.field(place) for place in range(arrow.num_fields)]
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in fields])
    if pa.types.is_fixed_size_list(arrow):
        return pa.list_(pa.field("item", _relaxed(arrow.value_type)), arrow.list_size)
    if pa.types.is_list(arrow):
        return pa.list_(pa.field("item", _relaxed(arrow.value_type)))
    if pa.types.is_large_list(arrow):
        return pa.large_list(pa.field("item", _relaxed(arrow.value_type)))
    return arrow
