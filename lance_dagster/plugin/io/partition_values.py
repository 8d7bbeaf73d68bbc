"""The rows that the keys of one dimension select, by the values of a column or of an SQL expression.

A time partition selects a window of dates or timestamps; any other key is compared with the value itself.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.datafiles import GroupDimension, evaluate_predicate, expression_type
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import columns_in, instant, literal, quote_name
from lance_dagster.plugin import metadata as md

# The time window of a partition key.
Windows = Callable[[str], dg.TimeWindow]
_NAME = re.compile(r"\w+")
# A 64-bit integer has fewer digits; the rest can be zeros in front of it.
_INTEGER = re.compile(r"-?[0-9]{1,100}")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFilter:
    """A filter that selects the rows of some partitions.

    Attributes:
        predicate: The filter in Lance SQL.
        expression: The same filter in Arrow; None when a partition is given by an SQL expression, which only Lance
            can evaluate.
        columns: The columns that the filter reads.
        hint: Why rows that look right may be outside of the partitions; empty when there is no such reason.
    """

    predicate: str
    expression: pc.Expression | None
    columns: tuple[str, ...] = ()
    hint: str = ""

    def outside(self, rows: pa.Table) -> int:
        """Count the rows outside the partitions. A null belongs to no partition, so its row is counted."""
        if self.expression is None:
            # Only with rows: an evaluation costs about two milliseconds.
            inside = int(evaluate_predicate(self.predicate, rows.select(self.columns)).sum()) if rows.num_rows else 0
            return rows.num_rows - inside
        # Subtract rather than filter by the inverse: the inverse of a null is null, which would miss such
        # rows.
        return rows.num_rows - rows.filter(self.expression).num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionValues:
    """The values that the keys of one dimension are compared with.

    Attributes:
        name: The column or the SQL expression, as the asset's metadata has it.
        sql: The column or the expression, as a term of Lance SQL.
        kind: The type of the values.
        columns: The columns that the values are computed from.
        arrow: The values in Arrow; None for an SQL expression.
    """

    name: str
    sql: str
    kind: pa.DataType
    columns: tuple[str, ...]
    arrow: pc.Expression | None

    @classmethod
    def of(cls, expression: str, schema: pa.Schema, asset: str) -> "PartitionValues":
        """Return the values of a column, or of an SQL expression over columns.

        Args:
            expression: A column's name, else an expression in Lance SQL, such as `date_trunc('day', at)`.
            schema: The columns of the table.
            asset: The asset's name, for error messages.

        Raises:
            InvalidInputError: There is no such column, or the expression is invalid or names no column.
        """
        if expression in schema.names:
            return cls._of_column(schema.field(expression))
        if not schema.names:
            # The table of an output without columns has no rows either, so no partition selects any.
            return cls(name=expression, sql="NULL", kind=pa.null(), columns=(), arrow=None)
        columns = tuple(columns_in(expression, schema.names))
        if _NAME.fullmatch(expression) or not columns:
            raise InvalidInputError(
                f"{md.PARTITION_EXPR} of {asset} names {'column ' if _NAME.fullmatch(expression) else 'no column: '}"
                f"{expression!r}; the columns are {', '.join(schema.names)}"
            )
        try:
            kind = expression_type(expression, pa.schema([schema.field(name) for name in columns]))
        except InvalidInputError as error:
            names = ", ".join(schema.names)
            raise InvalidInputError(f"{md.PARTITION_EXPR} of {asset}: {error}; the columns are {names}") from None
        return cls(name=expression, sql=f"({expression})", kind=_plain_type(kind), columns=columns, arrow=None)

    @classmethod
    def _of_column(cls, column: "pa.Field[Any]") -> "PartitionValues":
        kind, values = _plain_type(column.type), pc.field(column.name)
        return cls(
            name=column.name,
            sql=quote_name(column.name),
            kind=kind,
            columns=(column.name,),
            # Arrow does not compare the values of a dictionary with plain values.
            arrow=values if kind == column.type else values.cast(kind),
        )

    def select(self, keys: Iterable[str], windows: Windows | None) -> PartitionFilter:
        """Return the filter for some keys of this dimension.

        Args:
            keys: The keys.
            windows: The time window of each key; None when the dimension is not one of time.

        Raises:
            InvalidInputError: A key cannot be compared with these values.
        """
        if pa.types.is_null(self.kind):
            # The column holds no value yet.
            return PartitionFilter(predicate="false", expression=pc.scalar(False), columns=self.columns)  # noqa: FBT003
        timed = pa.types.is_date(self.kind) or pa.types.is_timestamp(self.kind)
        # A time partition over text, such as `2026-05-01`, is compared as text below.
        if windows is not None and timed:
            return any_of([self._window(start, end) for start, end in _joined(map(windows, keys))])
        if timed:
            raise InvalidInputError(
                f"column {self.name!r} is {self.kind}, which only partitions by time can select from"
            )
        # Sorted, so that the predicate of the same partitions is the same text in each run.
        values = {key: self._value(key) for key in sorted(set(keys))}
        listed = ", ".join(literal(value) for value in values.values())
        arrow = None if self.arrow is None else self.arrow.isin(self._array(values))
        return PartitionFilter(predicate=f"{self.sql} IN ({listed})", expression=arrow, columns=self.columns)

    def groups(self, keys: Iterable[str], windows: Windows | None) -> GroupDimension:
        """Return the keys of this dimension as groups of rows; the arguments and errors are those of `select`."""
        name = self.columns[0] if self.arrow is not None else ""
        none = GroupDimension(column=name, sql=self.sql, kind=self.kind, keys=(), values=())
        if pa.types.is_null(self.kind):
            return none
        if windows is None or not (pa.types.is_date(self.kind) or pa.types.is_timestamp(self.kind)):
            values = {key: self._value(key) for key in keys}
            return replace(none, keys=tuple(values), values=tuple(values.values()))
        spans = [
            (self._number(window.start), self._number(window.end), key)
            for key, window in ((key, windows(key)) for key in keys)
        ]
        # The window of the second occurrence of an hour is empty where times have no zone.
        numbered = sorted(span for span in spans if span[0] < span[1])
        begins, ends, names = zip(*numbered, strict=True) if numbered else ((), (), ())
        return replace(none, keys=names, values=begins, ends=ends)

    def refuse_repeated(self, repeated: Mapping[str, str]) -> None:
        """Refuse keys that select the same rows as another key: each would replace the rows of the other.

        Args:
            repeated: Keys by which the same number or truth value is written in two ways, such as `01` with the key
                `1`.

        Raises:
            InvalidInputError: A key is the same value of this type as the other key.
        """
        if not (pa.types.is_integer(self.kind) or pa.types.is_boolean(self.kind)):
            return
        for key, equal_key in sorted(repeated.items()):
            name = usual_key(key)
            raise InvalidInputError(
                f"partition keys {key!r} and {equal_key!r} are the same value of column {self.name!r}, which is "
                f"{self.kind}, so each of these partitions would replace the rows of the other: have one partition of "
                f"this value, {name!r}"
            )

    def _array(self, values: "Mapping[str, str | int | bool]") -> "pa.Array[Any]":
        try:
            return pa.array(values.values(), self.kind)
        except (pa.ArrowInvalid, OverflowError) as error:
            keys = ", ".join(map(repr, values))
            raise InvalidInputError(
                f"a partition key among {keys} is not a value of column {self.name!r}, which is {self.kind}"
            ) from error

    def _window(self, start: datetime, end: datetime) -> PartitionFilter:
        (start_sql, lower), (end_sql, upper) = self._moment(start), self._moment(end)
        arrow = None if self.arrow is None else (self.arrow >= lower) & (self.arrow < upper)
        hint = ""
        if lower.as_py() == upper.as_py():
            hint = (
                f"{self.name!r} has no time zone and so holds the local times of {start} a second time; rows with "
                "these times belong to the partition before it, and a timestamp with a time zone tells them apart"
            )
        return PartitionFilter(
            predicate=f"{self.sql} >= {start_sql} AND {self.sql} < {end_sql}",
            expression=arrow,
            columns=self.columns,
            hint=hint,
        )

    def _moment(self, moment: datetime) -> "tuple[str, pa.Scalar[Any]]":
        """Return the boundary of a window as a SQL literal and as a value of this type.

        Timestamps with a time zone are instants. Timestamps without a time zone are local times in the time zone of the
        partitions.
        """
        kind: Any = self.kind
        if pa.types.is_date(kind):
            if moment.time() != time():
                raise InvalidInputError(
                    f"column {self.name!r} is {kind}, and a partition starts or ends at {moment}: "
                    "partitions shorter than a day need a timestamp column"
                )
            return f"date '{moment:%Y-%m-%d}'", pa.scalar(moment.date(), kind)
        if kind.tz is not None:
            return instant(moment), pa.scalar(moment, kind)
        local = _local_time(moment)
        return f"timestamp '{local:%Y-%m-%d %H:%M:%S}'", pa.scalar(local, kind)

    def _number(self, moment: datetime) -> int:
        """Return the boundary of a window as the number by which a value of this type is stored."""
        scalar: Any = self._moment(moment)[1]
        number: int = scalar.value
        return number

    def _value(self, key: str) -> str | int | bool:
        """Return a partition key as a value of this type."""
        kind, plain = self.kind, str(key)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return plain
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            value = value_of(plain)
            if value is None or isinstance(value, bool) != pa.types.is_boolean(kind):
                what = f"column {self.name!r}, which is {kind}"
                raise InvalidInputError(f"partition key {plain!r} is not a value of {what}")
            return value
        raise InvalidInputError(
            f"column {self.name!r} is {kind}; partitions select from text, integer, boolean, date and timestamp values"
        )


def value_of(key: str) -> int | bool | None:
    """Return the integer or truth value that a partition key writes, or None when it writes another value."""
    if _INTEGER.fullmatch(key):
        return int(key)
    return _BOOLEANS.get(key.lower())


def usual_key(key: str) -> str:
    """Return the usual way to write the integer or truth value of a key, such as `1` for `01`."""
    value = value_of(key)
    return key if value is None else str(value).lower()


def all_filters(filters: Sequence[PartitionFilter]) -> PartitionFilter:
    """Return the filter of the rows that all filters select."""
    return _combined(filters, "AND", operator.and_)


def any_of(filters: Sequence[PartitionFilter]) -> PartitionFilter:
    """Return the filter of the rows that at least one filter selects."""
    return _combined(filters, "OR", operator.or_)


def _combined(filters: Sequence[PartitionFilter], word: str, combine: Any) -> PartitionFilter:  # noqa: ANN401
    if len(filters) == 1:
        return filters[0]
    arrow = [part.expression for part in filters if part.expression is not None]
    return PartitionFilter(
        predicate=f" {word} ".join(f"({part.predicate})" for part in filters),
        # Lance evaluates the whole filter when Arrow lacks a part of it.
        expression=functools.reduce(combine, arrow) if len(arrow) == len(filters) else None,
        columns=tuple(dict.fromkeys(name for part in filters for name in part.columns)),
        hint="; ".join(part.hint for part in filters if part.hint),
    )


def _joined(windows: Iterable[dg.TimeWindow]) -> list[tuple[datetime, datetime]]:
    """Return the windows in order; adjacent windows are merged, such as two days into one window of two days."""
    joined: list[tuple[datetime, datetime]] = []
    for window in sorted(windows, key=lambda window: _instant(window.start)):
        # `<=`: a window ends where the next one starts, since its end is exclusive. Compared as instants: Python
        # compares two times of one time zone by their local times, which are equal in the repeated hour.
        if joined and window.start.astimezone(UTC) <= joined[-1][1].astimezone(UTC):
            joined[-1] = (joined[-1][0], max(window.end, joined[-1][1], key=_instant))
        else:
            joined.append((window.start, window.end))
    return joined


def _instant(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _local_time(moment: datetime) -> datetime:
    """Return the local time at which a partition begins or ends in a column without a time zone.

    When clocks are set back, the same local times occur twice, and rows cannot say which occurrence they mean. All such
    rows belong to the first occurrence, as in Python. The second occurrence therefore has no local times of its own:
    its partition begins where the repeated times end.

    Example: clocks are set back from 3:00 to 2:00. The hourly partition of the first 2:00 has the rows from 2:00 to
    3:00, and the partition of the second 2:00 begins and ends at 3:00, so it has no rows.
    """
    local = moment.replace(tzinfo=None, fold=0)
    zone = moment.tzinfo
    if zone is None or _offsets(local, zone)[0] == moment.utcoffset():
        return local
    while len(set(_offsets(local, zone))) > 1:
        local += timedelta(minutes=1)
    return local


def _offsets(local: datetime, zone: Any) -> "tuple[timedelta | None, timedelta | None]":  # noqa: ANN401
    """Return the offsets of the first and of the second occurrence of a local time."""
    return local.replace(tzinfo=zone).utcoffset(), local.replace(tzinfo=zone, fold=1).utcoffset()


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
