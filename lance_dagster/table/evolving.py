"""Columns and what a table says about itself: the methods of a table that change its schema."""

from lance_dagster.table.facade import Facade


class Evolving(Facade):
    """Nothing is rewritten that does not change."""
