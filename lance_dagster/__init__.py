"""Data versioning for Lance tables, run by Dagster.

The names that users type are listed in `__init__.pyi`, and the types of what these take and return in `types.pyi`. A
module is imported when one of its names is first used: an executor that only writes data files imports neither Dagster
nor Spark.
"""

from lance_dagster.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
