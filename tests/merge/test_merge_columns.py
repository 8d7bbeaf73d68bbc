"""Merges of columns that were added, dropped, renamed, cast, rewritten or required, with changes of the other side."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import Conflict, LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Strategy, Winner
from tests.raising import raises
from tests.soak import DEEP
from tests.table_factory import as_pylance, context_of, entries, new_table

pytestmark = pytest.mark.scaled

Change = Callable[[LanceTable, str], object]


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> LanceTable:
    """Two fragments of two rows, and a branch `run`."""
    if request.param:
        made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    else:
        uri = str(tmp_path / "addresses")
        lance.write_dataset(entries("a", 1, 2), uri)
        lance.write_dataset(entries("b", 3, 4), uri, mode="append")
        made = LanceTable.open(uri)
    made.branches.create("run")
    return made


def rows(table: LanceTable, branch: str = "main") -> list[dict[str, Any]]:
    """The rows as pylance reads them, by value."""
    found = as_pylance(table, branch).to_table().to_pylist()
    return sorted(found, key=lambda row: (row.get("value") is None, row.get("value"), str(row)))


def sound(table: LanceTable) -> None:
    """Pylance and the package find no problem in the table."""
    as_pylance(table).validate()
    assert not [problem for problem in table.maintenance.verify(deep=DEEP).problems if problem.severity == "error"]


def double(table: LanceTable, branch: str = "main") -> None:
    """Add a column with values."""
    table.columns.add({"double": "value * 2"}, branch=branch)


def compact(table: LanceTable, branch: str = "main") -> None:
    """Put all rows into one fragment."""
    as_pylance(table, branch).optimize.compact_files()


def test_a_column_arrives_beside_rows_of_the_dest(table: LanceTable) -> None:
    """The rows are null in the column, and are counted."""
    double(table, "run")
    table.append(entries("n", 5))
    table.delete("value = 1")
    preview = table.preview_merge("run")
    assert ({"double": 1}, True) == (dict(preview.needs_backfill), preview.schema_changed)
    assert "Merge" == table.merge("run").operation
    assert [(2, 4), (3, 6), (4, 8), (5, None)] == [(row["value"], row["double"]) for row in rows(table)]
    sound(table)


def test_rows_arrive_beside_a_column_of_the_dest(table: LanceTable) -> None:
    """The rows are null in the column."""
    double(table)
    table.append(entries("n", 5), branch="run")
    table.delete("value = 1", branch="run")
    assert {"double": 1} == dict(table.preview_merge("run").needs_backfill)
    table.merge("run")
    assert [(2, 4), (3, 6), (4, 8), (5, None)] == [(row["value"], row["double"]) for row in rows(table)]
    sound(table)


def test_columns_of_both_sides_are_kept(table: LanceTable) -> None:
    """Both columns get their own ids, although both sides counted from the same number."""
    double(table, "run")
    table.columns.add({"half": "value / 2"})
    table.merge("run")
    assert ["key", "value", "half", "double"] == table.schema().names
    assert (4, 2, 8) == tuple(rows(table)[3][name] for name in ("value", "half", "double"))
    sound(table)


@pytest.mark.parametrize("compacting", ["run", "main"])
def test_a_column_survives_a_compaction(table: LanceTable, compacting: str) -> None:
    """A compaction makes all rows of the side that added the column look updated, and moves rows of the other side."""
    double(table, "run")
    compact(table, compacting)
    table.delete("value = 1")
    table.append(entries("n", 5))
    table.merge("run")
    assert [(2, 4), (3, 6), (4, 8), (5, None)] == [(row["value"], row["double"]) for row in rows(table)]
    sound(table)


@pytest.mark.parametrize("adding", ["run", "main"])
def test_a_column_beside_updated_rows_is_a_conflict(table: LanceTable, adding: str) -> None:
    """The new values of the rows and those of the column were written independently."""
    double(table, adding)
    other = "main" if adding == "run" else "run"
    as_pylance(table, other).update({"key": "'x'"}, where="value = 1")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    conflict = caught.value.conflicts[0]
    assert ("column", "column double", 1) == (conflict.kind, conflict.unit, len(caught.value.conflicts))
    assert "updated 1 row without them" in str(conflict)


@pytest.mark.parametrize("adding,lossless", [("run", "dest-wins"), ("main", "source-wins")])
def test_a_column_beside_updated_rows_is_settled_without_loss(tmp_path: Path, adding: str, lossless: Winner) -> None:
    """The hint offers to keep the updates with nulls in the column; the result has the number of such rows."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    double(table, adding)
    table.update({"key": "'x'"}, where="value < 3", branch="main" if adding == "run" else "run")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    (conflict,) = caught.value.conflicts
    assert isinstance(conflict, Conflict)
    assert f"{lossless!r} keeps the updates, and 2 updated rows are null there" in conflict.hint
    assert caught.value.remedy is not None
    assert caught.value.remedy.call is not None
    strategy = {"column double": lossless}
    assert strategy == caught.value.remedy.call.named["strategy"]
    assert {"double": 2} == table.preview_merge("run", strategy=strategy).needs_backfill
    merged = table.merge("run", strategy=strategy)
    assert {"double": 2} == json.loads(merged.properties["lance_dagster.merge.needs_backfill"])
    assert [("x", None), ("x", None), ("b", 6), ("b", 8)] == [(row["key"], row["double"]) for row in rows(table)]
    sound(table)


BEFORE_THE_COLUMN: dict[str, Callable[[LanceTable, str], object]] = {
    "append": lambda table, branch: table.append(entries("n", 5), branch=branch),
    "update": lambda table, branch: table.update({"key": "'u'"}, where="value = 2", branch=branch),
    "compaction": lambda table, branch: table.maintenance.compact(branch=branch),
}


