"""What a table can be checked for.

Each check asks the table only for what it needs: a count with a filter, or the columns it compares.

Blocking asset checks that read the candidate of their run.

A check takes the table from the resource and not as an input: an input would go through the IO manager, which
reads every column of every row before the check can say which one it wants. What a check is about is a small
value, so that it can be compared and printed; what it found names the version it looked at, which the
publisher compares with the version it is about to publish.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.partitions import quote_name, quote_text
from lance_dagster.plugin.pinned import PinnedTable
from lance_dagster.plugin.resource import LanceResource

Bound = int | float | str | dt.date | dt.datetime
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a check may look at: the candidate, and the other tables it asked for."""

    candidate: PinnedTable
    others: Mapping[dg.AssetKey, PinnedTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found, in words and as numbers that Dagster plots."""

    passed: bool
    description: str
    counts: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount:
    """The table has at least `minimum` and at most `maximum` rows."""

    minimum: int = 1
    maximum: int | None = None

    @property
    def name(self) -> str:
        """The check's name."""
        return "row_count"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"The table has {_between(self.minimum, self.maximum)} rows."

    def evaluate(self, audit: Audit) -> Finding:
        """Count the rows."""
        rows = audit.candidate.count_rows()
        passed = self.minimum <= rows and (self.maximum is None or rows <= self.maximum)
        return Finding(
            passed=passed,
            description=f"{rows} rows; allowed: {_between(self.minimum, self.maximum)}",
            counts={"rows": rows},
        )


@dataclass(frozen=True, slots=True)
class NotNull:
    """A column has a value in every row."""

    column: str

    @property
    def name(self) -> str:
        """The check's name."""
        return f"not_null_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"Every row has a value in {self.column!r}."

    def evaluate(self, audit: Audit) -> Finding:
        """Count the rows without a value."""
        nulls = _count(audit.candidate, self.column, "{0} IS NULL")
        return Finding(
            passed=nulls == 0,
            description=f"{nulls} rows have no value in {self.column!r}; allowed: none",
            counts={"rows": audit.candidate.count_rows(), "nulls": nulls},
        )


@dataclass(frozen=True, slots=True)
class NullRate:
    """At most a share of a column's rows has no value: 0.05 allows one in twenty."""

    column: str
    maximum: float

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if not 0 <= self.maximum <= 1:
            raise InvalidInputError(f"NullRate of {self.column!r} allows {self.maximum}; give a share from 0 to 1")

    @property
    def name(self) -> str:
        """The check's name."""
        return f"null_rate_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"At most {self.maximum:.2%} of the rows have no value in {self.column!r}."

    def evaluate(self, audit: Audit) -> Finding:
        """Count the rows without a value, as a share of all rows."""
        nulls = _count(audit.candidate, self.column, "{0} IS NULL")
        rows = audit.candidate.count_rows()
        rate = nulls / rows if rows else 0.0
        return Finding(
            passed=rate <= self.maximum,
            description=f"{rate:.2%} of the rows have no value in {self.column!r}; allowed: {self.maximum:.2%}",
            counts={"rows": rows, "nulls": nulls, "null_rate": rate},
        )


@dataclass(frozen=True, slots=True)
class InRange:
    """Every value of a column lies between two bounds, which may be missing. Rows without a value pass; NaN fails."""

    column: str
    minimum: Bound | None = None
    maximum: Bound | None = None

    def __post_init__(self) -> None:
        """Refuse a range without an end."""
        if self.minimum is None and self.maximum is None:
            raise InvalidInputError(f"InRange of {self.column!r} has neither minimum nor maximum")

    @property
    def name(self) -> str:
        """The check's name."""
        return f"in_range_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"Every value of {self.column!r} is {_between(self.minimum, self.maximum)}."

    def evaluate(self, audit: Audit) -> Finding:
        """Count the values outside."""
        inside = []
        if self.minimum is not None:
            inside.append(f"{{0}} >= {_literal(self.minimum)}")
        if self.maximum is not None:
            inside.append(f"{{0}} <= {_literal(self.maximum)}")
        # Not inside, and not below or above: NaN is larger than every maximum, and a minimum alone would let
        # it pass.
        nan = " OR isnan({0})" if _is_float(audit.candidate, self.column) else ""
        outside = _count(audit.candidate, self.column, f"NOT ({' AND '.join(inside)}){nan}")
        return Finding(
            passed=outside == 0,
            description=(
                f"{outside} values of {self.column!r} are outside; allowed: {_between(self.minimum, self.maximum)}"
            ),
            counts={"rows": audit.candidate.count_rows(), "outside": outside},
        )


@dataclass(frozen=True, slots=True)
class Unique:
    """No two rows have the same values in some columns. Rows without a value in one of them are not compared."""

    columns: str | tuple[str, ...]

    @property
    def name(self) -> str:
        """The check's name."""
        return f"unique_{_slug('_'.join(self._names))}"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"No two rows have the same {', '.join(self._names)}."

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)

    def evaluate(self, audit: Audit) -> Finding:
        """Count the rows whose values another row has too; reads these columns and no others."""
        names = self._names
        for name in names:
            _field(audit.candidate, name)
        present = " AND ".join(f"{quote_name(name)} IS NOT NULL" for name in names)
        keys = audit.candidate.read(names, filter=present)
        groups = keys.group_by(list(names)).aggregate([([], "count_all")])
        repeated = groups.filter(pc.greater(groups["count_all"], pa.scalar(1)))
        extra = keys.num_rows - groups.num_rows
        shown = [", ".join(str(row[name]) for name in names) for row in repeated.slice(0, _SHOWN).to_pylist()]
        return Finding(
            passed=extra == 0,
            description=f"{extra} rows repeat the {', '.join(names)} of another; allowed: none{_such_as(shown)}",
            counts={"rows": keys.num_rows, "repeated_rows": extra, "repeated_keys": repeated.num_rows},
        )


