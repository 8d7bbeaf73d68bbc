"""Diffs of tables that the package and pylance changed: their content, and which rows are read for them."""

import datetime as dt
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_field

from lance_dagster import Diff, InvalidInputError, LanceTable
from lance_dagster.format.layout import manifest_name
from lance_dagster.store import open_store
from lance_dagster.types import ChangeKind, IndexShape, MergeMode
from tests.conftest import S3Storage
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import as_pylance, context_on, entries, new_table

Change = tuple[str, dict[str, Any]]
NOTHING = (0, 0, 0)
TEXT_COLUMNS: dict[str, pa.DataType] = {"key": pa.int64(), "value": pa.string()}
TEXTS = pa.schema(TEXT_COLUMNS)


CUSTOMERS = pa.table({"customer": [1, 2, 3], "age": [30, 40, 50]})
PRICES = pa.table({"price": [1, 2], "stock": [7, 8]})


def made(folder: Path, *, stable: bool = True, rows: int = 10) -> LanceTable:
    """A table made by pylance with fragments of five rows."""
    table = pa.table({"id": range(rows), "name": [f"n{number}" for number in range(rows)], "price": [1.5] * rows})
    lance.write_dataset(table, str(folder / "t"), max_rows_per_file=5, enable_stable_row_ids=stable)
    return LanceTable.open(folder / "t")


def counts(diff: Diff) -> tuple[int, int, int]:
    """The numbers of rows added, removed and changed."""
    found = diff.stat()
    return found.added, found.removed, found.changed


def feed(diff: Diff, kind: ChangeKind | None = None, columns: list[str] | None = None) -> list[Change]:
    """The rows that differ, each with its kind of change."""
    rows = diff.rows(kind, columns).read_all().to_pylist()
    return [(row.pop("_change_type"), {name: row[name] for name in row if name != "_change_id"}) for row in rows]


def lines(diff: Diff) -> list[str]:
    """The printed diff, without the line of versions."""
    return str(diff).splitlines()[1:]


@pytest.mark.parametrize("stable", [True, False])
def test_rows_appended_and_deleted(tmp_path: Path, *, stable: bool) -> None:
    """Changes by the package and by pylance are found from fragments alone."""
    table = made(tmp_path, stable=stable)
    table.append(pa.table({"id": [10], "name": ["new"], "price": [2.0]}))
    as_pylance(table).delete("id IN (3, 7)")
    diff = table.diff("main@1", "main")
    assert (1, 2, 0) == counts(diff)
    assert [{"id": 10, "name": "new", "price": 2.0}] == diff.added().read_all().to_pylist()
    assert [3, 7] == diff.removed().read_all().column("id").to_pylist()
    assert ["delete", "delete", "insert"] == [kind for kind, _ in feed(diff)]
    assert [
        "fragments: 1 added, 2 changed",
        "  ~ fragment 0: 0 -> 1 deleted rows",
        "  ~ fragment 1: 0 -> 1 deleted rows",
        "  + fragment 2: 1 row",
        "rows: 10 -> 9",
    ] == lines(diff)
    assert (2, 1, 0) == counts(table.diff("main", "main@1"))


def test_an_updated_row_is_a_changed_one(tmp_path: Path) -> None:
    """Both images of the row are adjacent, and share a number."""
    table = made(tmp_path)
    table.update({"name": "'package'"}, where="id = 2")
    as_pylance(table).update({"name": "'pylance'"}, where="id = 8")
    diff = table.diff("main@1", "main")
    assert (0, 0, 2) == counts(diff)
    rows = diff.changed().read_all()
    assert ["update_preimage", "update_postimage"] * 2 == rows.column("_change_type").to_pylist()
    assert [0, 0, 1, 1] == rows.column("_change_id").to_pylist()
    assert [(2, "n2"), (2, "package"), (8, "n8"), (8, "pylance")] == [
        (row["id"], row["name"]) for row in rows.to_pylist()
    ]


