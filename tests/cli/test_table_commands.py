"""`table list`, `create` and `head`, each as a process."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lance_dagster import InvalidInputError, LanceRepository, LanceTable
from lance_dagster.cli.main import main
from lance_dagster.cli.table_commands import parsed_schema
from tests.cli.running import document_of, lines_of, process, run
from tests.conftest import S3Storage
from tests.table_factory import SCHEMA, as_pylance, entries, new_table


def answer(*arguments: str) -> Any:  # noqa: ANN401  # whatever the document is
    """The JSON document that a process prints."""
    done = process("table", *arguments, "--json")
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def test_tables_are_found_below_a_root(tmp_path: Path) -> None:
    """Tables at any depth are listed with branches, rows, newest version and tag; folders below a table are skipped."""
    for folder in ("shop", "shop/daily"):
        (tmp_path / folder).mkdir()
        table = LanceTable.create(tmp_path / folder / "orders", SCHEMA)
        table.append(entries("a", 1))
    (tmp_path / "shop/notes").mkdir()
    run("table", "branch", table.uri, "run/1")
    run("table", "tag", table.uri, "production", "--at", "main@1")
    done = process("table", "list", str(tmp_path))
    assert (0, "") == (done.returncode, done.stderr)
    daily, shop = [line.split() for line in done.stdout.splitlines()]
    assert ["shop/daily/orders", "1", "row", "2", "branches", "main@2"] == daily[:6]
    assert ["shop/orders", "1", "row", "1", "branch", "main@2"] == shop[:6]
    assert (["production:", "main@1"], ["no", "production"]) == (daily[-2:], shop[-2:])
    found = answer("list", str(tmp_path), "--tag", "stable")
    assert [("shop/daily/orders", 1, 2, None), ("shop/orders", 1, 1, None)] == [
        (each["name"], each["rows"], each["branches"], each["tag"]) for each in found
    ]


def test_a_root_may_be_a_table_or_hold_none(tmp_path: Path) -> None:
    """Both cases are no error."""
    table = new_table(tmp_path)
    assert ".  0 rows  1 branch  main@1" == lines_of("table", "list", table.uri)[0][:27]
    (tmp_path / "empty").mkdir()
    assert [f"no tables below {tmp_path}/empty"] == lines_of("table", "list", str(tmp_path / "empty"))
    assert [] == document_of("table", "list", str(tmp_path / "empty"))


def test_a_damaged_table_does_not_hide_others(tmp_path: Path) -> None:
    """The damaged table is listed with the reason."""
    table = new_table(tmp_path, entries("a", 1))
    (tmp_path / "broken/_versions").mkdir(parents=True)
    (tmp_path / "broken/_versions/1.manifest").write_bytes(b"damaged")
    broken, sound = document_of("table", "list", str(tmp_path))
    assert ("broken", True, None) == (broken["name"], bool(broken["problem"]), broken["version"])
    assert (Path(table.uri).name, None, "main@2") == (sound["name"], sound["problem"], sound["version"])
    assert "cannot be read: " in lines_of("table", "list", str(tmp_path))[0]


def test_names_that_the_output_cannot_encode_are_listed(tmp_path: Path) -> None:
    """A character that the encoding lacks becomes an escape; a folder whose name is not UTF-8 holds no table."""
    for name in ("日", "\udcff"):
        (tmp_path / name / "_versions").mkdir(parents=True)
    for encoding, shown in (("latin-1", "\\u65e5"), ("utf-8", "日")):
        done = CliRunner(charset=encoding).invoke(main, ["table", "list", str(tmp_path)])
        assert done.exit_code == 0
        found, unknown = done.stdout.splitlines()
        assert found.startswith(shown)
        assert unknown.startswith("\\udcff")
        assert "cannot be read: no table can be at " in unknown
    for command in (("list",), ("clone", new_table(tmp_path).uri), ("create", "--schema", "a:int8")):
        refused = run("table", *command, str(tmp_path / "\udcff"))
        assert (2, 1) == (refused.exit_code, refused.stderr.count("\n"))
        assert "a name in it is not UTF-8" in refused.stderr


def test_tables_on_s3_are_found(s3_storage: S3Storage) -> None:
    """Prefixes are listed, but not the content of tables."""
    options = [f"--storage-option={key}={value}" for key, value in s3_storage.storage_options.items()]
    for name in ("a/orders", "b"):
        LanceTable.create(f"{s3_storage.uri}/root/{name}", SCHEMA, storage_options=s3_storage.storage_options)
    assert ["a/orders", "b"] == [
        each["name"] for each in document_of("table", "list", f"{s3_storage.uri}/root", *options)
    ]


def test_a_table_is_created_from_columns(tmp_path: Path) -> None:
    """Pylance reads the given columns; an existing table needs `--exist-ok`."""
    uri = str(tmp_path / "orders")
    done = process(
        "table", "create", uri, "--schema", "id:int64 not null, day:string,tags:list<string>,price:decimal(10, 2)"
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert [f"{uri}: main@1", "    id     int64 not null", "    day    string"] == done.stdout.splitlines()[:3]
    schema = as_pylance(LanceTable.open(uri)).schema
    assert (["id", "day", "tags", "price"], False) == (schema.names, schema.field("id").nullable)
    assert 1 == run("table", "create", uri, "--schema", "id:int64").exit_code
    same = answer("create", str(tmp_path / "new"), "--schema", "id:int64", "--exist-ok")
    assert ("main@1", [{"name": "id", "type": "int64", "nullable": True}]) == (same["version"], same["columns"])
    assert same == document_of("table", "create", str(tmp_path / "new"), "--schema", "id:int64", "--exist-ok")


def test_exist_ok_refuses_a_table_with_other_columns(tmp_path: Path) -> None:
    """Otherwise it would be taken for the requested table; all types that can be created compare as equal."""
    columns = "id:int64 not null,tags:list<string>,price:decimal(10, 2),at:timestamp[us, tz=UTC],v:float32[4]"
    for _ in range(2):
        assert 0 == run("table", "create", str(tmp_path / "t"), "--schema", columns, "--exist-ok").exit_code
    refused = run("table", "create", str(tmp_path / "t"), "--schema", "id:int64", "--exist-ok")
    assert (1, True) == (refused.exit_code, "with other columns: id:int64 not null, tags:" in refused.stderr)


@pytest.mark.parametrize(
    "place,said",
    [
        ("lake", "there is a repository at"),
        ("lake/shop", "there is the table orders.lance below it; give the table a folder of its own, such as"),
        ("lake/shop/orders.lance/x/lines.lance", "it is inside the table"),
    ],
    ids=["repository", "around a table", "inside a table"],
)
def test_a_place_with_other_tables_is_refused(tmp_path: Path, place: str, said: str) -> None:
    """Nothing is created where a search would no longer find the tables below, or where the table is part of one."""
    LanceTable.create(tmp_path / "lake" / "shop" / "orders.lance", SCHEMA)
    LanceRepository.create(tmp_path / "lake")
    refused = run("table", "create", str(tmp_path / place), "--schema", "id:int64")
    assert (2, "", 1) == (refused.exit_code, refused.stdout, refused.stderr.count("\n"))
    assert said in refused.stderr
    assert not LanceTable.exists(tmp_path / place)
    assert 0 == run("table", "create", str(tmp_path / "lake/shop/lines.lance"), "--schema", "id:int64").exit_code


def test_a_table_is_created_like_a_file(tmp_path: Path) -> None:
    """The table has the columns of the file, without pandas' metadata."""
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", tz="UTC")}, metadata={"pandas": "{}"})
    pq.write_table(schema.empty_table(), tmp_path / "file.parquet")
    answer("create", str(tmp_path / "orders"), "--like", str(tmp_path / "file.parquet"))
    made = LanceTable.open(tmp_path / "orders").schema()
    assert schema.remove_metadata() == made
    assert not made.metadata


