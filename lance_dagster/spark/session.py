"""A Spark session on this machine, ready to read and write Lance tables.

Every setting here is a default: a value in the caller's `config` or in the environment takes precedence.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from lance_dagster.spark.java import ensure_java
from lance_dagster.spark.source import LanceDataSource
from lance_dagster.spark.writer import set_session_batches

_QUIET_LOG = Path(__file__).with_name("log4j2.properties")
# Arrow's Java checks the bounds of a batch at each access to a value, which takes up to a third of the time in which
# rows pass between Spark and Python; Spark stays within a batch by itself. Arrow's check of nulls stays: without it,
# Spark reads a null as 0 in a column that is declared as NOT NULL.
_FAST_ARROW = "-Darrow.enable_unsafe_memory_access=true"


def local_session(
    app_name: str = "lance_dagster", master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or return the running session, with the `lance_dagster` data source registered.

    On a `local` master the Python workers run this interpreter and Spark binds to 127.0.0.1, because the
    interpreter on the `PATH` and the machine's own name are what most often break a first run. Timestamps are
    shown in UTC, the web interface is off, and the console shows errors only. `JAVA_HOME` is set by
    `ensure_java`. Arrow's Java does not check the bounds of each access. These options of Java are Spark's
    `spark.driver.defaultJavaOptions` and `spark.executor.defaultJavaOptions`, so `extraJavaOptions` take precedence.
    Batches between Spark and Python have at most 4,096 rows and no limit of bytes, with which Spark would compute the
    size of each row. For rows with binary values of a megabyte and more, set
    `spark.sql.execution.arrow.maxBytesPerBatch` to `64m`, or write with `stage` or `write_table`, which do that.

    Args:
        app_name: The name of the Spark application.
        master: A Spark master URL. On a cluster, the caller installs Python and this package on the workers.
        config: Spark settings, which take precedence over the ones described here. A running session adopts
            only settings that Spark can change at run time.

    Raises:
        InvalidInputError: There is no Java that Spark can run on.
    """
    ensure_java()
    # Spark's own time zone would be the machine's, and the same rows would show differently on each machine.
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A Java option takes effect before the first warnings; `setLogLevel` of a session comes after them.
        "spark.driver.defaultJavaOptions": f'{_FAST_ARROW} "-Dlog4j2.configurationFile={_QUIET_LOG}"',
        "spark.executor.defaultJavaOptions": _FAST_ARROW,
        **(config or {}),
    }
    # `setdefault`, because a value in the environment takes precedence over the defaults of this package.
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # pylance warns at every fork. The child process that Spark forks here runs Java and never uses pylance.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        spark = builder.getOrCreate()
    # A running session may have been started without this package, so it is configured each time.
    set_session_batches(spark)
    spark.dataSource.register(LanceDataSource)
    return spark
