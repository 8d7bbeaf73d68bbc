"""Checks of the age, the schema and the growth of a table, in part against the version that is published already.

The published version is the head of `main` when the check is evaluated. Where a publisher evaluates the check on
commits of other programs, which are on `main` already, the published version is the version of the tag. The first run
of an asset creates its table empty on `main`, so every check that compares numbers of rows passes in that run.
"""

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import quote_name
from lance_dagster.format.validation import check_class
from lance_dagster.plugin.checks.check_arguments import refuse_bounds, require_column, require_duration, require_number
from lance_dagster.plugin.checks.check_queries import BuiltInCheck, field_of, judged, lies_within, partition_counts
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, Scope

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(microseconds=1)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Freshness(BuiltInCheck):
    """Require that the newest value of a date or timestamp column is at most `maximum_age` old.

    A timestamp without a time zone counts as UTC, and a date as the start of its day in UTC. A null is not a value; a
    table without values fails. The check reads the whole table by default, because a run for an old partition does not
    make the table stale. It depends on the time at which it is evaluated.
    """

    column: str
    maximum_age: dt.timedelta
    scope: Scope = field(default="table", kw_only=True)
    kind: ClassVar[str] = "freshness"
    sentence: ClassVar[str] = "The newest {0.column!r} is at most {0.maximum_age} old."

    def __post_init__(self) -> None:
        """Validate the column, and that the age is a duration."""
        require_column("Freshness", self.column)
        require_duration("maximum_age", self.maximum_age, least=dt.timedelta.resolution)

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Find the newest value; reads the column batch by batch.

        Raises:
            InvalidInputError: The column holds neither dates nor timestamps.
        """
        newest = self._newest(audit)
        if newest is None:
            description = f"{self.column!r} has no value; allowed age: {self.maximum_age}"
            return CheckOutcome(passed=False, description=description)
        # In microseconds and not as a datetime, which ends with the year 9999.
        age = (dt.datetime.now(dt.UTC) - _EPOCH) // _MICROSECOND - _since_epoch(newest)
        return CheckOutcome(
            passed=age <= self.maximum_age // _MICROSECOND,
            description=f"the newest {self.column!r} is {_shown_instant(newest)}; allowed age: {self.maximum_age}",
            counts={"age_hours": age / (dt.timedelta(hours=1) // _MICROSECOND)},
        )

    def _newest(self, audit: Audit) -> "pa.Scalar[Any] | None":
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = field_of(audit.candidate, self.column).type
        if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            raise InvalidInputError(
                f"Freshness checks column {self.column!r}, which is {kind}; it needs a date or timestamp column"
            )
        batches = audit.candidate.scan([self.column], filter=f"{quote_name(self.column)} IS NOT NULL")
        # The filter may leave a batch empty; its maximum is null.
        values: list[Any] = [newest for batch in batches if (newest := pc.max(batch.column(0))).is_valid]
        return max(values, key=_since_epoch, default=None)


def _since_epoch(instant: Any) -> int:  # noqa: ANN401  # the scalar of a date or timestamp
    """Return the microseconds since 1970; a fraction of a microsecond does not change an age."""
    import pyarrow as pa

    if pa.types.is_date(instant.type):
        return int(instant.value) * (86_400_000_000 if pa.types.is_date32(instant.type) else 1_000)
    unit = instant.type.unit
    return int(instant.value) // 1_000 if unit == "ns" else int(instant.value) * _MICROSECONDS[unit]


def _shown_instant(instant: Any) -> str:  # noqa: ANN401  # as above
    from lance_dagster.format.shown_values import shown_value

    try:
        return (_EPOCH + _since_epoch(instant) * _MICROSECOND).isoformat()
    except OverflowError:
        return str(shown_value(instant))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCountChange(BuiltInCheck):
    """Limit the growth of the number of rows against the published version, as a share of its rows.

    `minimum=-0.1` allows a tenth of the rows to vanish, and `maximum=1.0` allows their number to double. Each partition
    is compared with the same partition of the published version. Where that partition has no rows, any number passes.
    """

    minimum: float | None = None
    maximum: float | None = None
    kind: ClassVar[str] = "row_count_change"
    sentence: ClassVar[str] = "The number of rows changes by {0._allowed} against the published version."

    def __post_init__(self) -> None:
        """Validate that there is a bound, and that it is a share: -10 for per cent would let all rows vanish."""
        if self.minimum is None and self.maximum is None:
            raise InvalidInputError("RowCountChange has neither minimum nor maximum; give one, such as minimum=-0.1")
        for name in ("minimum", "maximum"):
            require_number(f"the {name} of RowCountChange", getattr(self, name), optional=True)
        if self.minimum is not None and self.minimum < -1:
            raise InvalidInputError(f"RowCountChange has minimum {self.minimum}; give a share, such as -0.1")
        refuse_bounds("RowCountChange", self.minimum, self.maximum)

    @property
    def _allowed(self) -> str:
        if self.maximum is None:
            return f"at least {self.minimum:+.2%}"
        return f"at most {self.maximum:+.2%}" if self.minimum is None else f"{self.minimum:+.2%} to {self.maximum:+.2%}"

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Count the rows of both versions, partition by partition."""
        published = audit.published()
        new, old = audit.count_by_partition(), audit.count_by_partition(of=published)
        rows, before = sum(new.values()), sum(old.values())
        # A partition that had no rows has no share to compare with.
        changes = {key: (new[key] - count) / count for key, count in old.items() if count}
        wrong = {
            key: f"{change:+.2%}"
            for key, change in changes.items()
            if not lies_within(change, self.minimum, self.maximum)
        }
        change = (rows - before) / before if before else 0.0
        return CheckOutcome(
            passed=not wrong,
            description=judged(wrong, f"{change:+.2%}", audit, self._allowed, of=f"rows against {published.ref}"),
            counts={"rows": rows, "published_rows": before, "change": change, **partition_counts(audit, wrong)},
        )


