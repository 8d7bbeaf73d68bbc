"""Columns of every type: pylance reads tables of the package, and the package appends to tables of pylance."""

import datetime as dt
import decimal
import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.arrow import BFloat16Type

from lance_dagster import LanceTable, Transaction, operations
from lance_dagster.errors import InvalidInputError, SchemaMismatchError
from lance_dagster.format.codec import decode_manifest_file
from lance_dagster.format.file_versions import check_storable
from lance_dagster.format.schema import fields_from_arrow, stored_field_ids
from tests.format.histories import files

PACKED = {"lance-encoding:packed": "true"}
_MOMENT = dt.datetime(2020, 2, 29, 12, tzinfo=dt.UTC)
_POINT = pa.struct([("x", pa.int32()), ("y", pa.float32())])
VALUES: dict[str, tuple["pa.Field[Any]", list[Any]]] = {
    name: (pa.field("c", arrow), [value, None, value])
    for name, arrow, value in (
        ("null", pa.null(), None),
        ("bool", pa.bool_(), True),
        ("int8", pa.int8(), -5),
        ("uint64", pa.uint64(), 2**64 - 1),
        ("float16", pa.float16(), np.float16(1.5)),
        ("double", pa.float64(), 0.1),
        ("string", pa.string(), "ä\0b"),
        ("large_string", pa.large_string(), ""),
        ("binary", pa.binary(), b"\xff\0"),
        ("large_binary", pa.large_binary(), b""),
        ("fixed binary", pa.binary(3), b"abc"),
        ("date32", pa.date32(), _MOMENT.date()),
        ("date64", pa.date64(), _MOMENT.date()),
        ("timestamp", pa.timestamp("us"), _MOMENT.replace(tzinfo=None)),
        ("timestamp of a city", pa.timestamp("us", "Europe/Berlin"), _MOMENT),
        ("timestamp of an offset", pa.timestamp("ms", "+05:30"), _MOMENT),
        ("time32", pa.time32("s"), dt.time(1, 2, 3)),
        ("time64", pa.time64("us"), dt.time(1, 2, 3, 4)),
        ("duration", pa.duration("ms"), dt.timedelta(seconds=5)),
        ("decimal128", pa.decimal128(38, 10), decimal.Decimal("-1.5")),
        ("decimal256", pa.decimal256(60, 3), decimal.Decimal("1.125")),
        ("dictionary", pa.dictionary(pa.int8(), pa.string()), "a"),
        ("vector", pa.list_(pa.float32(), 3), [1.0, 2.0, 3.0]),
        ("vector of bool", pa.list_(pa.bool_(), 2), [True, False]),
        ("vector of vectors", pa.list_(pa.list_(pa.int8(), 2), 2), [[1, 2], [3, 4]]),
        ("list", pa.list_(pa.string()), ["a", None]),
        ("large list", pa.large_list(pa.int8()), []),
        ("list of structs", pa.list_(_POINT), [{"x": 1, "y": None}, {"x": None, "y": 2.0}]),
        ("list of vectors", pa.list_(pa.list_(pa.int8(), 2)), [[1, 2]]),
        ("list of dictionaries", pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a", "b"]),
        ("struct", pa.struct([("s", _POINT), ("n", pa.null())]), {"s": {"x": 1, "y": 2.0}, "n": None}),
        ("map", pa.map_(pa.string(), pa.list_(pa.int8())), [("a", [1]), ("b", None)]),
    )
} | {
    "packed": (pa.field("c", _POINT, metadata=PACKED), [{"x": 1, "y": 2.0}] * 3),
    "packed strings": (
        pa.field("c", pa.struct([("x", pa.int32()), ("s", pa.string())]), metadata={"packed": "TRUE"}),
        [{"x": 1, "s": "a"}] * 3,
    ),
    "packed in a list": (
        pa.field("c", pa.list_(pa.field("item", _POINT, metadata=PACKED))),
        [[{"x": 1, "y": 2.0}]] * 3,
    ),
}
_UUID = uuid.UUID(int=5).bytes
STORED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "uuid": (pa.uuid(), [_UUID, None, _UUID]),
    "json": (pa.json_(), ['{"a":1}', None, "[2]"]),
    "bool8": (pa.bool8(), [1, None, 0]),
    "tensor": (pa.fixed_shape_tensor(pa.int8(), [2, 2]), [[1, 2, 3, 4], None, [5, 6, 7, 8]]),
    "opaque": (pa.opaque(pa.int8(), "x", "v"), [1, None, 3]),
    "bfloat16": (BFloat16Type(), [b"\x00\x3f", None, b"\x01\x3f"]),
}


