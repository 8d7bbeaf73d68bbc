"""One table with base paths, a branch of a branch and a tag, made by this package and by pylance."""

from collections.abc import Callable
from pathlib import Path

import lance
from lance import DatasetBasePath

from lance_dagster import LanceTable
from tests.table_factory import Rows, as_pylance, entries, new_table


def made_by_pylance(folder: Path) -> LanceTable:
    """A table that pylance made, with an index, deletions, two bases, a branch, a branch forked from it and a tag."""
    uri = folder / "pylance"
    dataset = lance.write_dataset(entries("a", 1, 2, 3), uri, enable_stable_row_ids=True)
    dataset.create_scalar_index("value", "BTREE")
    cold = DatasetBasePath(str(folder / "cold"), name="cold", is_dataset_root=True)
    dataset.add_bases([cold, DatasetBasePath(str(folder / "flat"), name="flat")])
    lance.write_dataset(entries("cold", 1, 2), uri, mode="append", target_bases=["cold"])
    lance.write_dataset(entries("flat", 1, 2), uri, mode="append", target_bases=["flat"])
    dataset = lance.dataset(uri)
    dataset.delete("key = 'cold' and value = 1")
    run = dataset.create_branch("run")
    run.insert(entries("r", 1, 2))
    run.delete("value = 2 and key <> 'flat'")
    inner = run.create_branch("inner", ("run", None))
    inner.insert(entries("i", 1))
    inner.delete("key = 'a' and value = 3 or key = 'flat' and value = 1")
    run.insert(entries("r", 3))
    dataset.insert(entries("m", 1))
    dataset.tags.create("candidate", ("run", None))
    return LanceTable.open(uri)


MAIN_ROWS: Rows = [("a", 1), ("a", 2), ("a", 3), ("cold", 2), ("flat", 1), ("flat", 2), ("m", 1)]

RUN_ROWS: Rows = [("a", 1), ("a", 3), ("flat", 1), ("flat", 2), ("r", 1), ("r", 3)]

INNER_ROWS: Rows = [("a", 1), ("flat", 2), ("i", 1), ("r", 1)]

ALL_ROWS = {"main": MAIN_ROWS, "run": RUN_ROWS, "inner": INNER_ROWS}


def made_by_package(folder: Path) -> LanceTable:
    """A table that this package made, with the same rows."""
    table = new_table(folder, entries("a", 1, 2, 3))
    table.maintenance.add_base("cold", folder / "cold", is_dataset_root=True)
    table.maintenance.add_base("flat", folder / "flat")
    table.append(table.stage(entries("cold", 1, 2), base="cold"))
    table.append(table.stage(entries("flat", 1, 2), base="flat"))
    as_pylance(table).create_scalar_index("value", "BTREE")
    table.replace_where("key = 'cold' and value = 1", entries("x"))
    table.branches.create("run")
    table.append(entries("r", 1, 2), branch="run")
    table.replace_where("value = 2 and key <> 'flat'", entries("x"), branch="run")
    table.branches.create("inner", "run")
    table.append(entries("i", 1), branch="inner")
    table.replace_where("key = 'a' and value = 3 or key = 'flat' and value = 1", entries("x"), branch="inner")
    table.append(entries("r", 3), branch="run")
    table.append(entries("m", 1))
    table.tags.create("candidate", "run")
    return table


TABLES_OF: dict[str, Callable[[Path], LanceTable]] = {"package": made_by_package, "pylance": made_by_pylance}