@dataclass(frozen=True, slots=True)
class KeysExist:
    """Every value of a column is also in the column `key` of another table, as the run sees that table.

    A table written in the same run is compared as its candidate, else as it is at the resource's `read_ref`.
    """

    column: str
    in_table: str
    key: str

    @property
    def name(self) -> str:
        """The check's name."""
        return f"keys_exist_{_slug(self.column)}"

    @property
    def description(self) -> str:
        """What is checked."""
        return f"Every value of {self.column!r} is a {self.key!r} of {self.in_table}."

    def evaluate(self, audit: Audit) -> Finding:
        """Look up the distinct values; reads one column of each table, as streams."""
        other = audit.others[dg.AssetKey(self.in_table.split("/"))]
        wanted = _distinct(audit.candidate, self.column)
        known = _distinct(other, self.key).cast(wanted.type)
        left = wanted.filter(pc.invert(pc.is_in(wanted, value_set=known)))
        shown = [str(value) for value in left.slice(0, _SHOWN).to_pylist()]
        return Finding(
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
    _field(table, column)
    return table.count_rows(condition.format(quote_name(column)))


def _distinct(table: PinnedTable, column: str) -> "pa.Array[Any]":
    kind = _field(table, column).type
    batches = table.scan([column], filter=f"{quote_name(column)} IS NOT NULL")
    found: pa.Array[Any] = pc.unique(
        pa.concat_arrays([pa.array([], kind), *(pc.unique(one.column(0)) for one in batches)])
    )
    return found


def _literal(bound: Bound) -> str:
    match bound:
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
    """Return a column's name in the characters a check's name may have."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in column).lower()


RESOURCE_KEY = "lance"
CheckedAsset = dg.AssetKey | str | Sequence[str] | dg.AssetsDefinition | dg.AssetSpec


def build_table_checks(asset: CheckedAsset, checks: Iterable[Check]) -> list[dg.AssetChecksDefinition]:
    """Return one blocking asset check for each check value.

    A failing check stops everything downstream of the asset in its run, and its publication in every run.

    Args:
        asset: The candidate: its definition, or its key. With the key, the asset's metadata about where its
            table lies is not known here.
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


def asset_key_of(asset: CheckedAsset) -> dg.AssetKey:
    """Return the key of an asset given as a key or a definition of one asset.

    Text is a path: `shop/orders` is the table `orders` in `shop`.
    """
    if isinstance(asset, (dg.AssetsDefinition, dg.AssetSpec)):
        return asset.key
    if isinstance(asset, dg.AssetKey):
        return asset
    return dg.AssetKey(asset.split("/") if isinstance(asset, str) else list(asset))


def metadata_of(asset: CheckedAsset) -> dict[str, object]:
    """Return the definition metadata of an asset given as a definition; empty for a key."""
    if isinstance(asset, dg.AssetsDefinition):
        return dict(asset.metadata_by_key[asset.key])
    return dict(asset.metadata) if isinstance(asset, dg.AssetSpec) else {}


def _build(key: dg.AssetKey, metadata: dict[str, object], check: Check) -> dg.AssetChecksDefinition:
    others = [asset_key_of(check.in_table)] if isinstance(check, KeysExist) else []

    @dg.asset_check(
        asset=key,
        name=check.name,
        description=check.description,
        blocking=True,
        additional_deps=[other for other in others if other != key],
        required_resource_keys={RESOURCE_KEY},
    )
    def table_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        lance: LanceResource = context.resources.lance
        opened = {other: lance.open(context, other) for other in others}
        audit = Audit(candidate=lance.open(context, key, metadata), others=opened)
        finding = check.evaluate(audit)
        return dg.AssetCheckResult(
            passed=finding.passed,
            description=finding.description,
            metadata={**md.version_metadata(audit.candidate.version), **finding.counts},
        )

    return table_check