@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("adding", ["run", "main"])
@pytest.mark.parametrize("before", BEFORE_THE_COLUMN)
def test_a_column_beside_updated_rows_is_settled_after_other_changes(
    tmp_path: Path, before: str, adding: str, winner: Winner
) -> None:
    """The side that added the column has values for all of its rows, also where it moved or inserted some before."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    BEFORE_THE_COLUMN[before](table, adding)
    double(table, adding)
    table.update({"key": "'x'"}, where="value = 1", branch="main" if adding == "run" else "run")
    assert ["column double"] == [conflict.unit for conflict in table.preview_merge("run").conflicts]
    table.merge("run", strategy=winner)
    wins = winner == ("source-wins" if adding == "run" else "dest-wins")
    found = {row["value"]: (row["key"], row["double"]) for row in rows(table)}
    assert {
        1: ("a", 2) if wins else ("x", None),
        2: ("u" if before == "update" else "a", 4),
        3: ("b", 6),
        4: ("b", 8),
        **({5: ("n", 10)} if before == "append" else {}),
    } == found
    sound(table)


def test_columns_of_one_unit_are_settled_together(tmp_path: Path) -> None:
    """A strategy can be given for a unit of two columns."""
    table = new_table(tmp_path, entries("a", 1, 2))
    table.branches.create("run")
    table.columns.add({"double": "value * 2", "half": "value / 2"}, branch="run")
    table.update({"key": "'x'"}, where="value = 1")
    (conflict,) = table.preview_merge("run").conflicts
    assert "column double, half" == conflict.unit
    merged = table.merge("run", strategy={conflict.unit: "dest-wins"})
    assert {"double": 1, "half": 1} == json.loads(merged.properties["lance_dagster.merge.needs_backfill"])


def test_a_column_of_nulls_is_no_conflict(table: LanceTable) -> None:
    """There are no values to lose, so no rows are read."""
    table.columns.add(pa.schema([("note", pa.string())]), branch="run")
    as_pylance(table).update({"key": "'x'"}, where="value = 1")
    table.merge("run")
    assert ["key", "value", "note"] == table.schema().names
    assert 4 == table.count_rows()
    sound(table)


SCHEMA_CHANGES: dict[str, Change] = {
    "rename": lambda table, branch: table.columns.rename("value", "amount", branch=branch),
    "drop": lambda table, branch: table.columns.drop(["key"], branch=branch),
    "reorder": lambda table, branch: table.columns.reorder(["value", "key"], branch=branch),
    "metadata": lambda table, branch: table.columns.set_metadata("value", {"unit": "kg"}, branch=branch),
}
ROW_CHANGES: dict[str, Change] = {
    "append": lambda table, branch: table.append(entries("n", 5), branch=branch),
    "delete": lambda table, branch: table.delete("value = 1", branch=branch),
    "update": lambda table, branch: as_pylance(table, branch).update({"value": "10"}, where="value = 1"),
    "compact": compact,
}


@pytest.mark.parametrize("compacting", ["", "run", "main"])
def test_a_column_both_added_for_rows_to_come_is_one(table: LanceTable, compacting: str) -> None:
    """Two runs with a new column in their input do this; both can commit and merge again."""
    new = pa.schema([("more", pa.string())])
    for branch in ("run", "main"):
        table.columns.add(new, branch=branch)
        table.append(pa.table({"key": ["n"], "value": [5], "more": [branch]}), branch=branch)
    if compacting:
        table.maintenance.compact(branch=compacting)
    expected = {(1, None), (2, None), (3, None), (4, None), (5, "run"), (5, "main")}
    table.merge("run")
    assert expected == {(row["value"], row["more"]) for row in rows(table)}
    table.append(pa.table({"key": ["n"], "value": [6], "more": ["again"]}), branch="run")
    table.merge("run")
    expected |= {(6, "again")}
    assert expected == {(row["value"], row["more"]) for row in rows(table)}
    if compacting != "main":
        # Without stable row ids, rows that moved before the first merge cannot be traced back.
        table.branches.sync("run")
        assert expected == {(row["value"], row["more"]) for row in rows(table, "run")}
    assert ["key", "value", "more"] == table.schema().names
    as_pylance(table).validate()


@pytest.mark.parametrize("filled", ["run", "main"])
def test_values_on_one_side_are_not_nulls_on_the_other(table: LanceTable, filled: str) -> None:
    """Both sides added the column, with different values for the existing rows."""
    for branch in ("run", "main"):
        added = {"more": "value"} if branch == filled else pa.schema([("more", pa.int64())])
        table.columns.add(added, branch=branch)
    with raises(MergeConflictError, units=("column more",)):
        table.merge("run")


def test_a_required_column_is_not_kept_beside_rows_that_come_back(table: LanceTable) -> None:
    """The run replaced these rows, and loses."""
    table.overwrite(pa.table({"key": ["o"], "value": [9], "more": [5]}), branch="run")
    table.columns.set_nullable("more", nullable=False, branch="run")
    table.columns.rename("key", "name")
    with pytest.raises(MergeConflictError, match="are brought back"):
        table.merge("run", strategy="dest-wins")


@pytest.mark.parametrize(
    "source,dest,unit",
    [
        (pa.list_(pa.field("element", pa.string())), pa.list_(pa.field("item", pa.string())), "column new"),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]), "column new"),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())]), "column new"),
        (pa.list_(pa.struct([("a", pa.int64())])), pa.list_(pa.struct([("b", pa.int64())])), "column new"),
    ],
)
def test_new_columns_with_other_fields_inside_are_not_put_together(
    table: LanceTable, source: pa.DataType, dest: pa.DataType, unit: str
) -> None:
    """The result would have the fields of both; a list with two items could not be read."""
    table.columns.add(pa.field("new", source), branch="run")
    table.columns.add(pa.field("new", dest))
    assert [unit] == [found.unit for found in table.preview_merge("run").conflicts]
    table.columns.rename("new", "other", branch="run")
    table.merge("run")
    assert [dest, source] == [field.type for field in table.schema() if field.name in {"new", "other"}]


PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
NESTED: dict[str, tuple[pa.DataType, list[object], list[object]]] = {
    "struct": (PAIR, [{"a": 1, "b": "run"}, None], [{"a": 2, "b": "main"}, {"a": 3, "b": "x"}]),
    "list": (pa.list_(PAIR), [[{"a": 1, "b": "s"}, {"a": 2, "b": "s"}], []], [[{"a": 9, "b": "d"}], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", 2)], []], [[("z", 9)], None]),
}
OTHERS: dict[str, tuple[pa.DataType, list[object]]] = {
    "a number": (pa.int64(), [7, None]),
    "another struct": (pa.struct([("b", pa.string()), ("c", pa.int64())]), [{"b": "q", "c": 5}, None]),
}


def nested(folder: Path, *columns: "pa.Array[Any]") -> LanceTable:
    """Two rows in one fragment, perhaps with a column, and a branch `run`."""
    given = pa.table({"key": [1, 2], **dict(zip(["new"], columns, strict=False))})
    made = LanceTable.create(str(folder / "nested"), given.schema)
    made.append(given)
    made.branches.create("run")
    return made


def _is_won_whole(table: LanceTable, winner: Winner) -> None:
    """One conflict names the column, and its winner has all of it."""
    of_run, of_main = (table.read(branch).column("new") for branch in ("run", "main"))
    (conflict,) = table.preview_merge("run").conflicts
    assert "column new" == conflict.unit
    table.merge("run", strategy={conflict.unit: winner})
    won = of_run if winner == "source-wins" else of_main
    assert (won.type, won.to_pylist()) == (table.schema().field("new").type, table.read().column("new").to_pylist())
    assert won.to_pylist() == as_pylance(table).to_table().column("new").to_pylist()
    sound(table)


@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("other", [*NESTED, *OTHERS])
@pytest.mark.parametrize("kind", NESTED)
def test_a_nested_column_that_both_added_is_won_whole(tmp_path: Path, kind: str, other: str, winner: Winner) -> None:
    """A list or map with fields of both sides could not be read, and neither side made a struct with fields of both."""
    table, (of_run, values, same) = nested(tmp_path), NESTED[kind]
    of_main, there = (of_run, same) if other == kind else OTHERS.get(other) or NESTED[other][:2]
    for branch, column in (("run", pa.array(values, of_run)), ("main", pa.array(there, of_main))):
        table.columns.add(pa.table({"key": [1, 2], "new": column}), on=["key"], branch=branch)
    _is_won_whole(table, winner)


@pytest.mark.parametrize("winner", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("kind", ["list", "map"])
def test_a_list_that_both_wrote_in_place_is_won_whole(tmp_path: Path, kind: str, winner: Winner) -> None:
    """Its fields have one set of offsets, so a list with fields of both sides could not be read."""
    of, of_run, of_main = NESTED[kind]
    table = nested(tmp_path, pa.array([None, None], of))
    for branch, values in (("run", of_run), ("main", of_main)):
        dataset, new = as_pylance(table, branch), pa.table({"key": [1, 2], "new": pa.array(values, of)})
        fragment, fields = dataset.get_fragments()[0].update_columns(new, left_on="key", right_on="key")
        operation = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    _is_won_whole(table, winner)


def test_a_nested_column_of_one_side_and_its_updated_rows_are_one_conflict(tmp_path: Path) -> None:
    """The strategy for the column decides about the rows that lack it as well."""
    table, (of, values, others) = nested(tmp_path), NESTED["list"]
    for branch, column in (("run", values), ("main", others)):
        table.columns.add(pa.table({"key": [1, 2], "new": pa.array(column, of)}), on=["key"], branch=branch)
    table.update({"key": "20"}, where="key = 2")
    table.merge("run", strategy={"column new": "source-wins"})
    assert values == table.read().column("new").to_pylist()
    sound(table)


COMING: dict[str, Callable[[LanceTable], list[str]]] = {
    "cast, merged": lambda table: [*_cast(table), str(table.merge("run"))],
    "cast, picked": lambda table: [*_cast(table), str(table.cherry_pick("run"))],
    "cast, taken back": lambda table: [*_cast(table, "main"), str(table.revert("main"))],
    "dropped, taken back": lambda table: [str(table.columns.drop(["value"])), str(table.revert("main"))],
    "child dropped, taken back": lambda table: [str(table.columns.drop(["place.city"])), str(table.revert("main"))],
}


def _cast(table: LanceTable, branch: str = "run") -> list[str]:
    return [str(table.columns.cast("value", pa.int32(), branch=branch))]


@pytest.mark.parametrize("coming", COMING)
def test_a_column_that_comes_again_has_its_place(tmp_path: Path, coming: str) -> None:
    """It is not the last column, because readers may use positions of columns."""
    place = pa.struct([("city", pa.string()), ("zone", pa.int64())])
    places = pa.array([{"city": "x", "zone": 1}], place)
    given = pa.table({"key": ["a"], "value": [1], "place": places, "more": [2]})
    table = LanceTable.create(str(tmp_path / "table"), given.schema)
    table.append(given)
    table.branches.create("run")
    COMING[coming](table)
    table.columns.add({"last": "more"})
    assert ["key", "value", "place", "more", "last"] == table.schema().names
    assert ["city", "zone"] == [field.name for field in table.schema().field("place").type]
    assert ["key", "value", "place", "more", "last"] == as_pylance(table).schema.names


@pytest.mark.parametrize("of_rows", ROW_CHANGES)
@pytest.mark.parametrize("of_columns", SCHEMA_CHANGES)
@pytest.mark.parametrize("side", ["run", "main"])
def test_names_and_order_of_columns_do_not_disturb_rows(
    table: LanceTable, of_columns: str, of_rows: str, side: str
) -> None:
    """The other side's changes of rows are merged, and columns are as the first side has them."""
    SCHEMA_CHANGES[of_columns](table, side)
    ROW_CHANGES[of_rows](table, "main" if side == "run" else "run")
    schema = table.schema(side)
    table.merge("run")
    assert schema == table.schema()
    values = {"append": [1, 2, 3, 4, 5], "delete": [2, 3, 4], "update": [2, 3, 4, 10], "compact": [1, 2, 3, 4]}
    name = "amount" if of_columns == "rename" else "value"
    assert values[of_rows] == sorted(row[name] for row in rows(table))
    sound(table)


