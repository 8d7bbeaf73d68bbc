"""Blocking asset checks on the candidate that a run wrote.

A check is a frozen value, such as `NotNull("id")`, that says what must hold. `build_table_checks` turns such
values into Dagster's asset checks. The result of each check names the version that was checked: the publisher
refuses a version on which a blocking check did not pass.

A check opens its table through the resource and not as an input of the asset. An input would go through the
IO manager, which cannot know the columns that a check needs and would read all of them. A check reads only a
count under a filter, or the columns that it compares.
"""

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, Scope
from lance_dagster.plugin.io.partition_values import quote_name, quote_text
from lance_dagster.plugin.resource import PinnedTable

Bound = int | float | str | dt.date | dt.datetime
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnCheck:
    """What the checks of this module have in common: they judge the partitions of the run unless told otherwise."""

    scope: Scope = "partitions"
    row_wise: ClassVar[bool] = False

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The assets of the other tables that the check reads: none."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount(_ColumnCheck):
    """Require at least `minimum` and at most `maximum` rows; None sets no upper limit."""

    minimum: int = 1
    maximum: int | None = None

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return "row_count"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"The table has {_between(self.minimum, self.maximum)} rows."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows of each partition."""
        rows = {key: part.count_rows() for key, part in audit.by_partition().items()}
        wrong = {
            key: count
            for key, count in rows.items()
            if count < self.minimum or (self.maximum is not None and count > self.maximum)
        }
        return CheckOutcome(
            passed=not wrong,
            description=_judged(
                {key: f"{count} rows" for key, count in wrong.items()},
                f"{sum(rows.values())} rows",
                audit,
                _between(self.minimum, self.maximum),
            ),
            counts={"rows": sum(rows.values()), **_partition_counts(audit, wrong)},
        )


@dataclass(frozen=True, slots=True)
class NotNull(_ColumnCheck):
    """Require that no row has a null in a column."""

    column: str
    row_wise: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"not_null_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"Every row has a value in {self.column!r}."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows in which the column is null."""
        nulls = _count(audit.candidate, self.column, "{0} IS NULL")
        return CheckOutcome(
            passed=nulls == 0,
            description=f"{nulls} rows have no value in {self.column!r}; allowed: none",
            counts={"rows": audit.candidate.count_rows(), "nulls": nulls},
        )


@dataclass(frozen=True, slots=True)
class NullRate(_ColumnCheck):
    """Limit the share of rows in which a column is null: 0.05 allows one row in twenty."""

    column: str
    maximum: float

    def __post_init__(self) -> None:
        """Validate that the share is from 0 to 1: a percentage such as 5 would let every table pass."""
        if not 0 <= self.maximum <= 1:
            raise InvalidInputError(f"NullRate of {self.column!r} allows {self.maximum}; give a share from 0 to 1")

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"null_rate_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"At most {self.maximum:.2%} of the rows have no value in {self.column!r}."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the nulls of each partition, as a share of its rows; without rows the share is 0."""
        rows, nulls, wrong = 0, 0, {}
        for key, part in audit.by_partition().items():
            found, of = _count(part, self.column, "{0} IS NULL"), part.count_rows()
            rows, nulls = rows + of, nulls + found
            if found > self.maximum * of:
                wrong[key] = f"{found / of:.2%}"
        rate = nulls / rows if rows else 0.0
        allowed = f"{self.maximum:.2%}"
        share = _judged(wrong, f"{rate:.2%}", audit, allowed, of=f"of the rows have no value in {self.column!r}")
        return CheckOutcome(
            passed=not wrong,
            description=share,
            counts={"rows": rows, "nulls": nulls, "null_rate": rate, **_partition_counts(audit, wrong)},
        )


@dataclass(frozen=True, slots=True)
class InRange(_ColumnCheck):
    """Require that every value of a column lies between two inclusive bounds, one of which may be None.

    A null passes. NaN fails.
    """

    column: str
    minimum: Bound | None = None
    maximum: Bound | None = None
    row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validate that at least one bound is given."""
        if self.minimum is None and self.maximum is None:
            raise InvalidInputError(f"InRange of {self.column!r} has neither minimum nor maximum")

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"in_range_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"Every value of {self.column!r} is {_between(self.minimum, self.maximum)}."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the values outside the bounds."""
        inside = []
        if self.minimum is not None:
            inside.append(f"{{0}} >= {_literal(self.minimum)}")
        if self.maximum is not None:
            inside.append(f"{{0}} <= {_literal(self.maximum)}")
        # NaN needs a term of its own: Lance orders NaN above every number, so a range with only a minimum
        # would accept it. The condition negates "inside" because NOT of a null is null, so that nulls pass.
        nan = " OR isnan({0})" if _is_float(audit.candidate, self.column) else ""
        outside = _count(audit.candidate, self.column, f"NOT ({' AND '.join(inside)}){nan}")
        return CheckOutcome(
            passed=outside == 0,
            description=(
                f"{outside} values of {self.column!r} are outside; allowed: {_between(self.minimum, self.maximum)}"
            ),
            counts={"rows": audit.candidate.count_rows(), "outside": outside},
        )