def _rows(column: "pa.Field[Any]", values: "list[Any] | pa.Array[Any]") -> pa.Table:
    """Rows of a number, a column and a text, so that a missing or surplus column is noticed."""
    middle = values if isinstance(values, pa.Array) else pa.array(values, column.type)
    schema = pa.schema([pa.field("first", pa.int64()), column, pa.field("last", pa.string())])
    return pa.table([pa.array(range(3)), middle, pa.array(["x", "y", "z"])], schema=schema)


def _extended(kind: str) -> pa.Table:
    arrow: Any
    arrow, values = STORED[kind]
    array = pa.ExtensionArray.from_storage(arrow, pa.array(values, arrow.storage_type))
    return _rows(pa.field("c", arrow), array)


def _all() -> dict[str, pa.Table]:
    return {name: _rows(*found) for name, found in VALUES.items()} | {name: _extended(name) for name in STORED}


EVERY = pytest.mark.parametrize("rows", _all().values(), ids=_all().keys())


@EVERY
def test_columns_of_every_type_are_those_of_pylance(tmp_path: Path, rows: pa.Table) -> None:
    """A table of the package has the schema, file columns and rows of pylance's, and both can append to it."""
    table = LanceTable.create(tmp_path / "package", rows.schema)
    table.append(rows)
    dataset = lance.dataset(table.uri)
    dataset.validate()
    expected = lance.write_dataset(rows, str(tmp_path / "pylance"))
    assert expected.schema == dataset.schema == table.schema()
    assert expected.to_table() == dataset.to_table() == table.read()
    assert expected.to_table(columns=["last"]) == table.read(columns=["last"])
    (found_fragment,), (expected_fragment,) = (one.get_fragments() for one in (dataset, expected))
    assert expected_fragment.metadata.files[0].fields == found_fragment.metadata.files[0].fields
    dataset.insert(rows)
    table.append(table.read("main@2"))
    assert 9 == table.count_rows() == table.read().num_rows


@EVERY
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_column_of_pylances_is_appended_to(tmp_path: Path, rows: pa.Table, version: Any) -> None:  # noqa: ANN401
    """The package appends in each file version that can hold the column; pylance and `check_storable` refuse others."""
    uri = str(tmp_path / "pylance")
    fields = fields_from_arrow(rows.schema)
    if version == "2.0":
        # Files of this version cannot hold a null struct.
        rows = rows.slice(0, 1)
    try:
        check_storable(fields, version)
    except InvalidInputError:
        with pytest.raises((OSError, NotImplementedError)):
            lance.write_dataset(rows, uri, data_storage_version=version)
        return
    lance.write_dataset(rows, uri, data_storage_version=version)
    table = LanceTable.open(uri)
    (path,) = files(tmp_path, "*.manifest")
    manifest, _ = decode_manifest_file(path.read_bytes(), "m")
    major, minor = version.split(".")
    assert manifest.fragments[0].files[0].fields == stored_field_ids(manifest.fields, (int(major), int(minor)))
    table.append(rows)
    dataset = lance.dataset(uri)
    dataset.validate()
    assert dataset.schema == table.schema()
    assert pa.concat_tables([rows, rows]).to_pylist() == dataset.to_table().to_pylist() == table.read().to_pylist()


UNSTORABLE: dict[str, tuple[pa.DataType, Any]] = {
    "a vector of structs": (pa.list_(_POINT, 2), [{"x": 1, "y": 2.0}] * 2),
    "a vector of strings": (pa.list_(pa.string(), 2), ["a", "b"]),
    "a vector of dictionaries": (pa.list_(pa.dictionary(pa.int8(), pa.string()), 1), ["a"]),
    "a list of structs without fields": (pa.list_(pa.struct([])), [{}]),
}


