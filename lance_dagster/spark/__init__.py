"""Read versions of Lance tables as Spark frames, and write Spark frames as versions."""

from lance_dagster.errors import MissingExtraError

try:
    from lance_dagster.spark.java import ensure_java
    from lance_dagster.spark.session import local_session
    from lance_dagster.spark.source import LanceDataSource, read_table
    from lance_dagster.spark.spark_schema import replacement_schema, target_schema
    from lance_dagster.spark.writer import stage
except ModuleNotFoundError as error:
    # When a dependency of pyspark is missing, the name is another one and this extra does not install it.
    if error.name != "pyspark":
        raise
    raise MissingExtraError("pyspark", "spark", "Spark") from error

__all__ = [
    "LanceDataSource",
    "ensure_java",
    "local_session",
    "read_table",
    "replacement_schema",
    "stage",
    "target_schema",
]
