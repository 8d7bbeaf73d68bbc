"""Read versions of Lance tables as Spark frames, and write Spark frames as versions."""

from lance_dagster.errors import InvalidInputError, MissingExtraError

_OLDEST_SPARK = (4, 3)

try:
    import pyspark

    # Older releases lack classes and settings that this package uses; some would be missed in the middle of a job.
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _OLDEST_SPARK:
        raise InvalidInputError(
            f"PySpark {pyspark.__version__} is too old, 4.3 is needed: pip install 'lance-dagster[spark]'"
        )
    from lance_dagster.edit.staged_upsert import StagedUpsert
    from lance_dagster.spark.change_rows import read_changes
    from lance_dagster.spark.java import ensure_java
    from lance_dagster.spark.keyed_rows import UpsertOptions, delete_keys, stage_upsert, upsert_frame
    from lance_dagster.spark.save import SaveMode, SaveOptions, write_table
    from lance_dagster.spark.session import local_session
    from lance_dagster.spark.source import LanceDataSource, narrow, read_table, table_view
    from lance_dagster.spark.spark_compaction import CompactionGoal, compact_table
    from lance_dagster.spark.spark_schema import replacement_schema, target_schema
    from lance_dagster.spark.streaming.stream_sink import upsert_batches
    from lance_dagster.spark.writer import StageOptions, large_batches, stage
except ModuleNotFoundError as error:
    # When a dependency of pyspark is missing, the name is another one and this extra does not install it.
    if error.name != "pyspark":
        raise
    raise MissingExtraError("pyspark", "spark", "Spark") from error

__all__ = [
    "CompactionGoal",
    "LanceDataSource",
    "SaveMode",
    "SaveOptions",
    "StageOptions",
    "StagedUpsert",
    "UpsertOptions",
    "compact_table",
    "delete_keys",
    "ensure_java",
    "large_batches",
    "local_session",
    "narrow",
    "read_changes",
    "read_table",
    "replacement_schema",
    "stage",
    "stage_upsert",
    "table_view",
    "target_schema",
    "upsert_batches",
    "upsert_frame",
    "write_table",
]