def test_a_struct_without_fields_is_refused(tmp_path: Path) -> None:
    """When pylance writes such a struct, the values of the columns after it become unreadable without an error."""
    rows = _rows(pa.field("c", pa.struct([])), [{}] * 3)
    dataset = lance.write_dataset(rows, str(tmp_path / "pylance"))
    assert [None] * 3 == dataset.to_table()["last"].to_pylist()
    with pytest.raises(InvalidInputError):
        LanceTable.create(tmp_path / "package", rows.schema)


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_what_pylance_cannot_store_is_refused_before_there_is_a_table(tmp_path: Path, kind: str) -> None:
    """Pylance accepts the schema, and then fails or crashes when rows are written or read."""
    arrow, value = UNSTORABLE[kind]
    rows = _rows(pa.field("c", arrow), [value] * 3)
    crash: Any = BaseException
    with pytest.raises(crash, match=r"(?s).+") as caught:
        lance.write_dataset(rows, str(tmp_path / "pylance")).to_table()
    assert type(caught.value).__name__ in {"OSError", "ArrowInvalid", "PanicException", "NotImplementedError"}
    with pytest.raises(InvalidInputError):
        LanceTable.create(tmp_path / "package", rows.schema)
    assert not LanceTable.exists(tmp_path / "package")
    table = LanceTable.create(tmp_path / "other", pa.schema([("x", pa.int8())]))
    with pytest.raises(InvalidInputError):
        table.overwrite(rows)


@pytest.mark.parametrize(
    "column,said",
    [
        (pa.field("c", _POINT, metadata={"lance-encoding:packed": "1"}), "whose metadata says 'true'"),
        (pa.field("c", pa.struct([("x", pa.bool_())]), metadata=PACKED), "a packed struct cannot hold bool"),
        (pa.field("c", pa.struct([("x", _POINT)]), metadata=PACKED), "a packed struct cannot hold struct"),
        (pa.field("c", pa.dictionary(pa.int8(), pa.binary(3))), "cannot store dictionaries of fixed_size_binary"),
    ],
)
def test_other_columns_pylance_cannot_store_are_refused(tmp_path: Path, column: "pa.Field[Any]", said: str) -> None:
    """These are packed structs of anything but plain values, and dictionaries whose name cannot be read back."""
    with pytest.raises(InvalidInputError, match=said):
        LanceTable.create(tmp_path / "t", pa.schema([column]))


def _read(dataset: lance.LanceDataset, count: int) -> list[bytes]:
    """The first blobs of a table."""
    found = dataset.take_blobs("c", indices=list(range(count)))
    return [b"" if blob is None else blob.read() for blob in found]


def test_blobs_in_files_of_their_own(tmp_path: Path) -> None:
    """Pylance reads small, packed and large blobs on a branch and after its merge."""
    schema = pa.schema([pa.field("first", pa.int64()), lance.blob_field("c")])
    table = LanceTable.create(tmp_path / "t", schema)

    def rows(*values: bytes) -> pa.Table:
        return pa.table([pa.array(range(len(values))), lance.blob_array(list(values))], schema=schema)

    def contents(branch: str = "main") -> list[bytes]:
        dataset = lance.dataset(table.uri)
        at = dataset if branch == "main" else dataset.checkout_version((branch, None))
        return _read(at, at.count_rows())

    first = [b"small", b"m" * 100_000, b"l" * 5_000_000]
    table.append(rows(*first))
    table.branches.create("run")
    table.append(rows(b"q" * 200_000), branch="run")
    assert [*first, b"q" * 200_000] == contents("run")
    table.merge("run")
    table.branches.delete("run")
    plain = pa.table({"first": [9], "c": pa.array([b"plain"], pa.binary())})
    table.append(plain)
    assert [*first, b"q" * 200_000, b"plain"] == contents()
    lance.dataset(table.uri).validate()


