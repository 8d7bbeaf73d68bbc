"""Pylance reads everything that this package writes, and can apply each of its operations to it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from tests.compat.tables import OPERATIONS, assert_sound, fitted, prepared
from tests.soak import pairs
from tests.table_factory import Rows, as_pylance, contents, context_of, entries

Step = Callable[[lance.LanceDataset], object]
Model = Callable[[Rows], Rows]


def insert(dataset: lance.LanceDataset) -> None:
    """Add a row."""
    dataset.insert(fitted(entries("p", 7), dataset.schema))


def merge_insert(dataset: lance.LanceDataset) -> None:
    """Delete the rows of a matching value, and insert those of a value that is not there."""
    rows = fitted(pa.concat_tables([entries("m", 2), entries("m", 77)]), dataset.schema)
    builder = dataset.merge_insert("value").when_matched_delete().when_not_matched_insert_all()
    builder.execute(rows)


def branch_and_tag(dataset: lance.LanceDataset) -> None:
    """Make a branch with a row of its own, and a tag."""
    dataset.create_branch("by-pylance").insert(fitted(entries("t", 1), dataset.schema))
    dataset.tags.create("t", dataset.version)


def index(dataset: lance.LanceDataset) -> None:
    """Create an index, add rows, and update the index."""
    dataset.create_scalar_index("value", "BTREE")
    insert(dataset)
    dataset.optimize.optimize_indices()
    assert ["p"] == dataset.to_table(filter="value = 7")["key"].to_pylist()


def clean_up(dataset: lance.LanceDataset) -> None:
    """Delete all files that neither the newest version nor a branch needs, whatever their age."""
    dataset.cleanup_old_versions(
        older_than=timedelta(microseconds=1), delete_unverified=True, error_if_tagged_old_versions=False
    )


STEPS: dict[str, tuple[Step, Model]] = {
    "append": (insert, lambda rows: [*rows, ("p", 7)]),
    "delete": (lambda d: d.delete("value = 1"), lambda rows: [row for row in rows if row[1] != 1]),
    "delete everything": (lambda d: d.delete("true"), lambda _: []),
    "update": (
        lambda d: d.update({"value": "value + 10"}, where="value = 2"),
        lambda rows: [(key, 12 if value == 2 else value) for key, value in rows],
    ),
    "merge_insert": (
        merge_insert,
        lambda rows: (
            [*(row for row in rows if row[1] != 2), ("m", 77)]
            + ([] if any(value == 2 for _, value in rows) else [("m", 2)])
        ),
    ),
    "compaction": (lambda d: d.optimize.compact_files(), lambda rows: rows),
    "index": (index, lambda rows: [*rows, ("p", 7)]),
    "clean-up": (lambda d: d.cleanup_old_versions(error_if_tagged_old_versions=False), lambda rows: rows),
    "unverified clean-up": (clean_up, lambda rows: rows),
    "new column": (lambda d: d.add_columns({"twice": "value * 2"}), lambda rows: rows),
    "overwrite": (
        lambda d: lance.write_dataset(entries("w", 1), d.uri, mode="overwrite"),
        lambda _: [("w", 1)],
    ),
    "branch and tag": (
        branch_and_tag,
        lambda rows: rows,
    ),
    "stale append": (lambda d: d.insert(fitted(entries("p", 7), d.schema)), lambda rows: [*rows, ("p", 7)]),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_pylance_reads_what_the_package_wrote(tmp_path: Path, operation: str) -> None:
    """Pylance reads the right rows, counts, row ids, row versions and schema; main has no base paths."""
    table = prepared(tmp_path)
    rows = OPERATIONS[operation](table)
    dataset = as_pylance(table)
    assert_sound(dataset, rows)
    assert table.schema() == dataset.schema
    created = dataset.to_table(columns=["_row_created_at_version"], filter="key = 'new'")
    assert {table.head().number} >= set(created["_row_created_at_version"].to_pylist())
    manifest = context_of(table).head("main").manifest
    assert () == manifest.base_paths
    assert [version["version"] for version in dataset.versions()] == table.branches.version_numbers()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_pylance_reads_every_branch(tmp_path: Path, operation: str) -> None:
    """Pylance reads each branch with the same rows as the package, and with unique row ids."""
    table = prepared(tmp_path)
    OPERATIONS[operation](table)
    assert set(table.branches.list()) == set(as_pylance(table).branches.list())
    for name in table.branches.list():
        dataset = as_pylance(table, name)
        dataset.validate()
        rows = contents(table, name)
        assert sorted(rows) == sorted((row["key"], row["value"]) for row in dataset.to_table().to_pylist())
        assert len(rows) == len(set(dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist()))


@pytest.mark.parametrize("operation,step", pairs(OPERATIONS, STEPS))
def test_pylance_goes_on_and_so_does_the_package(tmp_path: Path, operation: str, step: str) -> None:
    """Pylance commits on top of the package, then the package on top of pylance, and each branch keeps its rows."""
    table = prepared(tmp_path)
    stale = as_pylance(table)
    rows = OPERATIONS[operation](table)
    branches = {name: contents(table, name) for name in table.branches.list()}
    act, model = STEPS[step]
    handle = stale if step == "stale append" and "over" not in operation and "empt" not in operation else None
    act(handle or as_pylance(table))
    after = model(rows)
    assert_sound(as_pylance(table), after)
    assert sorted(after) == contents(table)
    # This table object has no cache, like one in another process; a clean-up may have deleted what it reads.
    again = LanceTable.open(table.uri)
    again.append(fitted(entries("o", 1), again.schema()))
    again.replace_where("key = 'p' or key = 'o' and value = 2", fitted(entries("o", 2), again.schema()))
    again.branches.create("further")
    again.append(fitted(entries("o", 3), again.schema()), branch="further")
    again.merge("further")
    wanted = [*(row for row in after if row[0] != "p"), ("o", 1), ("o", 2), ("o", 3)]
    assert_sound(as_pylance(again), wanted)
    for name, before in branches.items():
        assert before == contents(again, name)
        as_pylance(again, name).validate()


@pytest.mark.parametrize("operation", ["branch", "nested branch"])
@pytest.mark.parametrize("step", ["append", "delete", "update", "merge_insert", "compaction", "index", "new column"])
def test_pylance_goes_on_on_a_branch_of_the_package(tmp_path: Path, operation: str, step: str) -> None:
    """Pylance's changes to a branch do not affect main."""
    table = prepared(tmp_path)
    rows = OPERATIONS[operation](table)
    name = "inner" if operation == "nested branch" else "run"
    act, model = STEPS[step]
    after = model(contents(table, name))
    act(as_pylance(table, name))
    assert_sound(as_pylance(table, name), after)
    assert sorted(after) == contents(table, name)
    assert_sound(as_pylance(table), rows)
    table.append(fitted(entries("o", 1), table.schema(name)), branch=name)
    assert sorted([*after, ("o", 1)]) == contents(table, name)


