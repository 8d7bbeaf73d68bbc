"""Read versions of Lance tables as Spark frames, and write Spark frames as versions."""

from lance_dagster.errors import InvalidInputError, MissingExtraError

_OLDEST_SPARK = (4, 3)

try:
    import pyspark
except ModuleNotFoundError as error:
    # When a dependency of pyspark is missing, the name is another one and this extra does not install it.
    if error.name != "pyspark":
        raise
    raise MissingExtraError("pyspark", "spark", "Spark") from error

# Older releases lack classes and settings that this package uses; some would be missed in the middle of a job.
if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _OLDEST_SPARK:
    raise InvalidInputError(
        f"PySpark {pyspark.__version__} is too old, 4.3 is needed: pip install 'lance-dagster[spark]'"
    )