def test_without_row_ids_an_update_is_one_row_for_another(tmp_path: Path) -> None:
    """A key identifies the updated row."""
    table = made(tmp_path, stable=False)
    table.update({"name": "'package'"}, where="id = 2")
    assert (1, 1, 0) == counts(table.diff("main@1", "main"))
    assert (0, 0, 1) == counts(table.diff("main@1", "main", on=["id"]))


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("by", ["package", "pylance"])
def test_a_compaction_changes_no_row(tmp_path: Path, by: str, *, stable: bool) -> None:
    """Moved rows are no changes, with row ids and with keys, even where the key is null."""
    table = made(tmp_path, stable=stable)
    table.append(pa.table({"id": pa.array([None, None], pa.int64()), "name": ["x", "x"], "price": [math.nan, None]}))
    table.delete("id = 4")
    before = str(table.head())
    if by == "package":
        table.maintenance.compact()
    else:
        as_pylance(table).optimize.compact_files(materialize_deletions_threshold=0.0)
    for key in (None, ["id"], ["id", "name"]):
        diff = table.diff(before, "main", on=key)
        assert NOTHING == counts(diff)
        assert diff.fragments
        assert 0 == diff.rows().read_all().num_rows
    assert (2, 1, 0) == counts(table.diff("main@1", "main"))


def test_versions_written_beside_rows_change_none(tmp_path: Path) -> None:
    """A new column sets the row versions of all rows, and so does a compaction after it; neither changes a row."""
    table = made(tmp_path)
    table.columns.add({"twice": "id * 2"})
    added = table.diff("main@1", "main")
    assert NOTHING == counts(added)
    assert ["schema:", "  + twice: int64"] == lines(added)[:2]
    assert ("twice",) == added.fragments[0].columns
    table.maintenance.compact()
    assert NOTHING == counts(table.diff("main@1", "main"))
    table.update({"twice": "0"}, where="id = 1")
    assert NOTHING == counts(table.diff("main@1", "main"))
    assert (0, 0, 1) == counts(table.diff("main@2", "main"))


def test_a_column_written_anew_in_place_is_compared(tmp_path: Path) -> None:
    """Only the rows whose values differ are changed, and only that column is read."""
    table = made(tmp_path)
    dataset = as_pylance(table)
    fragment = dataset.get_fragments()[0]
    columns = pa.table({"id": range(5), "price": [1.5, 2.0, 1.5, math.nan, 1.5]})
    new, fields = fragment.update_columns(columns, left_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[new], fields_modified=fields)
    lance.LanceDataset.commit(table.uri, operation, read_version=1)
    table.delete("id = 0")
    diff = table.diff("main@1", "main")
    assert ("price",) == diff.fragments[0].columns
    assert (0, 1, 2) == counts(diff)
    assert (0, 1, 2) == counts(table.diff("main@1", "main", on=["id"]))
    assert [1, 1, 3, 3] == [row["id"] for _, row in feed(diff, "changed")]
    assert (2, 3, 0) == counts(table.diff("main@1", "main", on=["name", "price"]))


def test_fragments_that_are_the_same_are_not_opened(tmp_path: Path) -> None:
    """The diff works even when their files are gone."""
    table = made(tmp_path, rows=20)
    table.update({"name": "'x'"}, where="id = 7")
    table.columns.add(pa.field("more", pa.int64()))
    files = {
        file.path
        for fragment in as_pylance(table).get_fragments()
        if fragment.fragment_id != 1
        for file in fragment.data_files()
    }
    new = {file.path for file in as_pylance(table).get_fragments()[-1].data_files()}
    for path in files - new:
        (Path(table.uri) / "data" / path).unlink()
    diff = LanceTable.open(table.uri).diff("main@1", "main")
    assert ["n7", "x"] == [row["name"] for _, row in feed(diff)]


def test_a_cast_column_is_compared_in_the_new_type(tmp_path: Path) -> None:
    """Rows with equal values are unchanged; the older values are shown in a column `<name>_before`."""
    table = made(tmp_path)
    table.columns.cast("id", pa.int32())
    diff = table.diff("main@1", "main")
    assert ["schema:", "  ~ id: int64 -> int32"] == lines(diff)[:2]
    assert NOTHING == counts(diff)
    table.update({"name": "'x'"}, where="id = 1")
    assert [
        ("update_preimage", {"id": None, "name": "n1", "price": 1.5, "id_before": 1}),
        ("update_postimage", {"id": 1, "name": "x", "price": 1.5, "id_before": None}),
    ] == feed(table.diff("main@1", "main"))
    assert (0, 0, 1) == counts(table.diff("main@1", "main", on=["id"]))


