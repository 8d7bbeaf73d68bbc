"""Blocking asset checks on the candidate that a run wrote.

A check is a frozen value, such as `NotNull("id")`, that says what must hold. `build_table_checks` turns such
values into Dagster's asset checks. The result of each check names the version that was checked: the publisher
refuses a version on which a blocking check did not pass.

A check opens its table through the resource and not as an input of the asset. An input would go through the
IO manager, which cannot know the columns that a check needs and would read all of them. A check reads only a
count under a filter, or the columns that it compares.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.partition_values import quote_name, quote_text
from lance_dagster.plugin.resource import LanceResource, PinnedTable
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of, metadata_of

Bound = int | float | str | dt.date | dt.datetime
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The tables that a check reads: the candidate, and the other tables that it names."""

    candidate: PinnedTable
    others: Mapping[dg.AssetKey, PinnedTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The result of a check: a sentence for people, and numbers that Dagster plots over time."""

    passed: bool
    description: str
    counts: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount:
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
        """Count the rows."""
        rows = audit.candidate.count_rows()
        passed = self.minimum <= rows and (self.maximum is None or rows <= self.maximum)
        return CheckOutcome(
            passed=passed,
            description=f"{rows} rows; allowed: {_between(self.minimum, self.maximum)}",
            counts={"rows": rows},
        )


@dataclass(frozen=True, slots=True)
class NotNull:
    """Require that no row has a null in a column."""

    column: str

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
class NullRate:
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
        """Count the rows in which the column is null, as a share of all rows; an empty table has the share 0."""
        nulls = _count(audit.candidate, self.column, "{0} IS NULL")
        rows = audit.candidate.count_rows()
        rate = nulls / rows if rows else 0.0
        return CheckOutcome(
            passed=rate <= self.maximum,
            description=f"{rate:.2%} of the rows have no value in {self.column!r}; allowed: {self.maximum:.2%}",
            counts={"rows": rows, "nulls": nulls, "null_rate": rate},
        )


@dataclass(frozen=True, slots=True)
class InRange:
    """Require that every value of a column lies between two inclusive bounds, one of which may be None.

    A null passes. NaN fails.
    """

    column: str
    minimum: Bound | None = None
    maximum: Bound | None = None

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
class Unique:
    """Require that no two rows have the same values in some columns.

    A row with a null in one of these columns is not compared, as in a unique constraint of SQL.
    """

    columns: str | tuple[str, ...]

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
class KeysExist:
    """Require that every value of a column is also in the column `key` of another table.

    The check reads the candidate of the other table when the run wrote it, and else the version that the
    resource's `read_ref` names. A null passes.
    """

    column: str
    in_table: str
    key: str

    @property
    def name(self) -> str:
        """The name of the asset check."""
        return f"keys_exist_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"Every value of {self.column!r} is a {self.key!r} of {self.in_table}."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Look up the distinct values; reads one column of each table, batch by batch."""
        other = audit.others[dg.AssetKey(self.in_table.split("/"))]
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


Check = RowCount | NotNull | NullRate | InRange | Unique | KeysExist


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


def _such_as(shown: list[str]) -> str:
    return f"; such as {', '.join(shown)}" if shown else ""


def _slug(column: str) -> str:
    """Replace the characters of a column's name that Dagster does not allow in the name of a check."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in column).lower()


def build_table_checks(asset: TableAsset, checks: Iterable[Check]) -> list[dg.AssetChecksDefinition]:
    """Build one blocking asset check for each check value.

    A check that fails stops the downstream assets in its run, and the publisher refuses the version in every run.

    Args:
        asset: The candidate, as its definition or its key. Give the definition when its metadata decides where
            the table is: a key carries no metadata.
        checks: `RowCount`, `NotNull`, `NullRate`, `InRange`, `Unique` and `KeysExist` values.

    Raises:
        InvalidInputError: Two checks have the same name.

    Example:
        >>> from lance_dagster import RowCount
        >>> [check.check_key.name for check in build_table_checks("orders", [RowCount(minimum=1)])]
        ['row_count']
    """
    key = asset_key_of(asset)
    found = list(checks)
    names = [check.name for check in found]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInputError(f"two checks of {key.to_user_string()} are named {', '.join(doubled)}")
    return [_build(key, metadata_of(asset), check) for check in found]


def _build(key: dg.AssetKey, metadata: dict[str, object], check: Check) -> dg.AssetChecksDefinition:
    others = [asset_key_of(check.in_table)] if isinstance(check, KeysExist) else []

    @dg.asset_check(
        asset=key,
        name=check.name,
        description=check.description,
        blocking=True,
        # The order of steps: a table that the same run writes must be written before the check reads it.
        # Dagster refuses the checked asset itself as an additional dependency.
        additional_deps=[other for other in others if other != key],
        required_resource_keys={RESOURCE_KEY},
    )
    def table_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        lance: LanceResource = context.resources.lance
        opened = {other: lance.open(context, other) for other in others}
        audit = Audit(candidate=lance.open(context, key, metadata), others=opened)
        outcome = check.evaluate(audit)
        return dg.AssetCheckResult(
            passed=outcome.passed,
            description=outcome.description,
            # The publisher compares this version with the one that it is about to publish.
            metadata={**md.version_metadata(audit.candidate.version), **outcome.counts},
        )

    return table_check
