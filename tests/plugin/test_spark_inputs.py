# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import datetime as dt
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_dagster import LanceIOManager, LanceResource, LanceTable

EVENTS = dg.AssetKey(["log", "events"])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")

pytestmark = pytest.mark.slow


def read(lake: LanceResource, kind: Any, *, partition: str | None = None, **options: Any) -> Any:
    """The events as an asset reads them with the given annotation."""
    seen: list[Any] = []

    def reader(rows: Any) -> None:
        seen.append(rows)

    reader.__annotations__ = {"rows": kind, "return": None}
    definition = DAYS if partition else None
    asset = dg.asset(ins={"rows": dg.AssetIn(EVENTS, **options)}, partitions_def=definition)(reader)
    node = dg.AssetSpec(EVENTS, partitions_def=DAYS, metadata={"lance/partition_expr": "day"})
    resources = {"io_manager": LanceIOManager(lance=lake)}
    dg.materialize([node, asset], resources=resources, partition_key=partition)
    return seen[0]


def numbers(frame: Any) -> list[int]:
    """The numbers in a Spark frame, sorted."""
    assert isinstance(frame, DataFrame)
    return sorted(row.n for row in frame.collect())


def test_spark_inputs(lake: LanceResource, spark: SparkSession) -> None:
    """A Spark frame has only its partition's rows that pass its filter; it may be optional, or one per partition."""
    assert spark.version
    assert read(lake, DataFrame | None) is None
    rows = pa.table({"day": [dt.date(2024, 1, day) for day in (1, 2, 3, 3)], "n": [1, 2, 3, 4]})
    LanceTable.create(lake.uri_of(EVENTS), rows.schema).append(rows)
    assert numbers(read(lake, DataFrame | None, partition="2024-01-03")) == [3, 4]
    filtered = {"lance/filter": "n > 3", "lance/columns": ["n"]}
    assert numbers(read(lake, DataFrame, partition="2024-01-03", metadata=filtered)) == [4]
    mapping = dg.SpecificPartitionsPartitionMapping(["2024-01-01", "2024-01-03"])
    found = read(lake, dict[str, DataFrame], partition_mapping=mapping)
    assert {"2024-01-01": [1], "2024-01-03": [3, 4]} == {key: numbers(frame) for key, frame in found.items()}