@pytest.mark.parametrize(
    "one,other,unit",
    [
        (SCHEMA_CHANGES["rename"], lambda t, b: t.columns.rename("value", "sum", branch=b), "column value"),
        (lambda t, b: t.columns.drop(["value"], branch=b), SCHEMA_CHANGES["rename"], "column value"),
        (double, lambda t, b: t.columns.add({"double": "value * 3"}, branch=b), "column double"),
        (double, lambda t, b: t.columns.rename("value", "double", branch=b), "column double"),
        (lambda t, b: t.columns.cast("value", pa.int32(), branch=b), ROW_CHANGES["append"], "column value"),
        (lambda t, b: t.columns.cast("value", pa.int32(), branch=b), ROW_CHANGES["update"], "column value"),
        (
            lambda t, b: t.columns.set_nullable("value", nullable=False, branch=b),
            lambda t, b: t.append(pa.table({"key": ["n"], "value": pa.array([None], pa.int64())}), branch=b),
            "column value",
        ),
    ],
    ids=["renamed twice", "dropped and renamed", "added twice", "same name", "cast", "cast and update", "nulls"],
)
@pytest.mark.parametrize("side", ["run", "main"])
def test_columns_that_contradict_each_other(
    table: LanceTable, one: Change, other: Change, unit: str, side: str
) -> None:
    """The conflict names the column, whichever side made which change."""
    one(table, side)
    other(table, "main" if side == "run" else "run")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    assert unit in [conflict.unit for conflict in caught.value.conflicts]
    assert {"column", "schema"} >= {conflict.kind for conflict in caught.value.conflicts}


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_new_struct_has_values_where_files_hold_no_null_one(tmp_path: Path, version: Any) -> None:  # noqa: ANN401
    """In files of version 2.0 a row without a value of the other side's column could not be rewritten any more."""
    made = pa.table({"id": [1, 2]})
    lance.write_dataset(made, tmp_path / "table", data_storage_version=version, enable_stable_row_ids=True)
    table = LanceTable.open(tmp_path / "table")
    for number in (1, 2):
        table.branches.create(f"run/{number}")
        column = pa.StructArray.from_arrays([pa.array([1, 2])], ["x"])
        table.columns.add(made.append_column(f"n{number}", column), on=["id"], branch=f"run/{number}")
    table.merge("run/1")
    table.append(table.read(filter="id = 1"))
    if version == "2.0":
        with pytest.raises(MergeConflictError, match="drop column n2 on run/2, try again"):
            table.merge("run/2", strategy="source-wins")
        return
    table.merge("run/2")
    table.update({"id": "id + 1"})
    assert [1, 2, None] == [row["n2"] and row["n2"]["x"] for row in table.read().to_pylist()]