def test_pylance_reads_tags_of_the_package_and_moves_them(tmp_path: Path) -> None:
    """The package reads the tags where pylance moved them."""
    table = prepared(tmp_path)
    table.tags.create("release", "main@1")
    table.tags.move("release", "main@2")
    assert 4 == as_pylance(table).checkout_version("release").count_rows()
    as_pylance(table).tags.update("release", 3)
    assert "main@3" == table.tags.list()["release"].ref
    table.tags.move("release", "main@1", expected=table.at("main@3"))
    as_pylance(table).tags.delete("release")
    assert {} == table.tags.list()


def test_pylance_deletes_a_branch_of_the_package(tmp_path: Path) -> None:
    """Rows that were merged from the branch stay."""
    table = prepared(tmp_path)
    rows = OPERATIONS["merge of deletion vectors"](table)
    as_pylance(table).branches.delete("run")
    assert {} == table.branches.list()
    clean_up(as_pylance(table))
    assert_sound(as_pylance(table), rows)


def test_each_program_forks_from_branches_of_the_other(tmp_path: Path) -> None:
    """Both programs fork in turn, and each branch adds a row; a merge of the innermost brings all rows to main."""
    table = prepared(tmp_path)
    table.branches.create("one")
    table.append(entries("one", 1), branch="one")
    as_pylance(table, "one").create_branch("two").insert(entries("two", 1))
    table.branches.create("three", "two")
    table.append(entries("three", 1), branch="three")
    wanted = sorted([*contents(table), ("one", 1), ("two", 1), ("three", 1)])
    assert_sound(as_pylance(table, "three"), wanted)
    table.merge("three")
    assert_sound(as_pylance(table), wanted)
