"""Updates, compared with those of pylance."""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_field

from lance_dagster import LanceTable
from lance_dagster.errors import CommitConflictError, InvalidInputError, SchemaMismatchError
from lance_dagster.format.transaction import REWRITE_ROWS, Update
from tests.table.interruption import interrupted
from tests.table.pylance_parity import ParityPair, assert_pylance_goes_on, row_lineage
from tests.table_factory import as_pylance, contents, entries, new_table


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> ParityPair:
    """Two tables of the same two fragments, with and without stable row ids."""
    return ParityPair.made(tmp_path, stable_row_ids=request.param)


@pytest.mark.parametrize(
    "values,where",
    [
        ({"value": "value + 100"}, "value % 3 = 0"),
        ({"value": "value + 100"}, None),
        ({"key": "'z'", "value": "value * value"}, "key = 'b'"),
        ({"key": "concat(key, '-', cast(value AS string))"}, "value > 2"),
        ({"key": "NULL"}, "value = 9"),
        ({"value": "CASE WHEN key = 'a' THEN 0 ELSE value END"}, None),
        ({"Value": "1"}, None),
        ({"value": "1"}, "value = 100"),
    ],
)
def test_rows_become_what_pylance_makes_of_them(pair: ParityPair, values: dict[str, str], where: str | None) -> None:
    """Rows, row ids and row versions are equal, and pylance can go on with the table."""
    failed = [
        _failed(lambda: pair.table.update(values, where=where)),
        _failed(lambda: pair.dataset.update(values, where)),
    ]
    assert failed[0] == failed[1]
    if where != "value = 100":
        pair.assert_same()
    assert_pylance_goes_on(pair.table)


def _failed(act: Callable[[], object]) -> bool:
    try:
        act()
    except (ValueError, OSError):
        return True
    return False


def test_updates_follow_each_other(pair: ParityPair) -> None:
    """Moved rows are moved again, with compactions by both programs in between."""
    for number in range(4):
        for table in (pair.table, pair.dataset):
            table.update({"value": f"value + {number}"}, where=f"value % {number + 2} = 0")
            if number == 2:
                table.delete("value = 7")
    pair.dataset.optimize.compact_files()
    pair.table.maintenance.compact()
    found, expected = row_lineage(as_pylance(pair.table)), row_lineage(pair.dataset)
    assert [_unplaced(row) for row in expected] == [_unplaced(row) for row in found]
    assert_pylance_goes_on(pair.table)