def test_blobs_of_a_table_pylance_made(tmp_path: Path) -> None:
    """A blob column of the older kind, made by pylance, takes bytes and described blobs."""
    schema = pa.schema([pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table([pa.array([b"a"], pa.large_binary())], schema=schema), uri)
    table = LanceTable.open(uri)
    table.append(pa.table([pa.array([b"b"], pa.large_binary())], schema=schema))
    table.append(pa.table([lance.blob_array([b"c", None])], schema=pa.schema([lance.blob_field("c")])))
    dataset = lance.dataset(uri)
    assert [b"a", b"b", b"c"] == _read(dataset, 3)
    assert dataset.to_table().to_pylist()[3] == {"c": None}
    with pytest.raises(SchemaMismatchError):
        table.append(pa.table({"c": ["x"]}))


@pytest.mark.parametrize("values", [pa.array(["x", "y"]), pa.array(["x", "y"], pa.string_view())], ids=["str", "view"])
@pytest.mark.parametrize("nested", [False, True], ids=["column", "field"])
def test_dictionaries_that_are_stored_in_another_type(tmp_path: Path, values: Any, *, nested: bool) -> None:  # noqa: ANN401
    """A table takes rows of the schema it was made with; the format has no ordered dictionaries and no views."""
    given: Any = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), values, ordered=True)
    column = pa.StructArray.from_arrays([given], ["p"]) if nested else given
    rows = pa.table({"id": [1, 2, 3], "c": column})
    table = LanceTable.create(tmp_path / "t", rows.schema)
    table.append(rows)
    table.upsert(rows, on=["id"])
    table.columns.add(rows.rename_columns(["id", "d"]), on=["id"])
    assert [{**row, "d": row["c"]} for row in rows.to_pylist()] == lance.dataset(table.uri).to_table().to_pylist()
    table.overwrite(rows)
    assert rows.to_pylist() == lance.dataset(table.uri).to_table().to_pylist()


MARKED = pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_the_older_kind_of_blobs(tmp_path: Path, version: Any) -> None:  # noqa: ANN401  # the stubs want literals
    """The package keeps blob columns of the older kind in tables of older files."""
    rows = pa.table([pa.array([b"a", b"b" * 70_000], pa.large_binary())], schema=pa.schema([MARKED]))
    lance.write_dataset(rows.slice(0, 0), str(tmp_path / "t"), data_storage_version=version)
    table = LanceTable.open(tmp_path / "t")
    table.append(rows)
    dataset = lance.dataset(table.uri)
    assert [b"a", b"b" * 70_000] == _read(dataset, 2)
    table.columns.add(MARKED.with_name("added"))


@pytest.mark.parametrize("column", [MARKED, pa.field("c", pa.struct([MARKED]))], ids=["column", "field"])
def test_the_older_kind_of_blobs_is_refused_in_newer_files(tmp_path: Path, column: "pa.Field[Any]") -> None:
    """Pylance makes such a column one of the newer kind, and could read no row once both wrote to the table."""
    with pytest.raises(InvalidInputError):
        LanceTable.create(tmp_path / "t", pa.schema([column]))
    assert not LanceTable.exists(tmp_path / "t")
    table = LanceTable.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidInputError):
        table.columns.add(column)
    with pytest.raises(InvalidInputError):
        table.overwrite(pa.schema([column]).empty_table())


def test_rows_of_the_older_kind_of_blobs_fit_the_newer_one(tmp_path: Path) -> None:
    """They are read from `main` and from a branch, and after pylance appended such rows and the table was compacted."""
    rows = pa.table([pa.array([b"a"], pa.large_binary())], schema=pa.schema([MARKED]))
    table = LanceTable.create(tmp_path / "t", pa.schema([lance.blob_field("c")]))
    table.append(rows)
    table.branches.create("run")
    table.append(rows, branch="run")
    lance.write_dataset(rows, table.uri, mode="append")
    for count in (2, 2):
        assert [b"a"] * count == _read(lance.dataset(table.uri).checkout_version(("run", None)), count)
        assert [b"a"] * count == _read(lance.dataset(table.uri), count)
        table.maintenance.compact()
        table.maintenance.compact(branch="run")


def of_an_earlier_release(uri: Path, schema: pa.Schema) -> LanceTable:
    """A table with files of version 2.2 and columns that are refused now."""
    table = LanceTable.create(uri, pa.schema([("id", pa.int64())]))
    operation = operations.Overwrite(fragments=(), fields=fields_from_arrow(schema))
    table.commit(Transaction(read_version=1, uuid=str(uuid.uuid4()), operation=operation))
    return table