@pytest.mark.parametrize(
    "arguments,said",
    [
        ((), "give --schema NAME:TYPE,... or --like FILE.parquet, one of them"),
        (("--schema", "a:int64", "--like", "x.parquet"), "one of them"),
        (("--schema", "a"), "cannot read column 'a': expected NAME:TYPE, such as id:int64"),
        (("--schema", ""), "cannot read column ''"),
        (("--schema", "a:int64,"), "cannot read column ''"),
        (("--schema", "a:int46"), "cannot read the type 'int46' of column 'a'; did you mean int64?"),
        (("--schema", "a:list<whatever>"), "cannot read the type 'whatever' of column 'a'; expected an Arrow type"),
        (("--schema", "a:decimal(99,2)"), "cannot read the type 'decimal(99,2)' of column 'a'"),
        (("--schema", "a:int64,a:string"), "column 'a' is given twice"),
        (("--like", "nowhere.parquet"), "there is no file nowhere.parquet; --like takes a local Parquet file"),
        (("--like", __file__), "is not a Parquet file: "),
        (("--like", "x" * 300), "is not a Parquet file: "),
        (("--schema", "v:float32[99999999999]"), "column 'v' has a number above 2,147,483,647: '99999999999'"),
        (("--schema", "v:decimal(5,99999999999)"), "column 'v' has a number above 2,147,483,647: '99999999999'"),
        (("--schema", f"a:{'list<' * 2000}int64{'>' * 2000}"), "the type of column 'a' is more than 100 levels deep"),
    ],
)
def test_columns_that_cannot_be_read_are_named(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """The error is one line, and nothing is created."""
    result = run("table", "create", str(tmp_path / "orders"), *arguments)
    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert said in result.stderr
    assert [] == list(tmp_path.iterdir())


def test_types_are_read() -> None:
    """Types are written as Arrow writes them, or in the short form for vectors."""
    text = "v:float32[128],t:timestamp[ms, tz=Europe/Vienna],n:large_list<list<int8 >>,day of week:date32"
    expected = {
        "v": pa.list_(pa.float32(), 128),
        "t": pa.timestamp("ms", tz="Europe/Vienna"),
        "n": pa.large_list(pa.list_(pa.int8())),
        "day of week": pa.date32(),
    }
    assert pa.schema(expected) == parsed_schema(text)


PRINTED: tuple[pa.DataType, ...] = (
    pa.list_(pa.field("item", pa.int64(), nullable=False)),
    pa.list_(pa.list_(pa.struct([pa.field("a", pa.list_(pa.int8(), 4))]))),
    pa.large_list(pa.timestamp("us", "+01:00")),
    pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.struct([pa.field("a", pa.decimal128(5, 2)), pa.field("b", pa.int8())])),
    pa.dictionary(pa.int32(), pa.string()),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.decimal256(50, 2),
    pa.float16(),
    pa.binary(4),
    pa.list_(pa.float32(), 3),
)


