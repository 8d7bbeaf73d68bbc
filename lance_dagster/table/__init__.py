"""The public table object, its namespaces and the values they return."""

from lance_dagster.table.table import LanceTable as LanceTable
