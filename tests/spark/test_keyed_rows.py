import math

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_dagster import delete_keys, upsert_batches, upsert_frame, write_table
from lance_dagster.datafiles import RowFilter, RowScope, RowTally
from lance_dagster.errors import CommitConflictError, InvalidInputError, SchemaMismatchError
from lance_dagster.spark.keyed_rows import KeyedWrite, UpsertOptions, stage_upsert, stage_upsert_counted
from lance_dagster.table import LanceTable
from tests.spark.samples import schema_of

pytestmark = pytest.mark.slow

SCHEMA = schema_of(id=pa.int64(), region=pa.string(), x=pa.int32(), note=pa.string())


@pytest.fixture
def table(tmp_table_uri: str) -> LanceTable:
    """A table of six rows in two fragments, with stable row ids."""
    made = LanceTable.create(tmp_table_uri, SCHEMA)
    for start in (0, 3):
        ids = range(start, start + 3)
        rows = [{"id": n, "region": "eu" if n % 2 else "us", "x": n, "note": f"n{n}"} for n in ids]
        made.append(pa.Table.from_pylist(rows, SCHEMA))
    return made


def found(table: LanceTable) -> list[tuple[object, ...]]:
    """The rows of `main` in order."""
    rows = table.read().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


def on_arrow(table: LanceTable, rows: pa.Table, on: list[str], **rules: str) -> list[tuple[object, ...]]:
    """The rows after the same call of `LanceTable.upsert` on a branch."""
    table.branches.create("arrow")
    table.upsert(rows, on=on, branch="arrow", **rules)  # type: ignore[arg-type]
    expected = sorted((tuple(row.values()) for row in table.read("arrow").to_pylist()), key=str)
    table.branches.delete("arrow")
    return expected


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"when_matched": "keep"},
        {"when_not_matched": "ignore"},
        {"when_missing": "delete"},
        {"when_missing": "delete", "missing_where": "region = 'eu'"},
    ],
    ids=str,
)
@pytest.mark.parametrize("on", [["id"], ["id", "region"]], ids=str)
def test_an_upsert_by_spark_is_the_one_of_the_table(
    spark: SparkSession, table: LanceTable, rules: dict[str, str], on: list[str]
) -> None:
    """Rows with a null key are inserted, omitted columns keep their values, and there is one commit."""
    query = """SELECT * FROM VALUES (1L, 'eu', 10), (2L, 'eu', 20), (4L, 'us', 40), (7L, 'eu', 70), (null, 'eu', 80),
        (null, 'eu', 81) AS v(id, region, x)"""
    frame = spark.sql(query).repartition(3)
    rows = frame.toArrow()
    expected = on_arrow(table, rows, on, **rules)
    before = table.head().number
    result = upsert_frame(frame, table, on, **rules)  # type: ignore[arg-type]
    assert expected == found(table)
    assert before + 1 == table.head().number
    assert result.rows_added == (0 if rules.get("when_not_matched") else len(rows) - (3 if on == ["id"] else 2))
    assert table.maintenance.verify().ok


def test_an_unknown_column_is_told_beside_all_of_the_table(spark: SparkSession, table: LanceTable) -> None:
    """Columns that the frame leaves out are among them."""
    with pytest.raises(SchemaMismatchError, match="columns are id, region, x, note"):
        upsert_frame(spark.sql("SELECT 1L AS id, 2L AS x, 3L AS more"), table, ["id"])


def test_an_upsert_keeps_row_ids_and_takes_any_order_of_columns(spark: SparkSession, table: LanceTable) -> None:
    """An updated row keeps its id, so a diff shows it as changed and not as replaced."""
    before = table.head()
    upsert_frame(
        spark.range(1, 9).selectExpr("'new' AS note", "id", "'us' AS region", "cast(id AS int) AS x"), table, ["id"]
    )
    counts = table.diff(before, "main").stat()
    assert (3, 0, 5) == (counts.added, counts.removed, counts.changed)


