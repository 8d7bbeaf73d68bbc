import os
import subprocess
import sys
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lance_dagster import local_session


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


def test_arrow_reads_values_without_checks_of_bounds(spark: SparkSession) -> None:
    """Arrow's checks of bounds take up to a third of the time in which rows pass between Spark and Python."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the properties of Spark's Java have no public interface
    java = jvm.java.lang.System
    assert "true" == java.getProperty("arrow.enable_unsafe_memory_access")
    assert java.getProperty("log4j2.configurationFile").endswith("log4j2.properties")


_OWN_JAVA_OPTIONS = """
from lance_dagster import local_session

options = "-Darrow.enable_unsafe_memory_access=false -Dlog4j2.configurationFile=own.properties -Down=1"
spark = local_session(master="local[1]", config={"spark.driver.extraJavaOptions": options})
names = ("arrow.enable_unsafe_memory_access", "log4j2.configurationFile", "own")
print(*[spark.sparkContext._jvm.java.lang.System.getProperty(name) for name in names])
"""


@pytest.mark.slow
def test_java_options_of_the_caller_take_precedence() -> None:
    """They stay whole, and a property that both set has the value of the caller."""
    ended = subprocess.run([sys.executable, "-c", _OWN_JAVA_OPTIONS], capture_output=True, text=True, check=True)
    assert "false own.properties 1" == ended.stdout.strip().splitlines()[-1]
