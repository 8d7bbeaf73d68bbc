"""Upkeep: the methods of a table that look after its files and where they lie."""

from lance_dagster.table.facade import Facade


class Keeping(Facade):
    """Rows are the same before and after each of these."""
