"""Tiers: base paths to which a maintenance job moves the data files of rows of a certain age.

The age of a row is by a column of dates or timestamps, or by the partition it was written for. A table with several
tiers has its rows at the tier of the greatest age that they have reached, so no file is moved twice in one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.sql_text import instant
from lance_dagster.plugin.checks.check_arguments import require_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_dagster.plugin.io.partition_values import PartitionValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A base path for the data files of rows that are older than a span.

    Attributes:
        to: The name of the base path, which `maintenance.add_base` has added to the table.
        older_than: The age of the rows.
        column: The column, or SQL expression, that says how old a row is: a date, a timestamp, in UTC where it has no
            time zone, or text that begins with a date such as `2026-05-01`; None for the `lance/partition_expr` of the
            asset. A partition counts from its beginning.

    Raises:
        InvalidInputError: The age is not a duration, or a name is not text.
    """

    to: str
    older_than: timedelta
    column: str | None = None

    def __post_init__(self) -> None:
        """Validate the attributes."""
        require_duration("older_than", self.older_than)
        for what, name in (("to", self.to), ("column", self.column)):
            if not (isinstance(name, str) and name) and not (what == "column" and name is None):
                raise InvalidInputError(f"{what} of a Tier has to be a name, not {name!r}")


def tier_predicates(
    tiers: Sequence[Tier], schema: "pa.Schema", *, partition_expr: str | None, now: datetime, asset: str
) -> list[tuple[Tier, str]]:
    """Return the predicate of the rows of each tier; the oldest tier comes last.

    Args:
        tiers: The tiers.
        schema: The columns of the table.
        partition_expr: The column or SQL expression of the partitions, for tiers without a column.
        now: The time that ages are counted from.
        asset: The asset's name, for error messages.

    Raises:
        InvalidInputError: A column does not exist or has no age.
    """
    ordered = sorted(tiers, key=lambda tier: tier.older_than)
    predicates = []
    for tier, following in pairwise((*ordered, None)):
        if tier is None:
            continue
        values = _values(tier, schema, partition_expr, asset)
        predicate = f"{values.sql} < {_moment(values, now - tier.older_than, asset)}"
        if following is not None:
            older = _values(following, schema, partition_expr, asset)
            predicate += f" AND {older.sql} >= {_moment(older, now - following.older_than, asset)}"
        predicates.append((tier, predicate))
    return predicates


def _values(tier: Tier, schema: "pa.Schema", partition_expr: str | None, asset: str) -> "PartitionValues":
    # Imported in a run, as all modules are that loading a code location does not need.
    from lance_dagster.plugin.io.partition_values import PartitionValues

    column = tier.column or partition_expr
    if column is None:
        raise InvalidInputError(
            f"{asset} has no lance/partition_expr of one dimension, so nothing says how old its rows are; give "
            f"Tier(to={tier.to!r}, column=...) a column"
        )
    return PartitionValues.of(column, schema, asset)


def _moment(values: "PartitionValues", moment: datetime, asset: str) -> str:
    """Return a moment as a value of a column, in SQL."""
    import pyarrow as pa

    utc, kind = moment.astimezone(UTC), values.kind
    if pa.types.is_date(kind):
        return f"date '{utc:%Y-%m-%d}'"
    if pa.types.is_timestamp(kind):
        return instant(utc) if kind.tz is not None else f"timestamp '{utc:%Y-%m-%d %H:%M:%S}'"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"'{utc:%Y-%m-%d}'"
    raise InvalidInputError(
        f"column {values.name!r} of {asset} is {kind}, which has no age; give a date, a timestamp or text such as "
        "2026-05-01"
    )