@pytest.mark.parametrize("kind", PRINTED, ids=str)
def test_types_are_read_as_they_are_printed(kind: pa.DataType) -> None:
    """The columns that the command prints can be given to `create`."""
    assert pa.schema([pa.field("c", kind), pa.field("d", pa.int64())]) == parsed_schema(f"c:{kind}, d:int64")


@pytest.mark.parametrize(
    "text", ["struct<a>", "map<string>", "dictionary<x>", "extension<x>", "list<>", "fixed_size_list<int8>"]
)
def test_parts_that_cannot_be_read_are_refused(text: str) -> None:
    """The error names the column."""
    with pytest.raises(InvalidInputError, match="of column 'c'"):
        parsed_schema(f"c:{text}")


def test_first_rows_are_shown(tmp_path: Path) -> None:
    """The rows are of any version, with the chosen columns, and the output has the number of all rows."""
    table = new_table(tmp_path, entries("a", *range(12)))
    table.append(entries("b", 1))
    done = process("table", "head", table.uri, "main@2", "--rows", "2", "--columns", "value,key")
    assert (0, "") == (done.returncode, done.stderr)
    assert ["value  key", "0      a", "1      a", "main@2: 2 of 12 rows"] == done.stdout.splitlines()
    found = answer("head", table.uri)
    assert ("main@3", 10, True) == (found["version"], len(found["rows"]), found["more"])
    assert {"key": "a", "value": 0} == found["rows"][0]
    assert not document_of("table", "head", table.uri, "-n", "13")["more"]
    wrong = run("table", "head", table.uri, "-c", "nothing")
    assert (2, 1) == (wrong.exit_code, wrong.stderr.count("\n"))


def test_rows_with_values_that_python_has_no_object_for_are_shown(tmp_path: Path) -> None:
    """The moment is in the year 20237; `show --rows`, `diff --rows` and conflicts read rows the same way."""
    rows = pa.table({"id": [1], "at": pa.array([2**59], pa.timestamp("us"))})
    table = LanceTable.create(tmp_path / "far", rows.schema)
    table.append(rows)
    assert ["id  at", "1   20237-04-25 10:45:03.423488", "main@2: 1 of 1 row"] == lines_of("table", "head", table.uri)
    assert [{"id": 1, "at": "20237-04-25 10:45:03.423488"}] == document_of("table", "head", table.uri)["rows"]


def test_an_empty_table_shows_its_columns(tmp_path: Path) -> None:
    """The output has the columns and says that there are no rows."""
    assert ["key  value", "main@1: 0 of 0 rows"] == lines_of("table", "head", new_table(tmp_path).uri)