def test_blobs_of_the_older_kind_in_newer_files_stay_readable(tmp_path: Path) -> None:
    """A compaction or blobs of the newer kind would mix both kinds in one table, and pylance could read neither."""
    table = of_an_earlier_release(tmp_path / "t", pa.schema([MARKED]))
    for value in (b"a", b"b"):
        table.append(pa.table([pa.array([value], pa.large_binary())], schema=pa.schema([MARKED])))
    with pytest.raises(InvalidInputError):
        table.maintenance.compact()
    with pytest.raises(InvalidInputError):
        table.columns.add(lance.blob_field("new"))
    assert [b"a", b"b"] == _read(lance.dataset(table.uri), 2)
    copy = LanceTable.create(tmp_path / "copy", pa.schema([lance.blob_field("c")]))
    copy.append(table.to_lance().to_table(blob_handling="all_binary"))
    copy.maintenance.compact()
    assert [b"a", b"b"] == _read(lance.dataset(copy.uri), 2)
    both = of_an_earlier_release(tmp_path / "both", pa.schema([MARKED, lance.blob_field("new")]))
    with pytest.raises(InvalidInputError):
        both.append(pa.table({name: pa.array([b"a"], pa.large_binary()) for name in ("c", "new")}))


def _with_field_ids(number: str) -> pa.Schema:
    """A column of two structs and a leaf with metadata each, as Spark and writers of Parquet give them field ids."""
    marked = {"PARQUET:field_id": number}
    inner = pa.field("c", pa.struct([pa.field("d", pa.int64(), metadata=marked), ("e", pa.string())]), metadata=marked)
    outer = pa.struct([pa.field("a", pa.int64()), inner])
    return pa.schema([pa.field("id", pa.int64()), pa.field("s", outer, metadata=marked)])


def test_field_ids_of_parquet_do_not_stop_filters(tmp_path: Path) -> None:
    """Pylance cannot filter rows where a struct inside of a struct has metadata, so a new table leaves it out."""
    rows = pa.Table.from_pylist([{"id": at, "s": {"a": at, "c": {"d": at, "e": "x"}}} for at in (1, 2)])
    own = LanceTable.create(tmp_path / "own", _with_field_ids("4"))
    own.append(rows.cast(_with_field_ids("4")))
    own.overwrite(rows.cast(_with_field_ids("5")).append_column("more", pa.array([1, 2])))
    own.columns.add(_with_field_ids("6").field("s").with_name("added"))
    assert 1 == lance.dataset(own.uri).to_table(filter="id = 1").num_rows
    column = own.schema().field("s")
    described = [column.metadata, column.type.field("c").metadata, column.type.field("c").type.field("d").metadata]
    assert [{b"PARQUET:field_id": b"5"}, None, {b"PARQUET:field_id": b"5"}] == described
    with pytest.raises(InvalidInputError):
        own.columns.set_metadata("s.c", {"unit": "m"})
    own.columns.add(pa.field("pairs", pa.map_(pa.string(), pa.struct([("d", pa.int64()), ("e", pa.string())]))))
    own.columns.set_metadata("pairs.entries.value", {"unit": "m"})
    assert 1 == lance.dataset(own.uri).to_table(filter="id = 1").num_rows


def test_a_table_of_pylance_with_such_metadata_is_read_and_mended(tmp_path: Path) -> None:
    """The package reads it in another way, and takes the metadata out on request."""
    schema = _with_field_ids("4")
    rows = pa.Table.from_pylist([{"id": at, "s": {"a": at, "c": {"d": at, "e": "x"}}} for at in (1, 2)], schema)
    lance.write_dataset(rows, tmp_path / "table")
    table = LanceTable.open(tmp_path / "table")
    table.update({"id": "7"}, where="id = 1")
    assert 1 == table.read(filter="id = 7").num_rows
    table.columns.set_metadata("s.c", {"PARQUET:field_id": None})
    assert 1 == lance.dataset(table.uri).to_table(filter="id = 7").num_rows