def test_a_cast_that_changes_a_value_changes_the_row(tmp_path: Path) -> None:
    """Numbers as text and as integers are compared as integers; a text that is no number differs."""
    table = LanceTable.create(tmp_path / "t", TEXTS)
    table.append(pa.table({"key": [1, 2, 3], "value": ["1", "2", "3"]}))
    table.branches.create("x")
    table.columns.cast("value", pa.int64())
    assert NOTHING == counts(table.diff("x", "main"))
    table.update({"value": "7"}, where="key = 3")
    table.update({"value": "'no number'"}, where="key = 1", branch="x")
    assert (0, 0, 2) == counts(table.diff("x", "main"))
    assert (0, 0, 2) == counts(table.diff("main", "x"))


OTHER_VALUES: dict[str, tuple[Any, Any, int]] = {
    "a moment and its day": ([dt.datetime(2026, 1, 1, 15)], [dt.date(2026, 1, 1)], 1),  # noqa: DTZ001
    "a number and a truth": ([5], [True], 1),
    "a large number and infinity": ([1e300], pa.array([float("inf")], pa.float32()), 1),
    "a number and a shorter decimal": ([0.1234], pa.array([Decimal("0.1")], pa.decimal128(10, 1)), 1),
    "a number and the same decimal": ([0.1], pa.array([Decimal("0.1")], pa.decimal128(38, 20)), 0),
}


@pytest.mark.parametrize("case", OTHER_VALUES)
def test_values_of_two_types_are_compared_exactly(tmp_path: Path, case: str) -> None:
    """A value counts as changed where the other type does not hold it, and not where it is the same number."""
    old, new, changed = OTHER_VALUES[case]
    before = pa.table({"id": [1], "x": old})
    table = LanceTable.create(tmp_path / "t", before.schema)
    first = table.append(before)
    second = table.overwrite(pa.table({"id": [1], "x": new}))
    assert (0, 0, changed) == counts(table.diff(first, second, on=["id"]))


def test_columns_renamed_dropped_and_reordered(tmp_path: Path) -> None:
    """None of these changes a row; rows are shown under the names of the newer version."""
    table = made(tmp_path)
    table.columns.rename("name", "title")
    table.columns.drop(["price"])
    table.columns.reorder(["title", "id"])
    diff = table.diff("main@1", "main")
    assert ["  - price: double", "  ~ title: renamed from name"] == [line for line in lines(diff) if "e" in line][1:3]
    assert NOTHING == counts(diff)
    table.maintenance.compact()
    table.update({"title": "'x'"}, where="id = 1")
    assert [
        ("update_preimage", {"title": "n1", "id": 1, "price": 1.5}),
        ("update_postimage", {"title": "x", "id": 1, "price": None}),
    ] == feed(table.diff("main@1", "main"))


def test_a_column_put_in_anew_under_its_name_is_compared(tmp_path: Path) -> None:
    """A dropped and added column is another field without values, although no fragment is rewritten."""
    table = made(tmp_path)
    table.columns.drop(["name"])
    table.columns.add(pa.field("name", pa.string()))
    diff = table.diff("main@1", "main")
    assert (0, 0, 10) == counts(diff)
    assert ("name",) == diff.fragments[0].columns


