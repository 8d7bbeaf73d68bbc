from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def time_type(spark: SparkSession) -> Iterator[None]:
    """Spark 4.3 knows the type TIME only when asked to."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")
