"""The types of what the functions and methods of `lance_dagster` take and return, for annotations.

They are listed in `types.pyi`. Every error is in `lance_dagster.errors`.
"""

from lance_dagster.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
