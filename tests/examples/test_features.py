from typing import TYPE_CHECKING

import pytest

from example_project import features, places, source

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _unpack_elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    root: Path = tmp_path_factory.getbasetemp() / "example_source"
    monkeypatch.setenv(places.ROOT_VARIABLE, str(root))


def test_every_flight_gets_one_vector(spark: "SparkSession") -> None:
    """Flights without weather or plane keep their row, and no number is null."""
    flights = source.read(spark, "flights", month=1)
    made = features.flight_features(flights, source.read(spark, "weather", month=1), source.read(spark, "planes"))
    numbers = made.selectExpr("size(features) AS size", "exists(features, n -> n IS NULL OR isnan(n)) AS hole")
    # One query counts both, because each reads a year of flights from text.
    counted = numbers.groupBy("size", "hole").count()
    expected = [(features.DIMENSIONS, False, source.rows_by_month("flights")[1])]
    assert expected == [tuple(row) for row in counted.collect()]


def test_a_flight_that_never_arrived_is_no_example(spark: "SparkSession") -> None:
    """An example needs an arrival delay, and a delay of 15 minutes does not count as late."""
    delays = spark.sql("SELECT EXPLODE(ARRAY(NULL, 15, 16)) AS arr_delay")
    rows = delays.selectExpr(
        "now() AS time_hour",
        "'UA' AS carrier",
        "'EWR' AS origin",
        "'IAH' AS dest",
        "arr_delay",
        "array(1.0) AS features",
    )
    examples = features.training_set(rows)
    assert [False, True] == sorted(row["late"] for row in examples.collect())


def test_source_files_have_the_rows_they_are_known_for() -> None:
    """The five source files have their published numbers of rows."""
    expected = {"flights": 336_776, "weather": 26_115, "planes": 3_322, "airports": 1_458, "airlines": 16}
    assert expected == {table: source.rows(table) for table in expected}
