"""The rows that differ between two versions, as streams of Arrow record batches.

Rows of both versions in one stream need one schema. It has the columns of the newer version, then those that only the
older one has. A column whose type is not the same stands there twice: under its name as the newer version has it, and
as `<name>_before` as the older one had it. What a version does not have is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.changes.diff import Comparison
from lance_dagster.datafiles import Addresses, rows_at_once
from lance_dagster.table.comparing import RowChanges, parts_of
from lance_dagster.table.versioned_rows import VersionedRows

CHANGE_TYPE, CHANGE_ID = "_change_type", "_change_id"
INSERT, DELETE, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
_BEFORE = "_before"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column of the stream, and what it is called in each version; None where it is not."""

    column: "pa.Field[Any]"
    before: str | None
    after: str | None


class ChangedRows:
    """Streams of rows that differ."""

    def __init__(
        self, before: VersionedRows, after: VersionedRows, comparison: Comparison, columns: Sequence[str] | None
    ) -> None:
        """Choose the columns; None for all."""
        self._before, self._after = before, after
        self._names = _readable(comparison, columns)
        self._comparison = comparison

    def added(self, changes: RowChanges) -> pa.RecordBatchReader:
        """Read the rows only the newer version has, as it has them."""
        return _plain(self._after, changes.added, self._names[1])

    def removed(self, changes: RowChanges) -> pa.RecordBatchReader:
        """Read the rows only the older version has, as it had them."""
        return _plain(self._before, changes.removed, self._names[0])

    def feed(self, changes: RowChanges) -> pa.RecordBatchReader:
        """Read rows of every kind, marked; both images of a row that changed stand one after the other."""
        shown = self._shown()
        marks: list[pa.Field[Any]] = [
            pa.field(CHANGE_TYPE, pa.string(), nullable=False),
            pa.field(CHANGE_ID, pa.int64(), nullable=False),
        ]
        schema = pa.schema([*marks, *(one.column for one in shown)])

        def batches() -> Iterator[pa.RecordBatch]:
            number = 0
            for table, kinds in self._parts(changes, shown):
                images = len(kinds)
                ids = number + np.arange(table.num_rows) // images
                number += table.num_rows // images
                columns: list[Any] = [
                    pa.array(kinds * (table.num_rows // images), pa.string()),
                    pa.array(ids, pa.int64()),
                ]
                whole = pa.table([*columns, *table.columns], schema=schema)
                yield from whole.to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _parts(self, changes: RowChanges, shown: Sequence[_Shown]) -> Iterator[tuple[pa.Table, list[str]]]:
        for rows in self._before.batches(changes.removed, self._names[0]):
            yield _laid_out(rows, shown, after=False), [DELETE]
        step = rows_at_once(self._after.dataset.schema)
        for part in parts_of(len(changes.changed_after), step):
            olds = self._before.take(changes.changed_before[part], self._names[0])
            news = self._after.take(changes.changed_after[part], self._names[1])
            both = pa.concat_tables([_laid_out(olds, shown, after=False), _laid_out(news, shown, after=True)])
            count = olds.num_rows
            yield both.take(np.arange(2 * count).reshape(2, count).T.ravel()), [PREIMAGE, POSTIMAGE]
        for rows in self._after.batches(changes.added, self._names[1]):
            yield _laid_out(rows, shown, after=True), [INSERT]

    def _shown(self) -> list[_Shown]:
        olds, news = self._before.schema(self._names[0]), self._after.schema(self._names[1])
        matched, before, after = self._comparison.matched, self._comparison.before, self._comparison.after
        origins = {
            after.by_id[matched[field.id]].name: field.name for field in before.below(None) if field.id in matched
        }
        shown: list[_Shown] = []
        left = list(olds.names)
        for column in news:
            origin = origins.get(column.name)
            if origin in left and (kind := _common(olds.field(origin).type, column.type)) is not None:
                left.remove(origin)
                shown.append(_Shown(_nullable(column.with_type(kind)), origin, column.name))
            else:
                shown.append(_Shown(_nullable(column), None, column.name))
        taken = {one.column.name for one in shown}
        for name in left:
            column = _nullable(olds.field(name))
            renamed = column.with_name(_free(name, taken))
            taken.add(renamed.name)
            shown.append(_Shown(renamed, name, None))
        return shown


def _readable(comparison: Comparison, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the columns to be read of each version, in its order."""
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


def _plain(side: VersionedRows, addresses: Addresses, names: Sequence[str]) -> pa.RecordBatchReader:
    schema = side.schema(names)

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in side.batches(addresses, names):
            yield from (rows if rows.schema == schema else rows.cast(schema)).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _laid_out(rows: pa.Table, shown: Sequence[_Shown], *, after: bool) -> pa.Table:
    found = []
    for one in shown:
        name = one.after if after else one.before
        if name is None:
            found.append(pa.nulls(rows.num_rows, one.column.type))
            continue
        values = rows.column(name)
        found.append(values if values.type == one.column.type else values.cast(one.column.type))
    return pa.table(found, schema=pa.schema([one.column for one in shown]))


def _nullable(column: "pa.Field[Any]") -> "pa.Field[Any]":
    # Either version may have no value to show there.
    return column.with_nullable(nullable=True)


def _free(name: str, taken: set[str]) -> str:
    if name in taken:
        name = f"{name}{_BEFORE}"
    while name in taken:
        name = f"{name}_"
    return name


def _common(before: pa.DataType, after: pa.DataType) -> Any:  # noqa: ANN401  # as below
    """Return a type that holds the values of both as they are: whether fields inside may be null is let go."""
    if before == after:
        return after
    one, other = _relaxed(before), _relaxed(after)
    return other if one == other else None


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
