from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def time_type(spark: SparkSession) -> Iterator[None]:
    """Enable the type TIME, which Spark 4.3 disables by default."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")