def test_keys_are_deleted(spark: SparkSession, table: LanceTable) -> None:
    """Missing and repeated keys are no errors."""
    frame = spark.sql("SELECT * FROM VALUES (1L), (1L), (5L), (99L), (null) AS v(id)")
    assert 2 == delete_keys(frame.repartition(3), table, ["id"]).rows_deleted
    assert [0, 2, 3, 4] == [row[0] for row in found(table)]
    head = str(table.head())
    assert head == str(delete_keys(frame, table, ["id"]))


def test_names_that_differ_in_case_only(spark: SparkSession, tmp_table_uri: str) -> None:
    """Spark takes one for the other when a column is named."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), ID=pa.int64()))
    table.append(pa.table({"id": [1, 2, 3], "ID": [10, 20, 30]}))
    frame = spark.sql("SELECT * FROM VALUES (1L, 5L), (2L, 6L) AS v(id, x)").toDF("id", "ID")
    assert 2 == upsert_frame(frame, table, ["id"]).rows_updated
    assert [(1, 5), (2, 6), (3, 30)] == found(table)
    assert 1 == delete_keys(frame.limit(1), table, ["ID"]).rows_deleted
    assert [(2, 6), (3, 30)] == found(table)


def test_keys_are_compared_by_their_bytes_whatever_their_collation(spark: SparkSession, tmp_table_uri: str) -> None:
    """Tables have no collations, so `a` and `A` are two keys."""
    table = LanceTable.create(tmp_table_uri, schema_of(key=pa.string(), x=pa.int32()))
    table.append(pa.table({"key": ["a", "A"], "x": pa.array([1, 2], pa.int32())}))
    frame = spark.sql("SELECT key COLLATE UTF8_LCASE AS key, x FROM VALUES ('a', 3), ('A', 4), ('b', 5) AS v(key, x)")
    assert 2 == upsert_frame(frame, table, ["key"]).rows_updated
    assert [("A", 4), ("a", 3), ("b", 5)] == found(table)
    assert 3 == delete_keys(frame, table, ["key"]).rows_deleted


def test_keys_that_come_twice_are_refused(spark: SparkSession, table: LanceTable) -> None:
    """The keys may be in different partitions, and their rows inserted or updated."""
    for key in (1, 50):
        keys = spark.createDataFrame([(key,), (7,), (key,)], "id long")
        frame = keys.selectExpr("id", "'eu' AS region", "1 AS x", "'a' AS note")
        with pytest.raises(InvalidInputError, match=f"two of the rows have the key id = {key}; each key may come once"):
            upsert_frame(frame.repartition(3), table, ["id"])
    assert 6 == table.count_rows()


def test_what_makes_no_sense_is_refused_before_any_job(spark: SparkSession, table: LanceTable) -> None:
    """The error names what is wrong."""
    frame = spark.range(1)
    for on, rules, kind, said in [
        (["idd"], {}, InvalidInputError, "no column 'idd' to be a key"),
        (["region"], {}, SchemaMismatchError, "column 'region' is the key, and missing"),
        ([], {}, InvalidInputError, "an upsert needs key columns"),
        (
            ["id"],
            {"when_match": "keep"},
            InvalidInputError,
            "unknown option of stage_upsert 'when_match'; did you",
        ),
        (["id"], {"when_missing": "delet"}, InvalidInputError, "unknown value of when_missing 'delet'; did you mean"),
        (["id"], {"missing_where": "x = 1"}, InvalidInputError, "give both"),
    ]:
        with pytest.raises(kind, match=said):
            upsert_frame(frame, table, on, **rules)  # type: ignore[arg-type]


def test_a_staged_upsert_conflicts_with_another_change_of_its_rows(spark: SparkSession, table: LanceTable) -> None:
    """The rows are matched with one version; `upsert_frame` matches them again after a conflict."""
    frame = spark.sql("SELECT 1L AS id, 'eu' AS region, 5 AS x, 'a' AS note")
    staged = stage_upsert(frame, table, ["id"])
    table.update({"x": "x + 100"}, where="id = 1")
    with pytest.raises(CommitConflictError):
        table.upsert(staged, on=["id"])
    upsert_frame(frame, table, ["id"])
    assert [5] == [row[2] for row in found(table) if row[0] == 1]
    # A change of another row is no conflict.
    staged = stage_upsert(frame, table, ["id"])
    table.append(pa.Table.from_pylist([{"id": 200, "region": "eu", "x": 1, "note": "z"}], SCHEMA))
    table.upsert(staged, on=["id"])
    assert 7 == table.count_rows()


def test_many_inserted_keys_are_claimed_as_a_range(spark: SparkSession, table: LanceTable) -> None:
    """If two writers insert one key, the second conflicts."""
    frame = spark.range(1000, 3000).selectExpr("id", "'eu' AS region", "1 AS x", "'a' AS note")
    first, second = (stage_upsert(part, table, ["id"]) for part in (frame, frame.where("id = 2500")))
    table.upsert(first, on=["id"])
    with pytest.raises(CommitConflictError):
        table.upsert(second, on=["id"])
    assert 2006 == table.count_rows()


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_floating_point_keys_are_compared_as_the_table_compares_them(
    spark: SparkSession, tmp_table_uri: str, kind: pa.DataType
) -> None:
    """NaN equals NaN, and 0.0 and -0.0 are two keys, in the frame and in the table."""
    table = LanceTable.create(tmp_table_uri, schema_of(key=kind, note=pa.string()))
    keys = pa.array([math.nan, 0.0, 1.5, None], kind)
    table.append(pa.table({"key": keys, "note": ["nan", "zero", "one", "null"]}))
    name = "float" if kind == pa.float32() else "double"
    given = [(math.nan, "a"), (-0.0, "b"), (0.0, "c"), (1.25, "d"), (None, "e")]
    frame = spark.createDataFrame(given, f"key {name}, note string")
    expected = on_arrow(table, frame.toArrow(), ["key"])
    upsert_frame(frame, table, ["key"])
    # They are compared as text, because NaN does not equal NaN in Python.
    assert str(expected) == str(found(table))
    assert ["a", "b", "c", "d", "e", "null", "one"] == sorted(str(row[1]) for row in found(table))
    with pytest.raises(InvalidInputError, match="two of the rows have the key key = nan"):
        upsert_frame(spark.createDataFrame(given[:1] * 2, frame.schema), table, ["key"])


@pytest.mark.parametrize("kind", [pa.float64(), pa.dictionary(pa.int32(), pa.float64())], ids=str)
@pytest.mark.parametrize("zero", ["-0.0", "0.0"])
def test_the_rows_of_the_other_zero_stay(spark: SparkSession, tmp_table_uri: str, kind: pa.DataType, zero: str) -> None:
    """This holds for a frame of one row, which is a constant to Spark, and for repeated keys."""
    table = LanceTable.create(tmp_table_uri, schema_of(key=kind, note=pa.string()))
    keys = pa.array([0.0, -0.0, 1.0])
    column = keys if kind == keys.type else keys.dictionary_encode()
    table.append(pa.table({"key": column, "note": ["0.0", "-0.0", "1.0"]}, table.schema()))
    upsert_frame(spark.sql(f"SELECT double('{zero}') AS key, 'new' AS note"), table, ["key"])
    assert {"0.0": "0.0", "-0.0": "-0.0", "1.0": "1.0"} | {zero: "new"} == {
        str(row["key"]): row["note"] for row in table.read().to_pylist()
    }
    keys_twice = spark.createDataFrame([(float(zero),), (5.0,), (float(zero),)], "key double")
    assert 1 == delete_keys(keys_twice, table, ["key"]).rows_deleted
    assert {"0.0", "-0.0", "1.0"} - {zero} == {str(row["key"]) for row in table.read().to_pylist()}


@pytest.mark.parametrize(
    "kind,key",
    [
        (pa.list_(pa.int64()), "array(id)"),
        (pa.float16(), "float(id)"),
        (pa.timestamp("ns", "UTC"), "timestamp_micros(id)"),
    ],
    ids=str,
)
def test_keys_that_spark_cannot_compare_are_refused(
    spark: SparkSession, tmp_table_uri: str, kind: pa.DataType, key: str
) -> None:
    """The error is raised before any job, and says which types are possible."""
    table = LanceTable.create(tmp_table_uri, schema_of(key=kind))
    with pytest.raises(InvalidInputError, match="columns of single values"):
        upsert_frame(spark.range(1).selectExpr(f"{key} AS key"), table, ["key"])


@pytest.mark.parametrize(
    "kind,value",
    [
        (pa.timestamp("ns"), 1001),
        (pa.struct([pa.field("d", pa.list_(pa.duration("ns")))]), {"d": [1001]}),
        (pa.decimal256(60, 0), 10**50),
    ],
    ids=str,
)
def test_values_that_spark_cannot_keep_are_not_changed(
    spark: SparkSession, tmp_table_uri: str, kind: pa.DataType, value: object
) -> None:
    """An upsert without the column is refused and names what keeps it; a deletion writes no row and needs no value."""
    table = LanceTable.create(tmp_table_uri, schema_of(id=pa.int64(), note=pa.string(), kept=kind))
    table.append(pa.table({"id": [1, 2], "note": ["a", "b"], "kept": pa.array([value] * 2, kind)}))
    frame = spark.sql("SELECT 1L AS id, 'new' AS note")
    with pytest.raises(InvalidInputError, match=r"LanceTable\.upsert"):
        upsert_frame(frame, table, ["id"])
    table.upsert(frame.toArrow(), on=["id"])
    assert 1 == delete_keys(spark.sql("SELECT 2L AS id"), table, ["id"]).rows_deleted
    upsert_frame(frame, table, ["id"], when_matched="keep")
    (row,) = table.read().to_pylist()
    assert "new" == row["note"]
    assert pa.array([value], kind) == table.read().column("kept").combine_chunks()


def test_missing_rows_are_deleted_by_the_columns_that_the_commit_has(spark: SparkSession, table: LanceTable) -> None:
    """The predicate uses values of the later types; an added column has no values, so it matches no row."""
    later = schema_of(id=pa.int64(), region=pa.string(), x=pa.float64(), note=pa.string(), more=pa.int64())
    frame = spark.sql("SELECT 5L AS id, 'eu' AS region, 4.5D AS x, 'new' AS note, 1L AS more")
    for condition, column, expected in [("x > 1.5", "x", [2, 1 << 32, (1 << 32) + 1]), ("more > 0", "more", [])]:
        within = RowFilter(predicate=condition, expression=None, columns=(column,))
        rules: UpsertOptions = {"when_missing": "delete", "missing_where": condition}
        write = KeyedWrite(table=table, branch="main", on=["id"], rules=rules, schema=later)
        staged = stage_upsert_counted(frame, write, RowTally(RowScope(within=within)))
        # These are the third row of the first fragment, and the first two of the second one.
        assert expected == sorted(staged.missing.tolist())
        assert 1 == len(staged.addresses) == staged.updated.rows


def test_commits_of_spark_keep_a_message_and_properties(spark: SparkSession, table: LanceTable) -> None:
    """The arguments are those of the table's own methods."""
    frame = spark.createDataFrame([(7, "eu", 7, "n7")], "id long, region string, x int, note string")
    write_table(frame, table.uri, "append", message="added", properties={"ticket": "1"})
    upsert_frame(frame, table, ["id"], message="changed", properties={"ticket": "2"})
    delete_keys(frame.select("id"), table, ["id"], message="deleted", properties={"ticket": "3"})
    upsert_batches(table, ["id"], stream="s", message="streamed", properties={"ticket": "4"})(frame, 0)
    said = [(version.message, version.properties["ticket"]) for version in table.log(limit=4)]
    assert [("streamed", "4"), ("deleted", "3"), ("changed", "2"), ("added", "1")] == said