def _unplaced(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["key"], row["value"], row.get("_row_created_at_version"), row.get("_row_last_updated_at_version")


def test_the_transaction_is_the_one_pylance_writes(pair: ParityPair) -> None:
    """One fragment is removed, one gets a deletion vector, and a new one has the row ids."""
    operations = []
    for table in (pair.table, pair.dataset):
        table.update({"key": "'z'"}, where="value < 7")
        operations.append(pair.operation(table))
    found, expected = operations
    assert isinstance(found, Update)
    assert isinstance(expected, Update)
    assert ((0,), (), REWRITE_ROWS, (0,)) == (
        found.removed_fragment_ids,
        found.fields_modified,
        found.mode,
        found.updated_fields,
    )
    assert (expected.removed_fragment_ids, expected.fields_modified, expected.mode, expected.updated_fields) == (
        found.removed_fragment_ids,
        found.fields_modified,
        found.mode,
        found.updated_fields,
    )
    assert [fragment.id for fragment in expected.updated_fragments] == [
        fragment.id for fragment in found.updated_fragments
    ]
    (found_fragment,), (expected_fragment,) = found.new_fragments, expected.new_fragments
    assert (expected_fragment.physical_rows, expected_fragment.row_ids is None) == (
        found_fragment.physical_rows,
        found_fragment.row_ids is None,
    )


def test_no_row_that_matches_makes_no_version(tmp_path: Path) -> None:
    """No file is written either."""
    table = new_table(tmp_path, entries("a", 1))
    files = list(Path(table.uri, "data").iterdir())
    assert table.head() == table.update({"value": "2"}, where="value = 7")
    assert files == list(Path(table.uri, "data").iterdir())


def test_rows_keep_who_they_are_through_large_files(tmp_path: Path) -> None:
    """Updated rows of many fragments go into one new fragment, and some of them into another; they keep their ids."""
    table = new_table(
        tmp_path, *(entries(f"k{number}", *range(number * 100, number * 100 + 100)) for number in range(8))
    )
    before = {row["value"]: row for row in _known(table)}
    table.update({"key": "'u'"}, where="value % 5 < 2")
    table.update({"key": "'v'"}, where="value % 10 = 0")
    assert 800 == len(before) == table.count_rows()
    for row in _known(table):
        was = before[row["value"]]
        assert (was["_rowid"], was["_row_created_at_version"]) == (row["_rowid"], row["_row_created_at_version"])
        updated = {True: 11, False: 10 if row["value"] % 5 < 2 else was["_row_last_updated_at_version"]}
        assert updated[row["value"] % 10 == 0] == row["_row_last_updated_at_version"]


def _known(table: LanceTable) -> list[dict[str, Any]]:
    columns = ["value", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    rows: list[dict[str, Any]] = as_pylance(table).to_table(columns=columns).to_pylist()
    return rows


TYPES: dict[str, tuple[pa.DataType, object, str, object]] = {
    "smaller number": (pa.int32(), 1, "c + 1", 2),
    "text to a moment": (pa.timestamp("us"), None, "'2026-01-31 10:00:00'", dt.datetime(2026, 1, 31, 10)),  # noqa: DTZ001
    "number to text": (pa.string(), "a", "5", "5"),
    "text to bytes": (pa.binary(), b"a", "'xy'", b"xy"),
    "number to decimal": (pa.decimal128(10, 2), None, "1.5", decimal.Decimal("1.50")),
    "list to vector": (pa.list_(pa.float32(), 2), [1.0, 2.0], "[3.0, 4.0]", [3.0, 4.0]),
    "list": (pa.list_(pa.int64()), [1], "[1, 2, 3]", [1, 2, 3]),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.float64())]),
        {"x": 1, "y": 2.0},
        "named_struct('x', c.x + 1, 'y', 0.5)",
        {"x": 2, "y": 0.5},
    ),
    "word of a dictionary": (pa.dictionary(pa.int32(), pa.string()), "a", "'b'", "b"),
    "nothing": (pa.list_(pa.struct([("x", pa.int8())])), [{"x": 1}], "NULL", None),
    "half a number": (pa.float16(), 1.5, "c * 2", 3.0),
    "truth": (pa.bool_(), True, "NOT c", False),
}


@pytest.mark.parametrize("kind", TYPES)
def test_values_are_converted_to_the_column(tmp_path: Path, kind: str) -> None:
    """Values are converted as in pylance; rows that do not match are unchanged, in every type."""
    arrow, before, expression, after = TYPES[kind]
    schema = pa.schema([("id", pa.int64()), ("c", arrow), ("other", arrow)])
    rows = pa.table(
        {"id": [1, 2], "c": pa.array([before] * 2, arrow), "other": pa.array([before, None], arrow)}, schema
    )
    pair = ParityPair.made(tmp_path, rows)
    for table in (pair.table, pair.dataset):
        table.update({"c": expression}, where="id = 2")
    pair.assert_same()
    assert [before, after] == pair.table.read().sort_by("id")["c"].to_pylist()


INEXACT: dict[str, tuple[pa.DataType, str, str]] = {
    "digits of a decimal": (pa.decimal128(10, 2), "1.239", "'1.239' gives double: 1.239 does not fit.* ROUND or CAST"),
    "beyond single precision": (pa.float32(), "1e300", "1e\\+300 would become inf"),
    "beyond half precision": (pa.float16(), "70000.0", "70000.0 would become inf"),
    "a number that is no truth": (pa.bool_(), "0.5", "0.5 would become True"),
    "a date of a moment": (pa.date32(), "timestamp '2026-01-31 10:00:00'", "would become 2026-01-31"),
}


@pytest.mark.parametrize("kind", INEXACT)
def test_results_that_a_column_does_not_hold_are_refused(tmp_path: Path, kind: str) -> None:
    """The error has the value, and how to round it."""
    arrow, expression, said = INEXACT[kind]
    table = LanceTable.create(tmp_path / "table", pa.schema([("c", arrow)]))
    table.append(pa.table({"c": pa.array([None], arrow)}))
    with pytest.raises(SchemaMismatchError, match=f"column 'c' is .*{said}"):
        table.update({"c": expression})
    assert [None] == table.read()["c"].to_pylist()