@dataclass(frozen=True, slots=True)
class SchemaIs(BuiltInCheck):
    """Require that the table has exactly some columns, by name and type, in any order.

    Whether a column may be null and the metadata of columns do not matter.
    """

    schema: "pa.Schema"
    scope: Scope = field(default="table", kw_only=True)
    kind: ClassVar[str] = "schema_is"

    def __post_init__(self) -> None:
        """Validate that the schema is a schema of Arrow and has columns: every table has a column."""
        # Definitions without this check load without pyarrow.
        import pyarrow as pa

        check_class("the schema of SchemaIs", self.schema, pa.Schema, "pyarrow.schema({'id': pyarrow.int64()})")
        if not len(self.schema):
            raise InvalidInputError(
                "the schema of SchemaIs has no column; give one such as pyarrow.schema({'id': pyarrow.int64()})"
            )

    @property
    def description(self) -> str:
        """The sentence that Dagster's pages show about the check."""
        return f"The columns are {', '.join(f'{column.name} {column.type}' for column in self.schema)}."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Compare the schemas; reads no row."""
        return _compared(audit.candidate.schema, self.schema, "the schema wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSchemaChange(BuiltInCheck):
    """Require that the table has the columns of the published version, by name and type, in any order."""

    scope: Scope = "table"
    kind: ClassVar[str] = "no_schema_change"
    sentence: ClassVar[str] = "The columns are those of the published version."

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Compare the schemas of both versions; reads no row."""
        published = audit.published()
        return _compared(audit.candidate.schema, published.schema, published.ref)


def _compared(actual: "pa.Schema", expected: "pa.Schema", named: str) -> CheckOutcome:
    has, needs = ({column.name: column.type for column in schema} for schema in (actual, expected))
    missing = [f"{name} {kind} is missing" for name, kind in needs.items() if name not in has]
    extra = [f"{name} {kind} is new" for name, kind in has.items() if name not in needs]
    # With `kind` as the default, a missing column is not listed a second time.
    changed = [f"{name} is {has[name]}, not {kind}" for name, kind in needs.items() if has.get(name, kind) != kind]
    differences = [*missing, *extra, *changed]
    return CheckOutcome(
        passed=not differences,
        description=f"compared with {named}: {'; '.join(differences) or 'no difference'}",
        counts={"missing": len(missing), "new": len(extra), "changed": len(changed)},
    )