def test_swapped_names_change_no_row(tmp_path: Path) -> None:
    """The data files tell which column is which."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"a": pa.int64(), "b": pa.int64()}))
    table.append(pa.table({"a": [1], "b": [2]}))
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        table.columns.rename(old, new)
    diff = table.diff("main@2", "main")
    assert {"  ~ b: renamed from a", "  ~ a: renamed from b"} == {line for line in lines(diff) if "renamed" in line}
    assert NOTHING == counts(diff)


@pytest.mark.parametrize("stable", [True, False])
def test_an_overwritten_table_has_other_rows(tmp_path: Path, *, stable: bool) -> None:
    """Rows of an overwritten table differ from the old ones unless a key identifies them."""
    table = made(tmp_path, stable=stable)
    table.overwrite(pa.table({"id": [0, 1, 99], "name": ["n0", "x", "y"], "price": [1.5, 1.5, 0.0]}))
    assert ((3, 10, 0) if stable else (2, 9, 0)) == counts(table.diff("main@1", "main"))
    diff = table.diff("main@1", "main", on=["id"])
    assert (1, 8, 1) == counts(diff)
    assert [1, 1] == diff.changed().read_all().column("id").to_pylist()


@pytest.mark.parametrize("by", ["overwrite", "pylance", "restore", "merge"])
def test_other_columns_are_not_renamed_ones(by: str, tmp_path: Path) -> None:
    """An overwrite counts the ids of its columns from 0 again, and a restore goes back to an earlier count."""
    table = LanceTable.create(tmp_path / "table", PRICES.schema if by == "restore" else CUSTOMERS.schema)
    if by == "restore":
        table.overwrite(CUSTOMERS)
    before = table.append(CUSTOMERS)
    if by == "overwrite":
        table.overwrite(PRICES)
    elif by == "pylance":
        lance.write_dataset(PRICES, table.uri, mode="overwrite")
    elif by == "restore":
        table.restore("main@1")
    else:
        table.branches.create("work")
        table.overwrite(PRICES, branch="work")
        table.append(CUSTOMERS)
        table.merge("work", strategy={"the whole table": "source-wins"})
    found = table.diff(before, "main")
    assert ["- customer: int64", "- age: int64", "+ price: int64", "+ stock: int64"] == [*map(str, found.schema)]
    with pytest.raises(InvalidInputError):
        table.diff(before, "main", on=["price"])


def test_a_renamed_column_is_one_after_a_compaction(tmp_path: Path) -> None:
    """No data file is left that proves it, and no overwrite lies in between."""
    table = LanceTable.create(tmp_path / "table", CUSTOMERS.schema)
    table.append(CUSTOMERS)
    before = table.append(CUSTOMERS)
    table.columns.rename("age", "years")
    table.maintenance.compact()
    found = table.diff(before, "main")
    assert ["~ years: renamed from age"] == [*map(str, found.schema)]
    assert (0, 0, 0) == counts(found)


def test_a_restored_version_has_no_difference(tmp_path: Path) -> None:
    """Rows that a restore brought back are unchanged; rows added before the restore are removed."""
    table = made(tmp_path)
    table.delete("id < 3")
    table.append(pa.table({"id": [10], "name": ["new"], "price": [2.0]}))
    lance.dataset(table.uri, version=1).restore()
    assert table.diff("main@1", "main").unchanged
    assert ["nothing differs"] == lines(table.diff("main@1", "main"))
    assert (3, 1, 0) == counts(table.diff("main@3", "main"))
    assert [0, 1, 2] == table.diff("main@3", "main").added().read_all().column("id").to_pylist()
    table.append(pa.table({"id": [11], "name": ["new"], "price": [2.0]}))
    assert (4, 1, 0) == counts(table.diff("main@3", "main"))


def test_branches_give_the_same_ids_to_other_rows(tmp_path: Path) -> None:
    """Row ids given after the fork do not identify rows of the other branch, even after a compaction."""
    table = made(tmp_path)
    table.branches.create("x")
    table.append(pa.table({"id": [10], "name": ["main"], "price": [0.0]}))
    table.append(pa.table({"id": [11], "name": ["x"], "price": [0.0]}), branch="x")
    table.maintenance.compact()
    table.maintenance.compact(branch="x")
    table.update({"name": "'changed'"}, where="id = 5", branch="x")
    diff = table.diff("main", "x")
    assert (1, 1, 1) == counts(diff)
    assert [("delete", 10), ("update_preimage", 5), ("update_postimage", 5), ("insert", 11)] == [
        (kind, row["id"]) for kind, row in feed(diff)
    ]


def test_what_was_merged_is_the_same_in_both(tmp_path: Path) -> None:
    """Merged rows get other ids on main, and are still identified there after a compaction."""
    table = made(tmp_path)
    table.branches.create("x")
    table.append(pa.table({"id": [10], "name": ["main"], "price": [0.0]}))
    table.append(pa.table({"id": [11, 12], "name": ["x", "x"], "price": [0.0, 0.0]}), branch="x")
    table.update({"name": "'changed'"}, where="id = 5", branch="x")
    table.merge("x")
    assert [("insert", 10)] == [(kind, row["id"]) for kind, row in feed(table.diff("x", "main"))]
    table.maintenance.compact()
    table.update({"name": "'later'"}, where="id = 12")
    assert [("update_preimage", 12), ("update_postimage", 12), ("insert", 10)] == [
        (kind, row["id"]) for kind, row in feed(table.diff("x", "main"))
    ]


def test_three_dots_are_what_a_branch_did(tmp_path: Path) -> None:
    """Three dots give the changes of a branch since its fork or its last merge."""
    table = made(tmp_path)
    table.branches.create("x")
    table.delete("id = 0")
    table.append(pa.table({"id": [11], "name": ["x"], "price": [0.0]}), branch="x")
    diff = table.diff("main", "x", since_base=True)
    assert ("main@1", "x@2", "main@2") == (diff.before, diff.after, diff.base_of)
    assert (1, 0, 0) == counts(diff)
    assert "main@1 -> x@2 (since the merge base with main@2)" == str(diff).splitlines()[0]
    table.merge("x")
    assert table.diff("main", "x", since_base=True).unchanged
    assert (0, 1, 0) == counts(table.diff("x", "main", since_base=True))
    table.update({"name": "'later'"}, where="id = 11", branch="x")
    assert [("update_preimage", "x"), ("update_postimage", "later")] == [
        (kind, row["name"]) for kind, row in feed(table.diff("main", "x", since_base=True))
    ]


def test_without_the_fork_rows_are_told_by_their_values(tmp_path: Path) -> None:
    """After the fork point was cleaned up, it is unknown which ids both branches share."""
    table = made(tmp_path)
    table.branches.create("x")
    table.update({"name": "'x'"}, where="id = 1", branch="x")
    table.maintenance.compact()
    assert (0, 0, 1) == counts(table.diff("main", "x"))
    for line in ("", "tree/x"):
        (Path(table.uri) / line / "_versions" / manifest_name(1)).unlink(missing_ok=True)
    table = LanceTable.open(table.uri)
    assert (1, 1, 0) == counts(table.diff("main", "x"))
    assert (0, 0, 1) == counts(table.diff("main", "x", on=["id"]))


ITEM = pa.struct([pa.field("y", pa.string())])
STRUCT = pa.struct([pa.field("x", pa.float64()), pa.field("of", pa.list_(ITEM))])
FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "s": STRUCT}
NESTED = pa.schema(FIELDS)


def test_nested_values_are_compared_to_the_bottom(tmp_path: Path) -> None:
    """Null equals null, NaN equals NaN, and a different string in a list in a struct is a difference."""
    table = LanceTable.create(tmp_path / "t", NESTED)
    values = [{"x": math.nan, "of": [{"y": "a"}, None]}, None, {"x": None, "of": None}, {"x": 1.0, "of": []}]
    table.append(pa.Table.from_pylist([{"id": place, "s": value} for place, value in enumerate(values)], NESTED))
    table.branches.create("x")
    table.update({"s": "s"}, where="true")
    assert NOTHING == counts(table.diff("x", "main"))
    changed: list[dict[str, Any] | None] = [
        {"x": math.nan, "of": [{"y": "b"}, None]},
        None,
        {"x": None, "of": []},
        {"x": 1.0, "of": []},
    ]
    table.upsert(
        pa.Table.from_pylist([{"id": place, "s": value} for place, value in enumerate(changed)], NESTED), on=["id"]
    )
    assert [0, 0, 2, 2] == [row["id"] for _, row in feed(table.diff("x", "main"))]


def test_a_field_dropped_from_a_struct_changes_no_row(tmp_path: Path) -> None:
    """The common fields of a struct are compared; both shapes of the column are shown."""
    table = LanceTable.create(tmp_path / "t", NESTED)
    table.append(
        pa.Table.from_pylist([{"id": 1, "s": {"x": 1.0, "of": None}}, {"id": 2, "s": {"x": 2.0, "of": []}}], NESTED)
    )
    table.columns.drop(["s.of"])
    assert ["  - s.of: list<item: struct<y: string>>"] == lines(table.diff("main@2", "main"))[1:2]
    table.maintenance.compact()
    assert NOTHING == counts(table.diff("main@2", "main"))
    table.update({"s": "named_struct('x', CAST(9.0 AS DOUBLE))"}, where="id = 2")
    assert [
        ("update_preimage", {"id": 2, "s": None, "s_before": {"x": 2.0, "of": []}}),
        ("update_postimage", {"id": 2, "s": {"x": 9.0}, "s_before": None}),
    ] == feed(table.diff("main@2", "main"))


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    """A column that became a list is left out of the comparison, and the diff names it."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"id": pa.int64(), "v": pa.int64()}))
    table.append(pa.table({"id": [1, 2], "v": [1, 2]}))
    table.branches.create("x")
    table.overwrite(pa.table({"id": [1, 3], "v": [[1], [2]]}))
    diff = table.diff("x", "main", on=["id"])
    assert ("v",) == diff.not_compared
    assert "not compared: v" in lines(diff)
    assert (1, 1, 0) == counts(diff)
    with pytest.raises(InvalidInputError):
        table.diff("x", "main", on=["v"])