def test_results_are_rounded_where_it_is_said(tmp_path: Path) -> None:
    """By the expression, or by the type of a column of floating-point numbers, since Lance has doubles only."""
    cents = pa.decimal128(10, 2)
    rows = pa.table({"round": pa.nulls(1, cents), "cast": pa.nulls(1, cents), "single": pa.nulls(1, pa.float32())})
    table = LanceTable.create(tmp_path / "table", rows.schema)
    table.append(rows)
    table.update({"round": "ROUND(1.239, 2)", "cast": "CAST(1.239 AS DECIMAL(10, 2))", "single": "0.1"})
    (row,) = table.read().to_pylist()
    cent = decimal.Decimal("1.24")
    assert {"round": cent, "cast": cent, "single": pa.scalar(0.1, pa.float32()).as_py()} == row


def test_extension_types_survive(tmp_path: Path) -> None:
    """Rewritten columns keep their extension types."""
    ids: Any = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.uuid4().bytes] * 3, pa.binary(16)))
    table = LanceTable.create(tmp_path / "ids", pa.schema([("id", pa.uuid()), ("my value", pa.int64())]))
    table.append(pa.table({"id": ids, "my value": [1, 2, 3]}))
    table.update({"my value": "`my value` + 1"}, where="`my value` > 1")
    assert pa.uuid() == table.schema().field("id").type
    assert ids.to_pylist() == table.read()["id"].to_pylist()
    assert [1, 3, 4] == table.read()["my value"].to_pylist()