def test_a_required_column_is_kept_beside_rows_that_have_it(table: LanceTable) -> None:
    """The rows are checked for nulls."""
    table.columns.set_nullable("value", nullable=False, branch="run")
    table.append(entries("n", 5))
    table.merge("run")
    assert not table.schema().field("value").nullable
    sound(table)


def test_a_required_column_is_found_under_its_name_on_the_other_side(table: LanceTable) -> None:
    """The rows are checked in the column that was renamed, and not in the one that has its name now."""
    table.columns.set_nullable("value", nullable=False, branch="run")
    table.columns.rename("value", "amount")
    table.columns.rename("key", "value")
    table.append(pa.table({"value": pa.array([None], pa.string()), "amount": [5]}))
    table.branches.create("nulls")
    table.append(pa.table({"value": ["n"], "amount": pa.array([None], pa.int64())}), branch="nulls")
    table.merge("run")
    assert not table.schema().field("amount").nullable
    sound(table)
    with pytest.raises(MergeConflictError, match="give column amount values on nulls") as caught:
        table.merge("run", into="nulls")
    assert ["column value"] == [conflict.unit for conflict in caught.value.conflicts]


def test_a_column_that_both_added_has_the_metadata_of_both(table: LanceTable) -> None:
    """It is merged key by key, as for a column of the merge base."""
    table.columns.add(pa.field("note", pa.string(), metadata={"unit": "m", "source": "1"}), branch="run")
    table.columns.add(pa.field("note", pa.string(), metadata={"unit": "ft", "dest": "2"}))
    (conflict,) = table.preview_merge("run").conflicts
    assert ("metadata of column note", True) == (conflict.unit, conflict.source.endswith("set key 'unit'"))
    table.merge("run", strategy={conflict.unit: "source-wins"})
    assert {b"unit": b"m", b"source": b"1", b"dest": b"2"} == table.schema().field("note").metadata


