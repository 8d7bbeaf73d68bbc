"""Tables in every state that this package can make, and the checks that pylance makes of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from tests.table_factory import Rows, as_pylance, entries, new_table, sorted_rows

Operation = Callable[[LanceTable], Rows]
"""An operation on a table of `BEFORE` that adds only rows of the key "new"; it returns the rows that main then has."""
BEFORE: Rows = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]
NEW: Rows = [("new", 1), ("new", 2)]


def prepared(folder: Path) -> LanceTable:
    """Two fragments: one with the rows of two keys, one with the rows of a third key."""
    return new_table(folder, pa.concat_tables([entries("a", 1, 2), entries("b", 1, 2)]), entries("c", 1))


def new(*, of: Sequence[tuple[str, int]] = NEW) -> pa.Table:
    """The rows that an operation adds."""
    return entries("new", *(value for _, value in of))


def without(key: str) -> Rows:
    """The initial rows without those of a key."""
    return [row for row in BEFORE if row[0] != key]


def _create(table: LanceTable) -> Rows:
    table.overwrite(entries("new"))
    return []


def _append(table: LanceTable) -> Rows:
    table.append(new())
    return BEFORE + NEW


def _overwrite(table: LanceTable) -> Rows:
    table.overwrite(new())
    return NEW


def _replace_fragment(table: LanceTable) -> Rows:
    table.replace_where("key IN ('c', 'new')", new())
    return without("c") + NEW


def _replace_rows(table: LanceTable) -> Rows:
    table.replace_where("key IN ('a', 'new')", new())
    return without("a") + NEW


def _replace_twice(table: LanceTable) -> Rows:
    table.replace_where("key = 'a' and value = 1", entries("x"))
    return _replace_rows(table)


def _branch(table: LanceTable) -> Rows:
    table.branches.create("run")
    table.append(new(), branch="run")
    return BEFORE


def _nested_branch(table: LanceTable) -> Rows:
    _branch(table)
    table.branches.create("inner", "run")
    table.replace_where("key IN ('a', 'z')", entries("z", 1), branch="inner")
    return BEFORE


def _merge_of_appends(table: LanceTable) -> Rows:
    _branch(table)
    table.merge("run")
    return BEFORE + NEW


def _merge_of_a_fragment(table: LanceTable) -> Rows:
    table.branches.create("run")
    table.replace_where("key IN ('c', 'new')", new(), branch="run")
    table.merge("run")
    return without("c") + NEW


def _merge_of_deletions(table: LanceTable) -> Rows:
    table.branches.create("run")
    table.append(pa.concat_tables([new(), entries("gone", 1)]), branch="run")
    table.replace_where("key = 'a' or key = 'gone'", entries("x"), branch="run")
    table.merge("run")
    return without("a") + NEW


def _merge_of_an_overwrite(table: LanceTable) -> Rows:
    table.branches.create("run")
    table.overwrite(new().append_column("note", pa.array(["x"] * 2)), branch="run")
    table.merge("run")
    return NEW


def _merge_of_a_chain(table: LanceTable) -> Rows:
    table.branches.create("run")
    table.replace_where("key = 'c'", entries("x"), branch="run")
    table.branches.create("inner", "run")
    table.append(new(), branch="inner")
    table.merge("inner", into="run")
    table.merge("run")
    return without("c") + NEW


def _merge_of_pylance_rows(table: LanceTable) -> Rows:
    table.branches.create("run")
    as_pylance(table, "run").insert(new())
    as_pylance(table, "run").delete("key = 'a'")
    table.merge("run")
    table.branches.delete("run")
    return without("a") + NEW


def _tags(table: LanceTable) -> Rows:
    table.tags.create("release", "main@2")
    table.tags.move("release", "main@1")
    table.append(new())
    return BEFORE + NEW


def _deleted_branch(table: LanceTable) -> Rows:
    rows = _merge_of_deletions(table)
    table.branches.delete("run")
    return rows


OPERATIONS: dict[str, Operation] = {
    "an emptied table": _create,
    "append": _append,
    "overwrite": _overwrite,
    "replace a fragment": _replace_fragment,
    "replace rows of a fragment": _replace_rows,
    "replace rows twice": _replace_twice,
    "branch": _branch,
    "nested branch": _nested_branch,
    "merge of appends": _merge_of_appends,
    "merge of a replaced fragment": _merge_of_a_fragment,
    "merge of deletion vectors": _merge_of_deletions,
    "merge of an overwrite with new columns": _merge_of_an_overwrite,
    "merge of a chain": _merge_of_a_chain,
    "merge of what pylance wrote": _merge_of_pylance_rows,
    "tags": _tags,
    "deleted branch": _deleted_branch,
}


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with nulls in the columns that only the table has."""
    for name in schema.names[rows.num_columns :]:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    return rows


def assert_sound(dataset: lance.LanceDataset, rows: Rows) -> None:
    """Pylance's checks of a version: its files are valid, and rows, counts, row ids and row versions are right."""
    dataset.validate()
    assert sorted(rows) == sorted_rows(dataset.to_table(columns=["key", "value"]))
    assert len(rows) == dataset.count_rows()
    assert sum(1 for key, _ in rows if key == "b") == dataset.count_rows(filter="key = 'b'")
    columns = ["key", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    lineage = dataset.to_table(columns=columns).to_pylist()
    assert len(rows) == len({row["_rowid"] for row in lineage})
    for row in lineage:
        assert 1 <= row["_row_created_at_version"] <= row["_row_last_updated_at_version"] <= dataset.version
    if lineage:
        taken = dataset._take_rows([row["_rowid"] for row in lineage], columns=["key"])  # noqa: SLF001 - by row id
        assert [row["key"] for row in lineage] == taken["key"].to_pylist()
