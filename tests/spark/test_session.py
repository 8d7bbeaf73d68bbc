import os
import sys

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lance_dagster.spark import local_session


def test_a_session_is_ready_for_lance(spark: SparkSession) -> None:
    """Time zone, interpreter and data source are set without any setting by the user."""
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")
    assert sys.executable == os.environ["PYSPARK_PYTHON"]
    assert "127.0.0.1" == os.environ["SPARK_LOCAL_IP"]
    with pytest.raises(AnalysisException, match="give the URI of one table"):
        spark.read.format("lance_dagster").load()


def test_a_running_session_is_returned(spark: SparkSession) -> None:
    """A process can have only one Spark."""
    assert spark is local_session("another name", master="local[2]")