@pytest.mark.parametrize("keyed,nulled", [("run", "main"), ("main", "run")])
def test_a_primary_key_that_may_be_null_is_a_conflict(tmp_path: Path, keyed: str, nulled: str) -> None:
    """No reader would open the result."""
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.int64())])
    table = LanceTable.create(tmp_path / "table", schema)
    table.append(pa.table({"key": [1], "value": [1]}, schema=schema))
    table.branches.create("run")
    table.columns.set_metadata("key", {"lance-schema:unenforced-primary-key": "true"}, branch=keyed)
    table.columns.set_nullable("key", nullable=True, branch=nulled)
    with pytest.raises(MergeConflictError, match=f"forbid nulls in 'key' on {nulled} .*, or .* on {keyed}") as caught:
        table.merge("run")
    (conflict,) = caught.value.conflicts
    of_key, of_null = (conflict.source, conflict.dest) if keyed == "run" else (conflict.dest, conflict.source)
    assert of_key.endswith(f"({keyed}@3) made it a primary key")
    assert of_null.endswith(f"({nulled}@3) allowed nulls in 'key'")
    table.columns.set_nullable("key", nullable=False, branch=nulled)
    table.merge("run")
    sound(table)


def test_the_order_of_a_primary_key_is_merged(tmp_path: Path) -> None:
    """The fields have it as their metadata says, which the format repeats in them."""
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("a", "b")])
    table = LanceTable.create(tmp_path / "table", schema)
    table.branches.create("run")
    for name, position in (("a", "2"), ("b", "1")):
        entry = {"lance-schema:unenforced-primary-key:position": position}
        table.columns.set_metadata(name, entry, branch="run")
    table.append(pa.table({"a": [1], "b": [1]}, schema=schema))
    table.merge("run")
    fields = context_of(table).head("main").manifest.fields
    assert [("a", True, 2), ("b", True, 1)] == [(own.name, own.primary_key, own.primary_key_position) for own in fields]


def test_a_cast_arrives_beside_deletions(table: LanceTable) -> None:
    """Rows that both sides have were cast."""
    table.columns.cast("value", pa.int32(), branch="run")
    table.delete("value = 1")
    table.merge("run")
    assert (pa.int32(), [2, 3, 4]) == (table.schema().field("value").type, [row["value"] for row in rows(table)])
    sound(table)


def test_columns_written_anew_on_both_sides(table: LanceTable) -> None:
    """Different columns are both kept; the same one is a conflict, and a strategy settles the whole column."""
    for branch, column, value in (("run", "value", 10), ("main", "key", "x")):
        write_anew(table, branch, column, value)
    table.merge("run")
    assert [("x", 10)] * 4 == [(row["key"], row["value"]) for row in rows(table)]
    table.branches.create("again")
    write_anew(table, "again", "value", 20)
    write_anew(table, "main", "value", 30)
    with raises(MergeConflictError, units=("column value",)):
        table.merge("again")
    table.branches.create("second", at="again")
    table.merge("second", strategy={"column value": "source-wins"})
    assert [20] * 4 == [row["value"] for row in rows(table)]
    sound(table)