@pytest.mark.parametrize(
    "values,where,said",
    [
        ({"nope": "1"}, None, "no column 'nope'; the table has key, value"),
        ({"value": "'abc'"}, None, "column 'value' is int64, and \"'abc'\" gives string"),
        ({"value": "2.5"}, None, "column 'value' is int64, and '2.5' gives double"),
        ({"value": "[1]"}, None, "column 'value' is int64, and '\\[1\\]' gives list"),
        ({"value": "value +"}, None, "cannot compute 'value' as 'value \\+'"),
        ({"value": ""}, None, "cannot compute 'value' as ''"),
        ({"value": "nofunction(key)"}, None, "cannot compute 'value' as 'nofunction\\(key\\)'"),
        ({"value": "missing"}, None, "cannot compute 'value' as 'missing'"),
        ({"value": "value / 0"}, None, "cannot compute value = value / 0: .*Divide by zero"),
        ({"value": "1"}, "missing = 1", "where 'missing = 1'"),
        ({"value": "1"}, "", "where ''"),
        ({}, None, "an update needs a column"),
        ({"value": 5}, None, "the new value of 'value' is 5; give an SQL expression"),
        ({"_rowid": "5"}, None, "no column '_rowid'"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    tmp_path: Path, values: dict[str, str], where: str | None, said: str
) -> None:
    """The error has the column, the expression and the reason."""
    table = new_table(tmp_path, entries("a", 1, 2))
    files = list(Path(table.uri, "data").iterdir())
    with pytest.raises(InvalidInputError, match=said):
        table.update(values, where=where)
    assert "main@2" == str(table.head())
    assert files == list(Path(table.uri, "data").iterdir())


def test_part_of_a_column_is_refused_by_name(tmp_path: Path) -> None:
    """Pylance refuses it too; the whole column can be updated."""
    schema = pa.schema([("s", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
    table = LanceTable.create(tmp_path / "nested", schema)
    table.append(pa.table({"s": [{"x": 1, "y": 2}]}, schema))
    with pytest.raises(InvalidInputError, match="give all of column 's'"):
        table.update({"s.x": "5"})
    table.update({"s": "named_struct('x', 5, 'y', s.y)"})
    assert [{"x": 5, "y": 2}] == table.read()["s"].to_pylist()


def test_a_null_where_none_may_be_is_refused(tmp_path: Path) -> None:
    """The null may be a literal or a computed value."""
    table = LanceTable.create(tmp_path / "strict", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    table.append(pa.table({"id": [1, 2]}))
    for expression in ("NULL", "nullif(id, 2)"):
        with pytest.raises(SchemaMismatchError, match="has nulls"):
            table.update({"id": expression})
    assert [1, 2] == table.read()["id"].to_pylist()


def _sizes(table: LanceTable, branch: str = "main") -> list[tuple[int, int | None]]:
    """The length of each row's blob."""
    dataset = as_pylance(table, branch)
    dataset.validate()
    # `read_blobs` does not find blobs of older files on a branch.
    rows = dataset.scanner(blob_handling="all_binary").to_table().to_pylist()
    return sorted((row["id"], None if row["blob"] is None else len(row["blob"])) for row in rows)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_move_along(tmp_path: Path, version: Literal["2.1", "2.2"]) -> None:
    """Blobs lie in the data file, in a shared or separate file beside it, or are null; branches can update them too."""
    legacy: pa.Field[Any] = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("blob") if version == "2.2" else legacy])
    values = [b"a", b"b" * 200_000, b"c" * 5_000_000, None, b""]
    blobs = lance.blob_array(values) if version == "2.2" else pa.array(values, pa.large_binary())
    rows = pa.table({"id": range(5), "blob": blobs}, schema)
    lance.write_dataset(rows, str(tmp_path / "blobs"), data_storage_version=version, enable_stable_row_ids=True)
    table = LanceTable.open(tmp_path / "blobs")
    table.update({"id": "id + 10"}, where="id > 0")
    assert [(0, 1), (11, 200_000), (12, 5_000_000), (13, None), (14, 0)] == _sizes(table)
    table.branches.create("run")
    table.upsert(pa.table({"id": [0, 12, 20]}), on=["id"], branch="run")
    assert [(0, 1), (11, 200_000), (12, 5_000_000), (13, None), (14, 0), (20, None)] == _sizes(table, "run")
    table.update({"blob": "X'0102'"}, where="id = 12", branch="run")
    changed = pa.table({"id": [0, 11], "blob": pa.array([b"new", None], pa.large_binary())})
    table.upsert(changed, on=["id"], when_matched="source.id < target.id + 1", branch="run")
    assert [(0, 3), (11, None), (12, 2), (13, None), (14, 0), (20, None)] == _sizes(table, "run")
    assert [(0, 1), (11, 200_000), (12, 5_000_000), (13, None), (14, 0)] == _sizes(table)


_X = pa.struct([("x", pa.int8())])
EVERY_TYPE: list[tuple[Any, list[Any]]] = [
    *((arrow, [1, None, 0]) for arrow in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32())),
    *((arrow, [1, None, 0]) for arrow in (pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64())),
    *((arrow, [1, None, 0]) for arrow in (pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"))),
    *((arrow, [1, None, 0]) for arrow in (pa.duration("us"), pa.timestamp("s"), pa.timestamp("ns", "Europe/Paris"))),
    *((arrow, [decimal.Decimal("1.50"), None, 0]) for arrow in (pa.decimal128(12, 2), pa.decimal256(40, 3))),
    *((arrow, ['{"a": 1}', None, "2"]) for arrow in (pa.string(), pa.large_string(), pa.json_())),
    *((arrow, [b"0" * 16, None, b"1" * 16]) for arrow in (pa.binary(), pa.large_binary(), pa.binary(16), pa.uuid())),
    *((arrow, [[1], None, []]) for arrow in (pa.list_(pa.int8()), pa.large_list(pa.float32()))),
    *((arrow, [[1, 2], None, [3, 4]]) for arrow in (pa.list_(pa.float16(), 2), pa.fixed_shape_tensor(pa.int8(), [2]))),
    (pa.bool_(), [True, None, False]),
    (pa.null(), [None] * 3),
    (pa.dictionary(pa.int16(), pa.string()), ["a", None, "b"]),
    (_X, [{"x": 1}, None, {"x": None}]),
    (pa.list_(_X), [[{"x": 1}], None, []]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, []]),
]


@pytest.mark.parametrize("arrow,values", EVERY_TYPE, ids=lambda value: None if isinstance(value, list) else str(value))
def test_values_of_every_type_are_moved_as_they_are(tmp_path: Path, arrow: Any, values: list[Any]) -> None:  # noqa: ANN401
    """An update of another column, and an upsert without the column, keep its values."""
    column: Any = pa.array(values, arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow)
    if isinstance(arrow, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(arrow, column)
    schema = pa.schema([("id", pa.int64()), ("c", arrow)])
    table = LanceTable.create(tmp_path / "typed", schema)
    table.append(pa.table({"id": [0, 1, 2], "c": column}, schema))
    before = table.read().sort_by("id")
    table.update({"id": "id + 10"}, where="id > 0")
    table.upsert(pa.table({"id": [0, 11]}), on=["id"])
    after = table.read().sort_by("id")
    assert before.schema == after.schema
    assert before["c"].to_pylist() == after["c"].to_pylist()
    as_pylance(table).validate()


def test_rows_of_a_branch_are_updated_and_main_keeps_its_own(tmp_path: Path) -> None:
    """The branch updates rows inherited from main too."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    table.append(entries("b", 4), branch="run")
    version = table.update({"value": "value * 10"}, where="value % 2 = 0", branch="run", message="ten times")
    assert ("run@4", "ten times", "Update") == (str(version), version.message, version.operation)
    assert [("a", 1), ("a", 3), ("a", 20), ("b", 40)] == contents(table, "run")
    assert [("a", 1), ("a", 2), ("a", 3)] == contents(table)
    dataset = as_pylance(table, "run")
    dataset.validate()
    created = dataset.to_table(columns=["value", "_row_created_at_version", "_row_last_updated_at_version"]).to_pylist()
    assert {1: (2, 2), 3: (2, 2), 20: (2, 4), 40: (3, 4)} == {row["value"]: tuple(row.values())[1:] for row in created}
    dataset.update({"value": "0"}, where="value = 40")
    assert [("a", 1), ("a", 3), ("a", 20), ("b", 0)] == contents(table, "run")


MEANWHILE: dict[str, tuple[Callable[[LanceTable], object], list[int]]] = {
    "append": (lambda other: other.append(entries("a", 4)), [0, 1, 3, 4, 12]),
    "delete of another row": (lambda other: other.delete("value = 0"), [1, 3, 12]),
    "delete of the same row": (lambda other: other.delete("value = 2"), [0, 1, 3]),
    "delete of its fragment": (lambda other: other.delete("value >= 2"), [0, 1]),
    "delete of the rest of its fragment": (lambda other: other.delete("value = 3"), [0, 1, 12]),
    "delete of all": (lambda other: other.delete("true"), []),
    "update of another row": (lambda other: other.update({"value": "value + 20"}, where="value = 0"), [1, 3, 12, 20]),
    "update of the same row": (lambda other: other.update({"value": "value + 20"}, where="value = 2"), [0, 1, 3, 22]),
    "update of the same row that stays": (lambda other: other.update({"key": "'b'"}, where="value = 2"), [0, 1, 3, 12]),
    "update by pylance": (lambda other: as_pylance(other).update({"key": "'b'"}, where="value = 2"), [0, 1, 3, 12]),
    "upsert": (lambda other: other.upsert(entries("b", 2, 7), on=["value"]), [0, 1, 3, 7, 12]),
    "compaction": (lambda other: as_pylance(other).optimize.compact_files(), [0, 1, 3, 12]),
    "new column": (lambda other: as_pylance(other).add_columns({"more": "value"}), [0, 1, 3, 12]),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_values_are_computed_again_when_somebody_is_faster(tmp_path: Path, meanwhile: str) -> None:
    """The update is applied to the other writer's version, and no row is lost, duplicated or restored."""
    table = new_table(tmp_path, entries("a", 0, 1), entries("a", 2, 3))
    act, wanted = MEANWHILE[meanwhile]
    version = interrupted(table, lambda: act(LanceTable.open(table.uri))).update(
        {"value": "value + 10"}, where="value = 2"
    )
    rows = as_pylance(table).to_table(columns=["value", "_rowid", "_row_last_updated_at_version"]).to_pylist()
    assert wanted == sorted(row["value"] for row in rows)
    assert len(rows) == len({row["_rowid"] for row in rows})
    # The row versions are those of the commit, not of an earlier attempt.
    assert {version.number} >= {row["_row_last_updated_at_version"] for row in rows if row["value"] == 12}
    as_pylance(table).validate()


def test_a_replaced_table_is_not_updated(tmp_path: Path) -> None:
    """New rows with the same values are not the rows that were to be updated."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(CommitConflictError):
        interrupted(table, lambda: LanceTable.open(table.uri).overwrite(entries("b", 1))).update({"value": "2"})
    assert [("b", 1)] == contents(table)


def test_a_text_without_quotes_is_told(tmp_path: Path) -> None:
    """It is read as a column name; the error lists the columns where they are allowed."""
    orders = pa.table({"id": [1], "status": ["new"]})
    table = LanceTable.create(tmp_path / "t", orders.schema)
    table.append(orders)
    with pytest.raises(InvalidInputError, match="a string is written 'paid'"):
        table.update({"status": "paid"})
    with pytest.raises(InvalidInputError, match="did you mean the column id"):
        table.delete("status = paid")
    with pytest.raises(InvalidInputError, match="a string is written 'c"):
        table.delete("status = cancelled")
