"""DuckDB and Polars read the tables of a repository at a commit, as the documentation says."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from lance_dagster import LanceRepository
from tests.repository.scripted_repository import new_repository, rows, run


@pytest.fixture
def lake(tmp_path: Path) -> LanceRepository:
    """Rows 1 and 2 in production, and row 3 on `main` only."""
    made = new_repository(tmp_path, "orders", "lines")
    for number in (1, 2):
        made.publish(run(made, number, "orders", "lines"), channel="production")
    made.table("lines").append(rows(1, 3, price=9))
    made.commit("more lines")
    return made


def test_duckdb_joins_tables_of_one_commit(lake: LanceRepository) -> None:
    """A query joins two tables at a channel; filters and columns reach the dataset."""
    tables = lake.at("production")
    with duckdb.connect() as database:
        database.register("orders", tables["orders"].to_lance())
        database.register("lines", tables["lines"].to_lance())
        joined = "SELECT id, lines.price FROM orders JOIN lines USING (id) WHERE id > 1 ORDER BY id"
        assert [(2, 1)] == database.sql(joined).fetchall()
        database.register("newest", lake.at("main")["lines"].to_lance())
        assert [(4, 20)] == database.sql("SELECT count(*), sum(price) FROM newest").fetchall()


def test_polars_scans_a_table_at_a_commit(lake: LanceRepository) -> None:
    """A lazy frame over the dataset has the rows of the channel and not those of `main`."""
    frame = pl.scan_pyarrow_dataset(lake.at("production")["lines"].to_lance())
    assert [1, 2] == frame.filter(pl.col("price") == 1).select("id").collect()["id"].sort().to_list()