@dataclass(frozen=True, slots=True)
class Unique(_ColumnCheck):
    """Require that no two rows have the same values in some columns.

    A row with a null in one of these columns is not compared, as in a unique constraint of SQL. The check reads the
    whole table by default, because a row of another partition may have the same key. With the scope `partitions` a
    key may occur once in the partitions of the run, whatever the other partitions have.
    """

    columns: str | tuple[str, ...]
    scope: Scope = field(default="table", kw_only=True)

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"unique_{_slug('_'.join(self._names))}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"No two rows have the same {', '.join(self._names)}."

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows that repeat the key of another row.

        Reads the key columns, all rows of them in memory at once.
        """
        names = self._names
        for name in names:
            _field(audit.candidate, name)
        # Filter in the scan rather than in Arrow: rows with a null key are never read into memory.
        present = " AND ".join(f"{quote_name(name)} IS NOT NULL" for name in names)
        keys = audit.candidate.read(names, filter=present)
        groups = keys.group_by(list(names)).aggregate([([], "count_all")])
        repeated = groups.filter(pc.greater(groups["count_all"], pa.scalar(1)))
        # The surplus rows: of three equal keys, two rows are too many.
        extra = keys.num_rows - groups.num_rows
        shown = [", ".join(str(row[name]) for name in names) for row in repeated.slice(0, _SHOWN).to_pylist()]
        return CheckOutcome(
            passed=extra == 0,
            description=f"{extra} rows repeat the {', '.join(names)} of another; allowed: none{_such_as(shown)}",
            counts={"rows": keys.num_rows, "repeated_rows": extra, "repeated_keys": repeated.num_rows},
        )


@dataclass(frozen=True, slots=True)
class KeysExist(_ColumnCheck):
    """Require that every value of a column is also in the column `key` of another table.

    The check reads the candidate of the other table when the run wrote it, and else the version that the
    resource's `read_ref` names. A null passes.
    """

    column: str
    in_table: str
    key: str
    row_wise: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"keys_exist_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"Every value of {self.column!r} is a {self.key!r} of {self.in_table}."

    @property
    def reads(self) -> tuple[dg.AssetKey, ...]:
        """The other table, of which the check reads all rows."""
        return (dg.AssetKey(self.in_table.split("/")),)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Look up the distinct values; reads one column of each table, batch by batch."""
        other = audit.others[self.reads[0]]
        wanted = _distinct(audit.candidate, self.column)
        # The tables may store the key in different types, such as int32 and int64; is_in wants one type.
        known = _distinct(other, self.key).cast(wanted.type)
        left = wanted.filter(pc.invert(pc.is_in(wanted, value_set=known)))
        shown = [str(value) for value in left.slice(0, _SHOWN).to_pylist()]
        return CheckOutcome(
            passed=not len(left),
            description=(
                f"{len(left)} of {len(wanted)} values of {self.column!r} are no {self.key!r} of {self.in_table} "
                f"({other.ref}); allowed: none{_such_as(shown)}"
            ),
            counts={"values": len(wanted), "missing": len(left), "compared_with": other.ref},
        )


def _field(table: PinnedTable, column: str) -> "pa.Field[Any]":
    schema = table.schema
    if column not in schema.names:
        raise InvalidInputError(
            f"the check is about column {column!r}; {table.table.uri} has {', '.join(schema.names)}"
        )
    return schema.field(column)


def _is_float(table: PinnedTable, column: str) -> bool:
    return bool(pa.types.is_floating(_field(table, column).type))


def _count(table: PinnedTable, column: str, condition: str) -> int:
    try:
        return table.count_rows(condition.format(quote_name(column)))
    except InvalidInputError:
        # For its error, which lists the columns of the table. After the count, because the schema is a request of
        # its own.
        _field(table, column)
        raise


def _distinct(table: PinnedTable, column: str) -> "pa.Array[Any]":
    kind = _field(table, column).type
    batches = table.scan([column], filter=f"{quote_name(column)} IS NOT NULL")
    # Batches are reduced to distinct values one by one, so memory holds distinct values and not the column.
    # The empty array gives concat_arrays a type when there is no batch.
    found: pa.Array[Any] = pc.unique(
        pa.concat_arrays([pa.array([], kind), *(pc.unique(one.column(0)) for one in batches)])
    )
    return found


def _literal(bound: Bound) -> str:
    match bound:
        # Before date: a datetime is a date too.
        case dt.datetime():
            zoned = bound.astimezone(dt.UTC).replace(tzinfo=None) if bound.tzinfo else bound
            return f"timestamp '{zoned.isoformat(sep=' ')}{'+00:00' if bound.tzinfo else ''}'"
        case dt.date():
            return f"date '{bound.isoformat()}'"
        case str():
            return quote_text(bound)
        case _:
            return repr(bound)


def _between(minimum: Bound | None, maximum: Bound | None) -> str:
    if maximum is None:
        return f"at least {minimum}"
    return f"at most {maximum}" if minimum is None else f"{minimum} to {maximum}"


def _judged(wrong: Mapping[str | None, str], total: str, audit: Audit, allowed: str, *, of: str = "") -> str:
    """Say what was found and what is allowed; where partitions fail, what was found in each of them."""
    of = f" {of}" if of else ""
    named = [f"{found}{of} in {key}" for key, found in wrong.items() if key is not None]
    if not named:
        return f"{total}{of}; allowed: {allowed}{_of_each(audit)}"
    more = f" and {len(named) - _SHOWN} more partitions" if len(named) > _SHOWN else ""
    return f"{', '.join(named[:_SHOWN])}{more}; allowed: {allowed}{_of_each(audit)}"


def _of_each(audit: Audit) -> str:
    return " in each partition" if audit.predicates else ""


def _partition_counts(audit: Audit, wrong: Collection[str | None]) -> dict[str, int]:
    return {"partitions": len(audit.predicates), "failed_partitions": len(wrong)} if audit.predicates else {}


def _such_as(shown: list[str]) -> str:
    return f"; such as {', '.join(shown)}" if shown else ""


def _slug(column: str) -> str:
    """Replace the characters of a column's name that Dagster does not allow in the name of a check."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in column).lower()