def write_anew(table: LanceTable, branch: str, column: str, value: object) -> None:
    """Write all values of a column into separate files, in place."""
    dataset = as_pylance(table, branch)
    new = []
    for fragment in dataset.get_fragments():
        ids = fragment.to_table(columns=[], with_row_id=True)["_rowid"]
        values = pa.array([value] * len(ids), dataset.schema.field(column).type)
        given = pa.table([ids.combine_chunks(), values], names=["_rowid", column])
        updated, fields = fragment.update_columns(given, left_on="_rowid", right_on="_rowid")
        new.append((updated, fields))
    operation = lance.LanceOperation.Update(
        updated_fragments=[fragment for fragment, _ in new],
        fields_modified=new[0][1],
        update_mode="rewrite_columns",
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


@pytest.mark.parametrize("cast_by", ["run", "main"])
def test_a_cast_beside_values_written_in_place_is_one_conflict(table: LanceTable, cast_by: str) -> None:
    """The column that a strategy would keep beside the cast one is no second conflict, whichever side casts."""
    write_anew(table, "main" if cast_by == "run" else "run", "value", 9)
    _cast(table, cast_by)
    units = [(conflict.kind, conflict.unit) for conflict in table.preview_merge("run").conflicts]
    assert [("column", "column value")] == units
    winner: Winner = "source-wins" if cast_by == "run" else "dest-wins"
    table.merge("run", strategy=winner)
    assert pa.int32() == table.schema().field("value").type
    assert [1, 2, 3, 4] == [row["value"] for row in rows(table)]
    sound(table)


def test_an_index_still_answers_right(table: LanceTable) -> None:
    """The dest's index does not cover rows that the merge added, changed or restored."""
    as_pylance(table).create_scalar_index("value", "BTREE")
    table.append(entries("n", 5), branch="run")
    as_pylance(table, "run").update({"value": "10"}, where="value = 1")
    assert ("value_idx",) == table.preview_merge("run").reindex_needed
    table.merge("run")
    for value, count in ((1, 0), (2, 1), (5, 1), (10, 1)):
        assert count == as_pylance(table).count_rows(f"value = {value}")
    assert {"value_idx": 1} == {index.name: 1 for index in table.maintenance.indices()}
    sound(table)


@pytest.mark.parametrize("rebuilt", [True, False])
def test_an_index_that_the_source_dropped(tmp_path: Path, *, rebuilt: bool) -> None:
    """It goes from the dest too, unless the dest dropped it as well and made another one of its name since."""
    table = new_table(tmp_path, entries("a", 1, 2))
    as_pylance(table).create_scalar_index("value", "BTREE", name="by value")
    table.branches.create("run")
    table.maintenance.drop_index("by value", branch="run")
    table.append(entries("n", 5), branch="run")
    if rebuilt:
        table.maintenance.drop_index("by value")
        as_pylance(table).create_scalar_index("value", "BITMAP", name="by value")
    else:
        table.append(entries("m", 6))
        as_pylance(table).optimize.optimize_indices()
    table.merge("run")
    assert (["Bitmap"] if rebuilt else []) == [index.kind for index in table.maintenance.indices()]
    sound(table)


# Strategies.


def test_a_strategy_settles_what_is_in_conflict_and_nothing_else(table: LanceTable) -> None:
    """Rows that only one side changed keep the change."""
    conflicting_changes(table)
    if not as_pylance(table).has_stable_row_ids:
        with raises(MergeConflictError, units=("1 row in fragment 0 of the merge base",)):
            table.merge("run", strategy="source-wins")
        return
    before = str(table.head())
    values: dict[Winner, int] = {"source-wins": 10, "dest-wins": 11}
    for strategy, value in values.items():
        table.branches.create(strategy, at=before)
        table.merge("run", into=strategy, strategy=strategy)
        assert [4, 5, value, 20] == [row["value"] for row in rows(table, strategy)]
    table.branches.create("by-kind", at=before)
    table.merge("run", into="by-kind", strategy={"rows": "source-wins"})
    assert rows(table, "source-wins") == rows(table, "by-kind")


def conflicting_changes(table: LanceTable) -> None:
    """Both sides update one row differently, and each makes another change."""
    for branch, value in (("run", 10), ("main", 11)):
        as_pylance(table, branch).update({"value": str(value)}, where="value = 1")
    as_pylance(table, "run").update({"value": "20"}, where="value = 2")
    table.delete("value = 3")
    table.append(entries("n", 5))


def test_nulls_that_a_compaction_wrote_down_are_no_values(tmp_path: Path) -> None:
    """An update of the row by the other side loses nothing, even after an earlier merge of the row."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    table.append(entries("r", 5), branch="run")
    table.merge("run")
    table.columns.add(pa.schema([("later", pa.int64())]))
    table.maintenance.compact()
    table.update({"key": "'z'"}, where="value = 5", branch="run")
    table.merge("run")
    assert ("z", 5, None) == tuple(rows(table)[-1].values())
    sound(table)


def test_each_side_s_columns_go_by_the_strategy_for_them(tmp_path: Path) -> None:
    """A row cannot be beside the columns of both sides."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3, 4))
    table.branches.create("run")
    table.columns.add({"half": "value * 5"})
    table.update({"key": "'z'"}, where="value = 1")
    double(table, "run")
    decided: tuple[dict[str, Winner], ...] = ({}, {"column half": "dest-wins"})
    for half in decided:
        with raises(MergeConflictError, units=("column half",)):
            table.merge("run", strategy={"column double": "source-wins", **half})
    preview = table.preview_merge("run", strategy={"column double": "dest-wins"})
    assert () == preview.conflicts
    table.merge("run", strategy="source-wins")
    assert ("a", 1, None, 2) == tuple(rows(table)[0].values())
    sound(table)


@pytest.mark.parametrize("casting", ["run", "main"])
def test_rows_do_not_come_back_into_a_column_of_another_type(tmp_path: Path, casting: str) -> None:
    """One side updated a row after the cast; the other side's copy would have no value in the cast column."""
    other = "run" if casting == "main" else "main"
    wins: Winner = "source-wins" if casting == "main" else "dest-wins"
    loses: Winner = "dest-wins" if casting == "main" else "source-wins"
    table = new_table(tmp_path, entries("a", 1), entries("a", 2), entries("b", 3, 4))
    table.branches.create("run")
    table.columns.cast("value", pa.int32(), branch=casting)
    table.update({"key": "'z'"}, where="value = 1", branch=casting)
    double(table, other)
    given: tuple[Strategy, ...] = (wins, {"column double": wins})
    for strategy in given:
        with pytest.raises(MergeConflictError, match="are brought back"):
            table.merge("run", strategy=strategy)
    table.merge("run", strategy=loses)
    assert [("z", 1, None), ("a", 2, 4), ("b", 3, 6), ("b", 4, 8)] == [
        (row["key"], row["value"], row["double"]) for row in rows(table)
    ]
    sound(table)


@pytest.mark.parametrize("casting", ["run", "main"])
def test_a_cast_that_loses_is_no_conflict_when_no_row_comes_back(tmp_path: Path, casting: str) -> None:
    """The winner replaced all rows too, and deleted its own, so no row of the old type is left on either side."""
    other = "run" if casting == "main" else "main"
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    table.columns.cast("value", pa.int32(), branch=casting)
    table.overwrite(entries("b", 2).cast(table.schema(casting)), branch=casting)
    table.overwrite(entries("c", 3), branch=other)
    table.delete("value = 3", branch=other)
    with pytest.raises(MergeConflictError) as refused:
        table.merge("run")
    assert ["the whole table"] == [conflict.unit for conflict in refused.value.conflicts]
    table.merge("run", strategy="source-wins" if casting == "main" else "dest-wins")
    assert [] == rows(table)
    sound(table)


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
def test_a_partition_goes_to_one_side(table: LanceTable, strategy: Winner) -> None:
    """The winner gets the whole partition, with its deletions."""
    table.replace_where("key = 'a'", entries("a", 7), branch="run", partitions=["a"])
    table.replace_where("key = 'a'", entries("a", 8, 9), partitions=["a"])
    table.append(entries("n", 5), branch="run")
    table.delete("value = 3")
    table.merge("run", strategy={"partition a": strategy})
    won = [7] if strategy == "source-wins" else [8, 9]
    assert sorted([4, 5, *won]) == [row["value"] for row in rows(table)]
    sound(table)


def test_metadata_of_a_column_is_settled_under_the_unit_of_its_conflict(table: LanceTable) -> None:
    """The kind is `column`, and a strategy takes the unit of the conflict."""
    table.columns.set_metadata("value", {"unit": "km"}, branch="run")
    table.columns.set_metadata("value", {"unit": "mi"})
    (conflict,) = table.preview_merge("run").conflicts
    assert ("column", "metadata of column value") == (conflict.kind, conflict.unit)
    assert "set key 'unit'" in conflict.source
    assert conflict.hint
    merged = table.merge("run", strategy={conflict.unit: "source-wins"})
    assert {b"unit": b"km"} == table.schema(merged).field("value").metadata


def test_a_strategy_that_is_none_is_said(table: LanceTable) -> None:
    """The strategy is checked before anything is read."""
    table.append(entries("n", 5), branch="run")
    with pytest.raises(ValueError, match="is not a strategy"):
        table.merge("run", strategy="ours")  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("stable", [True, False])
def test_columns_written_as_pylance_shows_it_survive_a_compaction(tmp_path: Path, *, stable: bool) -> None:
    """Pylance's example of `update_columns` commits an update that does not say that it wrote columns."""
    uri = str(tmp_path / "written")
    lance.write_dataset(
        pa.table({"id": range(6), "value": range(6)}), uri, max_rows_per_file=3, enable_stable_row_ids=stable
    )
    table = LanceTable.open(uri)
    table.branches.create("run")
    run = lance.dataset(uri).checkout_version(("run", None))
    new = pa.table({"id": range(3), "value": range(100, 103)})
    fragment, fields = run.get_fragments()[0].update_columns(new, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    run = lance.LanceDataset.commit(run, operation, read_version=run.version)
    run.optimize.compact_files()
    if stable:
        lance.dataset(uri).optimize.compact_files()
    table.merge("run")
    assert [3, 4, 5, 100, 101, 102] == table.read().sort_by("value")["value"].to_pylist()


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("reused", [False, True], ids=["renamed", "name given to another column"])
@pytest.mark.parametrize("replacing", ["run", "main"])
def test_rows_replaced_by_a_renamed_column_are_found(
    tmp_path: Path, replacing: str, strategy: Winner, *, reused: bool
) -> None:
    """The predicate applies to the column of its time, under any present name; either winner settles the conflict."""
    table = new_table(tmp_path, entries("mon", 1), entries("tue", 2))
    table.branches.create("run")
    other = "main" if replacing == "run" else "run"
    table.replace_where("key = 'tue'", entries("tue", 10), branch=replacing)
    table.columns.rename("key", "day", branch=other)
    value = "value"
    if reused:
        table.columns.rename("value", "key", branch=other)
        value = "key"
    new = pa.table({"day": ["tue", "wed"], value: pa.array([20, 21], pa.int64())})
    table.append(new, branch=other)
    (conflict,) = table.preview_merge("run").conflicts
    assert "rows where key = 'tue'" == conflict.unit
    assert "strategy \"rows where key = 'tue'\": 'source-wins' or 'dest-wins'" == conflict.hint
    table.merge("run", strategy=strategy)
    won = (strategy == "source-wins") == (replacing == "run")
    expected = [("mon", 1), ("tue", 10), ("wed", 21)] if won else [("mon", 1), ("tue", 2), ("tue", 20), ("wed", 21)]
    assert expected == sorted((row["day"], row[value]) for row in table.read().to_pylist())


@pytest.mark.parametrize("strategy,won", [("source-wins", 5), ("dest-wins", 6)])
def test_keys_are_found_under_their_other_names(tmp_path: Path, strategy: Winner, won: int) -> None:
    """If one side renamed the key column, two upserts still conflict about the keys that both wrote."""
    table = new_table(tmp_path, entries("mon", 1))
    table.branches.create("run")
    table.upsert(pa.concat_tables([entries("wed", 5), entries("thu", 7)]), on=["key"], branch="run")
    table.columns.rename("key", "day")
    table.upsert(pa.table({"day": ["wed"], "value": pa.array([6], pa.int64())}), on=["day"])
    units = {conflict.unit for conflict in table.preview_merge("run").conflicts}
    assert units <= {"rows where `key` IN ('wed')", "rows where `day` IN ('wed')"}
    table.merge("run", strategy=strategy)
    rows = [(row["day"], row["value"]) for row in table.read().to_pylist()]
    assert [("mon", 1), ("thu", 7), ("wed", won)] == sorted(rows)


@pytest.mark.parametrize("moved", [False, True], ids=["in place", "compacted"])
def test_the_same_column_with_the_same_values_is_no_conflict(tmp_path: Path, *, moved: bool) -> None:
    """Both sides computed the column; rows that one side added have that side's values."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    table.branches.create("run")
    for branch, value in (("run", 10), ("main", 20)):
        table.columns.add({"twice": "value * 2"}, branch=branch)
        new = pa.table({"key": ["n"], "value": pa.array([value]), "twice": pa.array([value * 2 + 1])})
        table.append(new, branch=branch)
    table.delete("value = 2")
    if moved:
        table.maintenance.compact(branch="run")
    preview = table.preview_merge("run")
    assert ((), {}) == (preview.conflicts, preview.needs_backfill)
    merged = table.merge("run")
    rows = [(row["value"], row["twice"]) for row in table.read().to_pylist()]
    assert [(1, 2), (3, 6), (10, 21), (20, 41)] == sorted(rows)
    as_pylance(table).validate()
    assert merged == table.merge("run")
    table.merge("main", into="run")
    assert rows_of(table, "run") == rows_of(table, "main")


def rows_of(table: LanceTable, ref: str) -> list[tuple[int, int]]:
    """The rows of a version with the added column."""
    return sorted((row["value"], row["twice"]) for row in table.read(ref).to_pylist())


@pytest.mark.parametrize("other", ["value * value - value + 2", "CAST(value * 2 AS INT)"])
def test_the_same_column_with_other_values_or_another_type_is_one(tmp_path: Path, other: str) -> None:
    """One different value is enough for a conflict."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    table.branches.create("run")
    table.columns.add({"twice": "value * 2"}, branch="run")
    table.columns.add({"twice": other})
    (conflict,) = table.preview_merge("run").conflicts
    assert ("column", "column twice") == (conflict.kind, conflict.unit)


@pytest.mark.parametrize("first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("updating", ["run", "main"])
def test_rows_updated_beside_the_same_column_keep_their_values(tmp_path: Path, updating: str, *, first: bool) -> None:
    """An updated row has the value of its side, whether the column was added before or after the update."""
    table = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    table.branches.create("run")
    if first:
        table.update({"value": "7"}, where="value = 3", branch=updating)
    for branch in ("run", "main"):
        table.columns.add({"twice": "value * 2"}, branch=branch)
    if not first:
        table.update({"value": "7", "twice": "14"}, where="value = 3", branch=updating)
    preview = table.preview_merge("run")
    assert ((), {}) == (preview.conflicts, preview.needs_backfill)
    table.merge("run")
    assert [(1, 2), (2, 4), (7, 14)] == rows_of(table, "main")
    as_pylance(table).validate()


def test_a_preview_tells_that_no_column_would_be_left(tmp_path: Path) -> None:
    """Without rows too: each side dropped another column, and the merge is refused as the preview says."""
    table = new_table(tmp_path)
    table.branches.create("run")
    table.columns.drop(["key"], branch="run")
    table.columns.drop(["value"])
    preview = table.preview_merge("run")
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run", strategy="source-wins")
    assert ["columns"] == [one.unit for one in preview.conflicts] == [one.unit for one in caught.value.conflicts]
    assert ["key"] == table.schema().names


def refused(table: LanceTable, write: Callable[[LanceTable], object], unit: str) -> MergeConflictError:
    """Expect that a change is refused with one conflict and writes nothing; return the error."""
    before = table.head()
    with pytest.raises(MergeConflictError) as caught:
        write(table)
    assert [unit] == [conflict.unit for conflict in caught.value.conflicts]
    assert before == table.head()
    sound(table)
    return caught.value


@pytest.mark.parametrize("strategy", [None, "source-wins"])
def test_rows_of_which_no_column_is_left_are_refused(table: LanceTable, strategy: Winner | None) -> None:
    """Main dropped every column of the appended row: no file would be left that says how many rows there are."""
    table.append(entries("n", 5), branch="run")
    double(table, "main")
    table.columns.drop(["key", "value"])
    refused(table, lambda t: t.merge("run", strategy=strategy), "values of 1 row")
    refused(table, lambda t: t.cherry_pick("run", strategy=strategy), "values of 1 row")
    assert ["values of 1 row"] == [one.unit for one in table.preview_merge("run", strategy=strategy).conflicts]


def test_a_revert_that_brings_back_rows_without_a_column_is_refused(table: LanceTable) -> None:
    """The deleted rows come back from files that have none of the columns of now."""
    deleted = table.delete("value < 3")
    double(table, "main")
    table.columns.drop(["key", "value"])
    refused(table, lambda t: t.revert(deleted), "values of 2 rows")


@pytest.mark.parametrize("strategy", ["source-wins", {"the whole table": "source-wins"}])
def test_rows_that_would_replace_an_overwrite_need_one_of_its_columns(table: LanceTable, strategy: Strategy) -> None:
    """Main has other columns, so the rows that win would be null in all of them; the hint offers the other winner."""
    table.delete("value = 1", branch="run")
    table.overwrite(pa.table({"price": [7]}))
    error = refused(table, lambda t: t.merge("run", strategy=strategy), "values of 3 rows")
    assert error.remedy is not None
    assert error.remedy.call is not None
    offered = error.remedy.call.named["strategy"]
    assert {"the whole table": "dest-wins"} == offered
    table.merge("run", strategy=offered)
    assert [7] == table.read()["price"].to_pylist()


@pytest.mark.parametrize("source,dest", [("run", "main"), ("main", "run")])
@pytest.mark.parametrize("differing", [True, False])
def test_new_columns_are_compared_in_rows_that_both_picked(
    tmp_path: Path, source: str, dest: str, *, differing: bool
) -> None:
    """The merge base lacks the row, in which the columns of the two sides differ or are equal."""
    table = new_table(tmp_path, entries("a", 1))
    for branch in ("run", "third"):
        table.branches.create(branch)
    picked = table.append(entries("p", 5), branch="third")
    for branch in ("main", "run"):
        table.cherry_pick(picked, branch)
    table.columns.add({"more": "value + 1"})
    table.columns.add({"more": "value * 2" if differing else "value + 1"}, branch="run")
    if differing:
        with raises(MergeConflictError, units=("column more",)):
            table.merge(source, dest)
    else:
        table.merge(source, dest)
        assert {2, 6} == set(table.read(dest)["more"].to_pylist())