def test_a_key_may_come_once(tmp_path: Path) -> None:
    """The error names the row whose key occurs twice; other wrong keys are refused at once."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    with pytest.raises(InvalidInputError, match="the key key = 'a'"):
        table.diff("main@1", "main", on=["key"]).stat()
    assert (2, 0, 0) == counts(table.diff("main@1", "main", on=["key", "value"]))
    with pytest.raises(InvalidInputError):
        table.diff("main@1", "main", on=["nokey"])
    with pytest.raises(InvalidInputError):
        table.diff("main@1", "main", on=[])


def test_columns_choose_what_is_looked_at(tmp_path: Path) -> None:
    """Rows that differ only in other columns are unchanged; a column may have its name in either version."""
    table = made(tmp_path)
    table.update({"name": "'x'"}, where="id = 1")
    table.update({"price": "2.5"}, where="id = 2")
    table.columns.drop(["price"])
    diff = table.diff("main@1", "main@3")
    assert ["_change_type", "_change_id", "price", "id"] == diff.rows(columns=["price", "id"]).schema.names
    assert [("update_preimage", {"price": 1.5, "id": 2}), ("update_postimage", {"price": 2.5, "id": 2})] == feed(
        diff, columns=["price", "id"]
    )
    assert (1, 2) == (diff.stat(["name"]).changed, diff.stat().changed)
    dropped = table.diff("main@1", "main")
    assert 0 == dropped.stat(["price"]).changed
    with pytest.raises(InvalidInputError):
        dropped.stat(["nothing"])
    with pytest.raises(InvalidInputError):
        dropped.rows("inserted")  # type: ignore[arg-type]  # what is refused


def test_columns_may_be_named_as_before(tmp_path: Path) -> None:
    """Each method takes old names, unless the newer version has another column of that name; duplicates count once."""
    table = made(tmp_path)
    table.columns.rename("name", "label")
    table.upsert(pa.table({"id": [2, 99], "label": ["x", "new"], "price": [1.5, 1.5]}), on=["id"])
    table.delete("id = 3")
    diff = table.diff("main@1", "main")
    for names in (["label"], ["name"], ["name", "label", "name"]):
        counted = diff.stat(names)
        assert (1, 1, 1) == (counted.added, counted.removed, counted.changed)
        images = [("update_preimage", {"label": "n2"}), ("update_postimage", {"label": "x"})]
        assert images == feed(diff, "changed", names)
        assert [{"label": "new"}] == diff.added(names).read_all().to_pylist()
        assert [{"name": "n3"}] == diff.removed(names).read_all().to_pylist()
        assert 2 == diff.changed(names).read_all().num_rows
    table.columns.add({"name": "'other'"})
    taken = table.diff("main@1", "main")
    assert (0, 1) == (taken.stat(["name"]).changed, taken.stat(["label"]).changed)
    assert [{"name": "other"}] == taken.added(["name"]).read_all().to_pylist()


@pytest.mark.parametrize("stable", [True, False])
def test_indices_are_compared_by_name(tmp_path: Path, *, stable: bool) -> None:
    """An index that pylance created, dropped or rebuilt is a change, and the content ids differ as well."""
    table = made(tmp_path, stable=stable)
    as_pylance(table).create_scalar_index("id", "BTREE")
    as_pylance(table).create_scalar_index("name", "BITMAP", name="names")
    diff = table.diff("main@1", "main")
    assert ["indices:", "  + id_idx: BTree on id", "  + names: Bitmap on name", "rows: 10 -> 10"] == lines(diff)
    assert ("added", None, IndexShape("BTree", ("id",))) == (
        diff.indices[0].kind,
        diff.indices[0].before,
        diff.indices[0].after,
    )
    assert (False, NOTHING) == (diff.unchanged, counts(diff))
    assert table.maintenance.content_id("main@1") != table.maintenance.content_id("main")
    as_pylance(table).create_scalar_index("id", "BTREE", replace=True)
    table.maintenance.drop_index("names")
    as_pylance(table).create_scalar_index("price", "BTREE", name="names")
    assert ["  ~ id_idx: BTree on id, built anew", "  ~ names: Bitmap on name -> BTree on price"] == lines(
        table.diff("main@3", "main")
    )[1:-1]
    assert ["  - id_idx: BTree on id", "  - names: Bitmap on name"] == lines(table.diff("main@3", "main@1"))[1:-1]
    before = str(table.head())
    table.append(pa.table({"id": [10], "name": ["new"], "price": [2.0]}))
    assert () == table.diff(before, "main").indices
    as_pylance(table).optimize.optimize_indices(num_indices_to_merge=0)
    assert ["  ~ id_idx: BTree on id, over more rows", "  ~ names: BTree on price, over more rows"] == lines(
        table.diff("main~1", "main")
    )[1:-1]


# With stable row ids, pylance updates indices at once even if it is told to defer that.
@pytest.mark.parametrize(
    "by,stable",
    [("package", True), ("package", False), ("pylance", True), ("pylance", False), ("pylance later", False)],
)
def test_a_compaction_leaves_indices_as_they_are(tmp_path: Path, by: str, *, stable: bool) -> None:
    """The index is no change, although it is stored anew or an internal index of Lance records how rows moved."""
    table = made(tmp_path, stable=stable)
    as_pylance(table).create_scalar_index("id", "BTREE")
    table.delete("id = 3")
    before, built = str(table.head()), table.maintenance.indices()[0].uuids
    if by == "package":
        table.maintenance.compact(deleted_share=0.0)
    elif by == "pylance":
        as_pylance(table).optimize.compact_files(materialize_deletions_threshold=0.0)
        assert built != table.maintenance.indices()[0].uuids
    else:
        as_pylance(table).optimize.compact_files(materialize_deletions_threshold=0.0, defer_index_remap=True)
    diff = table.diff(before, "main")
    assert ((), NOTHING, False) == (diff.indices, counts(diff), diff.unchanged)
    as_pylance(table).create_scalar_index("id", "BTREE", replace=True)
    assert ["replaced"] == [change.kind for change in table.diff(before, "main").indices]


def test_a_squash_is_no_change_of_settings(tmp_path: Path) -> None:
    """What a merge or squash records for the next merge is no setting."""
    table = new_table(tmp_path, entries("a", 1))
    modes: dict[str, MergeMode] = {"one": "squash", "two": "merge"}
    for name, mode in modes.items():
        table.branches.create(name)
        table.append(entries(name, 1), branch=name)
        table.append(entries("a", 2))
        table.merge(name, mode=mode)
        assert () == table.diff("main~1", "main").settings


def test_settings_are_compared(tmp_path: Path) -> None:
    """The settings are the configuration and the metadata of the table and its columns."""
    table = made(tmp_path)
    table.config.set({"lance.auto_cleanup.interval": "5"})
    table.config.set_table_metadata({"owner": "me"})
    table.columns.set_metadata("price", {"unit": "EUR"})
    assert [
        "settings:",
        "  + config: lance.auto_cleanup.interval = '5'",
        "  + table_metadata: owner = 'me'",
        "  + field_metadata of price: unit = 'EUR'",
        "rows: 10 -> 10",
    ] == lines(table.diff("main@1", "main"))


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_are_compared_by_their_bytes(tmp_path: Path, version: Literal["2.1", "2.2"]) -> None:
    """Blobs are compared and returned as bytes, also after they were moved."""
    legacy: pa.Field[Any] = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("blob") if version == "2.2" else legacy])
    values = [b"a" * 10, b"b" * 200_000, None, b""]
    blobs = lance.blob_array(values) if version == "2.2" else pa.array(values, pa.large_binary())
    rows = pa.table({"id": range(4), "blob": blobs}, schema)
    lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version=version, enable_stable_row_ids=True)
    table = LanceTable.open(tmp_path / "t")
    table.branches.create("x")
    table.update({"id": "id"}, where="true")
    assert NOTHING == counts(table.diff("x", "main"))
    changed = pa.table({"id": [1], "blob": pa.array([b"b" * 199_999 + b"c"], pa.large_binary())})
    table.upsert(changed, on=["id"])
    images = feed(table.diff("x", "main"))
    assert [b"b" * 200_000, b"b" * 199_999 + b"c"] == [row["blob"] for _, row in images]


def test_a_pickled_diff_holds_no_secret(tmp_path: Path) -> None:
    """The copy can be compared and printed, and reads rows with the options of the environment."""
    table = made(tmp_path)
    table.update({"name": "'x'"}, where="id = 1")
    diff = table.diff("main@1", "main", on=["id"])
    packed = pickle.dumps(diff)
    copy = pickle.loads(packed)  # noqa: S301  # bytes of this test
    assert diff == copy
    assert (0, 0, 1) == counts(copy)
    assert "_rows" not in repr(diff)


def test_a_pickled_diff_finds_rows_out_once(tmp_path: Path) -> None:
    """The copy caches which rows differ, as the original does, so it does not need files that are deleted later."""
    table = made(tmp_path)
    table.delete("id = 1")
    copy = pickle.loads(pickle.dumps(table.diff("main@1", "main")))  # noqa: S301  # bytes of this test
    assert (0, 1, 0) == counts(copy)
    for path in (*Path(table.uri).glob("_versions/*.manifest"), *Path(table.uri).glob("_deletions/*")):
        path.unlink()
    assert (0, 1, 0) == counts(copy)
    assert copy == pickle.loads(pickle.dumps(copy))  # noqa: S301  # bytes of this test


def test_only_two_manifests_are_read(tmp_path: Path) -> None:
    """Versions given by number on one branch need two manifests; the rows need one file more each."""
    table = made(tmp_path)
    table.delete("id = 1")
    asked: list[Request] = []

    def script(request: Request) -> Any:  # noqa: ANN401  # whatever the store answers
        asked.append(request)
        return request.send()

    traced = LanceTable(context_on(ScriptedStore(open_store(table.uri, None), script)))
    diff = traced.diff("main@1", "main@2")
    assert 2 == len([request for request in asked if request.verb == "get"])
    assert [] == [request.key for request in asked if "_versions/" not in request.key and request.verb == "get"]
    assert (0, 1, 0) == counts(diff)
    assert 3 == len([request for request in asked if request.verb == "get"])


def test_a_diff_on_object_storage(s3_storage: S3Storage) -> None:
    """A diff across branches works with rows; what is printed or pickled does not contain the secret."""
    table = LanceTable.create(
        f"{s3_storage.uri}/t",
        TEXTS,
        storage_options=s3_storage.storage_options,
    )
    table.append(pa.table({"key": [1, 2], "value": ["a", "b"]}))
    table.branches.create("x")
    table.update({"value": "'c'"}, where="key = 2", branch="x")
    diff = table.diff("main", "x")
    assert [("update_preimage", {"key": 2, "value": "b"}), ("update_postimage", {"key": 2, "value": "c"})] == feed(diff)
    assert b"test-secret" not in pickle.dumps(diff)
    assert "test-secret" not in f"{diff!r}{diff}"


def test_a_key_that_was_renamed_is_told(tmp_path: Path) -> None:
    """The error gives the name of the key in the newer version."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"id": pa.int64(), "customer": pa.int64()}))
    table.columns.rename("customer", "client")
    with pytest.raises(InvalidInputError, match="customer is called client"):
        table.diff("main@1", "main", on=["customer"])


def test_a_column_with_the_name_of_one_of_the_feed_is_refused(tmp_path: Path) -> None:
    """The feed would have two columns of one name, of which readers by name see one."""
    rows = pa.table({"id": [1], "_change_type": ["x"]})
    table = LanceTable.create(tmp_path / "t", rows.schema)
    table.append(rows)
    diff = table.diff("main~1", "main")
    with pytest.raises(InvalidInputError):
        diff.rows()
    assert [("insert", {"id": 1})] == feed(diff, columns=["id"])
