"""Versions of data files. Before 2.0 they were numbered otherwise, or not at all.

A file of the first format is 0.0, 0.1 or 0.2, and one of the second was 0.3 before it was 2.0.
"""

from lance_dagster.format.model import DataFile

FIRST = "0.1"
"""The first format, whose files only pylance reads and writes, and only as parts of a table."""
_SECOND = "2.0"


def version_of_file(file: DataFile) -> str:
    """Return the version of a data file, as tables are told theirs."""
    return version_named(file.major, file.minor)


def version_named(major: int, minor: int) -> str:
    """Return the version that stands in a file as two numbers, as tables are told theirs."""
    if major == 0:
        return FIRST if minor <= 2 else _SECOND  # noqa: PLR2004 - 0.2 is the last of the first format
    return f"{major}.{minor}"
