"""What a branch wrote, as its commits say it: partitions, or the whole table."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.measure import requests
from lance_dagster import FormatError, LanceRepository, LanceTable
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.branch_extent import BranchExtent, partitions_of

READS = ("get", "get_with_etag", "list", "list_some", "folders")
MON, TUE = (pa.table({"day": [day], "amount": [5]}) for day in ("mon", "tue"))


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table whose branch `work` has the partition `mon`."""
    table = LanceTable.create(tmp_path / "sales.lance", MON.schema)
    table.branches.create("work")
    return replaced(table, "mon", MON)


def replaced(table: LanceTable, day: str, rows: pa.Table) -> LanceTable:
    """Write one partition of the branch, as the IO manager does."""
    table.replace_where(
        f"day = '{day}'", rows, branch="work", properties={md.PARTITION_KEYS: f'["{day}"]'}, partitions=[day]
    )
    return table


def extent_of(table: LanceTable) -> BranchExtent:
    """The extent of the branch, on which no run recorded a write."""
    return BranchExtent.of(table, table.head("work"), LanceRepository(table.uri.rpartition("/")[0]))


def test_the_partitions_of_all_commits(table: LanceTable) -> None:
    """Each commit adds its partitions; a change of the settings adds none."""
    replaced(table, "tue", TUE).config.set({"owner": "ann"}, branch="work")
    assert ("mon", "tue") == partitions_of(table, table.head("work"), "")
    extent = extent_of(table)
    assert frozenset(("mon", "tue")) == extent.partitions
    assert extent.replaces


@pytest.mark.parametrize("later", [False, True])
def test_one_commit_of_the_whole_table_counts_for_all(table: LanceTable, *, later: bool) -> None:
    """A commit that names no partitions may have changed any row, wherever it is in the log."""
    table.append(MON, branch="work")
    if later:
        replaced(table, "tue", TUE)
    assert () == partitions_of(table, table.head("work"), "")
    assert frozenset() == extent_of(table).partitions


def test_main_has_no_extent(table: LanceTable) -> None:
    """What is on `main` was not written by a branch."""
    table.merge("work")
    assert () == partitions_of(table, table.head(), "")


def test_a_head_without_partitions_needs_no_request(table: LanceTable) -> None:
    """The log of a branch is read only where its head names partitions: a job has many checks, and each asks."""
    table.append(TUE, branch="work")
    head = table.head("work")
    with requests(READS) as made:
        assert () == partitions_of(table, head, "")
    assert [] == made


@pytest.mark.parametrize("value", ["[", "7", '{"day": "mon"}', "[1]", "[" * 100_000])
def test_keys_that_another_program_wrote(table: LanceTable, value: str) -> None:
    """A commit whose partition keys are no list of strings is named, and nothing is assumed about it."""
    table.append(MON, branch="work", properties={md.PARTITION_KEYS: value})
    with pytest.raises(FormatError, match="'dagster/partition_keys'"):
        partitions_of(table, table.head("work"), "")
