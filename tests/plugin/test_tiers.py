"""The predicates of tiers: which rows are old enough for which base path."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, Tier
from lance_dagster.plugin.operate.maintenance_job import tier_predicates

NOW = datetime(2026, 8, 31, 12, tzinfo=UTC)
WARM, COLD = Tier(to="warm", older_than=timedelta(days=1)), Tier(to="cold", older_than=timedelta(days=31))
INSTANT = "arrow_cast('2026-08-30T12:00:00Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"


@pytest.mark.parametrize(
    "kind, literal",
    [
        (pa.date32(), "date '2026-08-30'"),
        (pa.timestamp("us"), "timestamp '2026-08-30 12:00:00'"),
        (pa.timestamp("us", "Europe/Berlin"), INSTANT),
        (pa.string(), "'2026-08-30'"),
    ],
)
def test_each_type_has_its_literal(kind: pa.DataType, literal: str) -> None:
    """In UTC, whatever the time zone of the column."""
    schema = pa.schema([("at", kind)])
    ((tier, predicate),) = tier_predicates([WARM], schema, partition_expr="at", now=NOW, asset="orders")
    assert (WARM, f'"at" < {literal}') == (tier, predicate.replace("`", '"'))


def test_rows_are_at_the_oldest_tier_that_they_have_reached() -> None:
    """No row is in two tiers."""
    schema = pa.schema([("day", pa.date32()), ("at", pa.date32())])
    (first, warm), (second, cold) = tier_predicates([COLD, WARM], schema, partition_expr="day", now=NOW, asset="orders")
    assert (WARM, COLD) == (first, second)
    assert warm.endswith(">= date '2026-07-31'")
    assert cold.endswith("< date '2026-07-31'")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"to": "", "older_than": timedelta(1)}, "to of a Tier"),
        ({"to": "cold", "older_than": 7}, "older_than"),
        ({"to": "cold", "older_than": timedelta(1), "column": ""}, "column of a Tier"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    """When it is made."""
    with pytest.raises(InvalidInputError, match=message):
        Tier(**options)  # type: ignore[arg-type]
