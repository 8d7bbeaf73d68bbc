"""Upserts by key, compared with those of pylance."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from lance_dagster import LanceTable, StagedFiles, write_files
from lance_dagster.errors import CommitConflictError, InvalidInputError, MergeConflictError, SchemaMismatchError
from lance_dagster.format.transaction import REWRITE_ROWS, Update
from tests.conftest import S3Storage
from tests.process_race import race
from tests.soak import pairs
from tests.table.interruption import interrupted
from tests.table.pylance_parity import ParityPair, assert_pylance_goes_on
from tests.table_factory import SCHEMA, as_pylance, contents, entries, new_table

GIVEN = pa.table({"key": ["x", "y", "z", "w"], "value": [7, 1, 100, 101]})
Builder = Callable[[lance.MergeInsertBuilder], lance.MergeInsertBuilder]


def _everything(builder: lance.MergeInsertBuilder) -> lance.MergeInsertBuilder:
    return builder.when_matched_update_all().when_not_matched_insert_all()


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> ParityPair:
    """Two tables of the same two fragments, with and without stable row ids."""
    return ParityPair.made(tmp_path, stable_row_ids=request.param)


RULES: dict[str, tuple[dict[str, Any], Builder]] = {
    "update and insert": ({}, _everything),
    "insert": ({"when_matched": "keep"}, lambda builder: builder.when_not_matched_insert_all()),
    "update": ({"when_not_matched": "ignore"}, lambda builder: builder.when_matched_update_all()),
    "delete the rest": (
        {"when_missing": "delete"},
        lambda builder: _everything(builder).when_not_matched_by_source_delete(),
    ),
    "keep and delete the rest": (
        {"when_matched": "keep", "when_missing": "delete", "when_not_matched": "ignore"},
        lambda builder: builder.when_not_matched_by_source_delete(),
    ),
    "update some": (
        {"when_matched": "source.value < 5 AND target.key = 'a'"},
        lambda builder: builder.when_matched_update_all(
            "source.value < 5 AND target.key = 'a'"
        ).when_not_matched_insert_all(),
    ),
    "update none": (
        {"when_matched": "source.value > target.value", "when_not_matched": "ignore"},
        lambda builder: builder.when_matched_update_all("source.value > target.value"),
    ),
}
SOURCES = {
    "some there": GIVEN,
    "none there": pa.table({"key": ["x", "y"], "value": [100, 101]}),
    "all there": pa.table({"key": ["x"] * 10, "value": range(10)}),
    "other order of columns": GIVEN.select(["value", "key"]),
    "keys alone": GIVEN.select(["value"]),
    "nothing": GIVEN.slice(0, 0),
    "nulls": pa.table({"key": ["x", None, "n"], "value": [3, None, None]}),
}


@pytest.mark.parametrize("rule,source", pairs(RULES, SOURCES))
def test_rows_become_what_pylance_makes_of_them(pair: ParityPair, rule: str, source: str) -> None:
    """Rows, row ids and row versions are equal, and pylance can go on with the table."""
    given, build = RULES[rule]
    before = pair.table.head()
    after = pair.table.upsert(SOURCES[source], on=["value"], **given)
    build(pair.dataset.merge_insert("value")).execute(SOURCES[source])
    pair.assert_same()
    assert before.number + (1 if after != before else 0) == after.number
    if source != "nulls":
        assert_pylance_goes_on(pair.table)


def test_the_transaction_is_the_one_pylance_writes(pair: ParityPair) -> None:
    """One new fragment has the moved rows first, and then the new ones."""
    pair.table.upsert(GIVEN, on=["value"])
    _everything(pair.dataset.merge_insert("value")).execute(GIVEN)
    found, expected = pair.operation(pair.table), pair.operation(pair.dataset)
    assert isinstance(found, Update)
    assert isinstance(expected, Update)
    assert ((), (), REWRITE_ROWS, (0, 1)) == (
        expected.removed_fragment_ids,
        expected.fields_modified,
        expected.mode,
        expected.updated_fields,
    )
    assert ((), (), REWRITE_ROWS, (0, 1)) == (
        found.removed_fragment_ids,
        found.fields_modified,
        found.mode,
        found.updated_fields,
    )
    (found_fragment,), (expected_fragment,) = found.new_fragments, expected.new_fragments
    assert (expected_fragment.physical_rows, expected_fragment.row_ids is None) == (
        found_fragment.physical_rows,
        found_fragment.row_ids is None,
    )


def test_keys_may_have_several_columns(pair: ParityPair) -> None:
    """Each value of a key column may occur with several values of the other."""
    rows = pa.table({"key": ["a", "a", "b", "c"], "value": [1, 7, 7, 1]})
    pair.table.upsert(rows, on=["key", "value"])
    _everything(pair.dataset.merge_insert(["key", "value"])).execute(rows)
    pair.assert_same()
    assert_pylance_goes_on(pair.table)


def test_every_row_of_a_key_is_changed(pair: ParityPair) -> None:
    """These are also rows that pylance added and moved; rows that it deleted are not matched."""
    rows = entries("new", 3, 4, 77)
    for dataset in (as_pylance(pair.table), pair.dataset):
        dataset.insert(entries("twice", 3, 8))
        dataset.delete("value = 4")
        dataset.update({"key": "'moved'"}, where="value in (0, 9)")
    pair.table.upsert(rows, on=["value"])
    _everything(pair.dataset.merge_insert("value")).execute(rows)
    pair.assert_same()
    assert [("new", 3), ("new", 3), ("new", 4), ("new", 77)] == [row for row in contents(pair.table) if row[0] == "new"]


_COLUMNS: list["pa.Field[Any]"] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("name", pa.string()),
    pa.field("place", pa.struct([("x", pa.int64())])),
    pa.field("vector", pa.list_(pa.float32(), 2)),
]
WIDE = pa.schema(_COLUMNS)


def _wide(*ids: int) -> pa.Table:
    rows = [{"id": number, "name": f"n{number}", "place": {"x": number}, "vector": [number, 0.0]} for number in ids]
    return pa.Table.from_pylist(rows, schema=WIDE)


@pytest.mark.parametrize("columns", [["id", "name"], ["vector", "id"], ["place", "name", "id"]])
def test_columns_that_are_not_given_are_kept(tmp_path: Path, columns: list[str]) -> None:
    """Existing rows keep the values of these columns; new rows get nulls."""
    pair = ParityPair.made(tmp_path, _wide(*range(12)))
    given = pa.table(
        {"id": [3, 8, 50], "name": ["p", None, "q"], "place": [None, {"x": 1}, {"x": 2}], "vector": [[1, 1]] * 3}, WIDE
    ).select(columns)
    pair.table.upsert(given, on=["id"])
    _everything(pair.dataset.merge_insert("id")).execute(given)
    pair.assert_same()


def test_a_column_new_rows_must_have_is_asked_for(tmp_path: Path) -> None:
    """The column may be missing if no row is inserted."""
    table = LanceTable.create(tmp_path / "strict", WIDE)
    table.append(_wide(1))
    rows = pa.table({"name": ["n1", "n2"], "place": [{"x": 7}, {"x": 8}]})
    with pytest.raises(SchemaMismatchError, match="is missing"):
        table.upsert(rows, on=["name"])
    table.upsert(rows, on=["name"], when_not_matched="ignore")
    assert [{"id": 1, "name": "n1", "place": {"x": 7}, "vector": [1.0, 0.0]}] == table.read().to_pylist()


@pytest.mark.parametrize("shape", [pa.Table.to_reader, lambda rows: rows.to_batches()[0], lambda rows: rows])
def test_rows_come_in_any_shape(tmp_path: Path, shape: Callable[[pa.Table], Any]) -> None:
    """The rows may be a stream, a batch or a table."""
    table = new_table(tmp_path, entries("a", 1, 2))
    version = table.upsert(
        shape(entries("b", 2, 3)), on=["value"], message="new prices", properties={"a": "b"}, partitions=["jan"]
    )
    assert [("a", 1), ("b", 2), ("b", 3)] == contents(table)
    assert ("new prices", "b", "Update") == (version.message, version.properties["a"], version.operation)


@pytest.mark.parametrize(
    "rows,on,said",
    [
        (entries("a", 1, 2, 1), ["value"], "two of the rows have the key value = 1"),
        (entries("a", 1, 1), ["key", "value"], "two of the rows have the key key = 'a', value = 1"),
        (entries("a", 100, 100), ["value"], "two of the rows have the key value = 100"),
        (GIVEN, [], "an upsert needs key columns"),
        (GIVEN, ["value", "value"], "an upsert needs key columns, each once"),
        (GIVEN, ["id"], "there is no key column 'id'; the table has key, value"),
        (GIVEN.select(["key"]), ["value"], "the key column 'value' is missing"),
        (GIVEN.append_column("more", pa.array([1] * 4)), ["value"], "column 'more' is not in the table"),
        (pa.table({"value": ["1"]}), ["value"], "column 'value' is string, the table holds int64"),
        (pa.table({"value": pa.array([1], pa.int32())}), ["value"], "column 'value' is int32, the table holds int64"),
        ({"value": [1]}, ["value"], r"cannot write a builtins\.dict"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(tmp_path: Path, rows: Any, on: list[str], said: str) -> None:  # noqa: ANN401
    """The error names the key or the column."""
    table = new_table(tmp_path, entries("a", 1, 2))
    files = list(Path(table.uri, "data").iterdir())
    with pytest.raises(InvalidInputError, match=said):
        table.upsert(rows, on=on)
    assert "main@2" == str(table.head())
    assert files == list(Path(table.uri, "data").iterdir())


@pytest.mark.parametrize(
    "when,said",
    [
        ({"when_matched": "updat"}, "cannot evaluate the condition 'updat'"),
        ({"when_matched": "source.nope = 1"}, "cannot evaluate the condition 'source.nope = 1'"),
        ({"when_matched": ""}, "cannot evaluate the condition ''"),
        (
            {"when_missing": "delete", "missing_where": "nope"},
            "cannot evaluate missing_where 'nope': No field named nope",
        ),
        ({"when_missing": "delete", "missing_where": ""}, "cannot evaluate missing_where '': .*expression is missing"),
        ({"when_not_matched": "update"}, "when_not_matched cannot be 'update'; give 'insert' or 'ignore'"),
        ({"when_missing": "drop"}, "when_missing cannot be 'drop'; give 'keep' or 'delete'"),
    ],
)
@pytest.mark.parametrize("value", [1, 100])
def test_a_rule_that_makes_no_sense_is_named(tmp_path: Path, when: dict[str, Any], said: str, value: int) -> None:
    """The rule is refused whether or not a row matches."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(InvalidInputError, match=said):
        table.upsert(entries("b", value), on=["value"], **when)
    assert [("a", 1)] == contents(table)


def test_staged_files_are_refused_by_name(tmp_path: Path) -> None:
    """An upsert looks up keys before it writes files."""
    table = new_table(tmp_path, entries("a", 1))
    target = table.write_target()
    staged = StagedFiles(target.schema, write_files(target, entries("a", 1).to_batches()))
    with pytest.raises(InvalidInputError):
        table.upsert(staged, on=["value"])


@pytest.mark.parametrize("arrow", [pa.struct([("x", pa.int64())]), pa.list_(pa.int64()), pa.float16()], ids=str)
def test_a_key_is_of_single_values(tmp_path: Path, arrow: pa.DataType) -> None:
    """The error names the column and its type."""
    table = LanceTable.create(tmp_path / "keys", pa.schema([("k", arrow)]))
    with pytest.raises(InvalidInputError, match="column 'k' is"):
        table.upsert(pa.table({"k": pa.array([None], arrow)}), on=["k"])


def test_what_changes_nothing_makes_no_version(tmp_path: Path) -> None:
    """Pylance makes a version."""
    table = new_table(tmp_path, entries("a", 1))
    assert table.head() == table.upsert(entries("b", 1), on=["value"], when_matched="keep")
    assert table.head() == table.upsert(entries("b", 2), on=["value"], when_not_matched="ignore")
    assert table.head() == table.upsert(entries("b"), on=["value"])
    assert "main@2" == str(table.head())


def test_a_branch_is_upserted_and_main_keeps_its_rows(tmp_path: Path) -> None:
    """The branch upserts rows inherited from main too, and continues main's row ids."""
    table = new_table(tmp_path, entries("a", 1, 2, 3))
    table.branches.create("run")
    version = table.upsert(entries("b", 2, 4), on=["value"], branch="run")
    assert "run@3" == str(version)
    assert [("a", 1), ("a", 3), ("b", 2), ("b", 4)] == contents(table, "run")
    assert [("a", 1), ("a", 2), ("a", 3)] == contents(table)
    dataset = as_pylance(table, "run")
    dataset.validate()
    assert {1: 0, 2: 1, 3: 2, 4: 3} == {
        row["value"]: row["_rowid"] for row in dataset.to_table(columns=["value", "_rowid"]).to_pylist()
    }
    _everything(dataset.merge_insert("value")).execute(entries("c", 4, 5))
    assert [("a", 1), ("a", 3), ("b", 2), ("c", 4), ("c", 5)] == contents(table, "run")


@pytest.mark.parametrize("size", [99, 150])
def test_branches_that_add_the_same_key_cannot_be_merged(tmp_path: Path, size: int) -> None:
    """Each upsert claims its new keys, as a list or as a range; branches with other keys can be merged."""
    table = new_table(tmp_path, entries("a", 1))
    for name, start in (("one", 1000), ("two", 1000 + size - 1), ("three", 2000)):
        table.branches.create(name)
        table.upsert(entries(name, *range(start, start + size)), on=["value"], branch=name)
    table.merge("one")
    with pytest.raises(MergeConflictError, match="rows where `value`"):
        table.merge("two")
    table.merge("three")
    assert 1 + 2 * size == table.count_rows() == as_pylance(table).count_rows()


MEANWHILE: dict[str, tuple[Callable[[LanceTable], object], list[tuple[str, int]]]] = {
    "append": (lambda other: other.append(entries("o", 8)), [("a", 1), ("n", 2), ("n", 7), ("o", 8)]),
    "append of the same key": (lambda other: other.append(entries("o", 7)), [("a", 1), ("n", 2), ("n", 7)]),
    "insert by pylance": (lambda other: as_pylance(other).insert(entries("o", 7)), [("a", 1), ("n", 2), ("n", 7)]),
    "upsert of the same key": (
        lambda other: other.upsert(entries("o", 7), on=["value"]),
        [("a", 1), ("n", 2), ("n", 7)],
    ),
    "upsert by pylance": (
        lambda other: _everything(as_pylance(other).merge_insert("value")).execute(entries("o", 7, 2)),
        [("a", 1), ("n", 2), ("n", 7)],
    ),
    "delete of the same row": (lambda other: other.delete("value = 2"), [("a", 1), ("n", 2), ("n", 7)]),
    "delete of another row": (lambda other: other.delete("value = 1"), [("n", 2), ("n", 7)]),
    "another key for the row": (
        lambda other: other.update({"value": "7"}, where="value = 2"),
        [("a", 1), ("n", 2), ("n", 7)],
    ),
    "compaction": (lambda other: as_pylance(other).optimize.compact_files(), [("a", 1), ("n", 2), ("n", 7)]),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_keys_are_looked_up_again_when_somebody_is_faster(tmp_path: Path, meanwhile: str) -> None:
    """The upsert is applied to the other writer's version, and no key occurs twice."""
    table = new_table(tmp_path, entries("a", 1), entries("a", 2))
    act, wanted = MEANWHILE[meanwhile]
    interrupted(table, lambda: act(LanceTable.open(table.uri))).upsert(entries("n", 2, 7), on=["value"])
    assert wanted == contents(table)
    dataset = as_pylance(table)
    dataset.validate()
    assert len(wanted) == len(set(dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist()))


def test_a_replaced_table_is_not_upserted(tmp_path: Path) -> None:
    """The conflict is not resolved automatically."""
    table = new_table(tmp_path, entries("a", 1))
    with pytest.raises(CommitConflictError):
        interrupted(table, lambda: LanceTable.open(table.uri).overwrite(entries("b", 5))).upsert(
            entries("n", 5), on=["value"]
        )
    assert [("b", 5)] == contents(table)


def bring(uri: str, writer: int) -> int:
    """Upsert the same few keys repeatedly, or update them through pylance."""
    table = LanceTable.open(uri)
    for number in range(6):
        rows = entries(f"w{writer}", *range(number, number + 4))
        if writer:
            table.upsert(rows, on=["value"])
        else:
            as_pylance(table).update({"key": "'p'"}, where=f"value = {number}")
    return 6


@pytest.mark.slow
def test_writers_at_the_same_moment_add_each_key_once(tmp_path: Path) -> None:
    """Three processes upsert while pylance updates."""
    table = new_table(tmp_path, entries("a", 0, 1))
    assert [6] * 4 == race(bring, [(table.uri, writer) for writer in range(4)])
    assert list(range(9)) == sorted(value for _, value in contents(table))
    dataset = as_pylance(table)
    dataset.validate()
    ids: list[Any] = dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist()
    assert 9 == len(set(ids)) == len(ids)


def test_large_tables_are_read_in_parts(tmp_path: Path) -> None:
    """The table has many rows and fragments, and the upsert takes other columns from all over it."""
    size = 60_000
    rows = pa.table({"id": range(size), "key": [f"k{n % 100}" for n in range(size)], "value": range(size)})
    lance.write_dataset(rows, str(tmp_path / "large"), max_rows_per_file=7_000, enable_stable_row_ids=True)
    table = LanceTable.open(tmp_path / "large")
    table.delete("id % 10 = 3")
    ids = [number for number in range(size + 1000) if number % 2]
    random.Random(3).shuffle(ids)
    table.upsert(pa.table({"id": ids, "value": [-number for number in ids]}), on=["id"])
    found = {row["id"]: (row["key"], row["value"]) for row in table.read().to_pylist()}
    wanted: dict[int, tuple[str | None, int]] = {n: (f"k{n % 100}", n) for n in range(0, size, 2) if n % 10 != 3}
    wanted |= {n: (f"k{n % 100}" if n < size and n % 10 != 3 else None, -n) for n in ids}
    assert wanted == found
    dataset = as_pylance(table)
    dataset.validate()
    assert len(wanted) == dataset.count_rows() == len(set(dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist()))


KEYS = st.integers(0, 12)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(KEYS, unique=True, max_size=5), st.sampled_from(list(RULES)[:5])),
        st.tuples(st.just("update"), KEYS, st.just("")),
        st.tuples(st.just("delete"), KEYS, st.just("")),
        st.tuples(st.just("append"), KEYS, st.just("")),
        st.tuples(st.just("compact"), KEYS, st.just("")),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25)
@given(CHANGES)
def test_any_changes_leave_both_with_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, Any, str]]
) -> None:
    """Row ids and versions are equal too. Where the package has nothing to commit, pylance is not called."""
    pair = ParityPair.made(tmp_path_factory.mktemp("pair"), entries("a", *range(8)))
    for number, change in enumerate(changes):
        before = pair.table.head()
        _changed(pair.table, number, change)
        if pair.table.head() != before:
            _changed(pair.dataset, number, change)
    pair.assert_same()


def _changed(table: LanceTable | lance.LanceDataset, number: int, change: tuple[str, Any, str]) -> None:
    """Make one change through the package or through pylance."""
    verb, about, rule = change
    match verb:
        case "upsert":
            rows = entries(f"u{number}", *about)
            if isinstance(table, LanceTable):
                table.upsert(rows, on=["value"], **RULES[rule][0])
            else:
                RULES[rule][1](table.merge_insert("value")).execute(rows)
        case "update":
            table.update({"key": f"'v{number}'"}, where=f"value < {about}")
        case "delete":
            table.delete(f"value = {about}")
        case "append":
            (table.append if isinstance(table, LanceTable) else table.insert)(entries("new", about))
        case _:
            (as_pylance(table) if isinstance(table, LanceTable) else table).optimize.compact_files()


def test_rows_without_columns_left_out_are_the_tables(tmp_path: Path) -> None:
    """The types of the given rows do not change the schema."""
    table = new_table(tmp_path, entries("a", 1))
    table.upsert(pa.table({"value": [1, 2], "key": pa.array(["b", "c"], pa.large_string())}), on=["value"])
    assert SCHEMA == table.schema()
    assert [("b", 1), ("c", 2)] == contents(table)


def test_rows_are_changed_on_object_storage(s3_storage: S3Storage) -> None:
    """Deletions, updates and upserts work on object storage."""
    options = s3_storage.storage_options
    table = LanceTable.create(f"{s3_storage.uri}/table", SCHEMA, storage_options=options)
    table.append(entries("a", *range(6)))
    table.delete("value = 0")
    table.update({"value": "value + 10"}, where="value < 3")
    table.branches.create("run")
    table.upsert(entries("b", 12, 50), on=["value"], when_missing="delete", branch="run")
    assert [("b", 12), ("b", 50)] == contents(table, "run")
    assert [("a", 3), ("a", 4), ("a", 5), ("a", 11), ("a", 12)] == contents(table)
    dataset = lance.dataset(table.uri, storage_options=dict(options))
    dataset.validate()
    assert [1, 2, 3, 4, 5] == sorted(dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist())  # type: ignore[type-var]


def test_columns_that_differ_in_case_are_different(tmp_path: Path) -> None:
    """Column names are not folded as SQL does with names that are not quoted."""
    table = LanceTable.create(tmp_path / "case", pa.table({"id": [0], "ID": [0], "of rows": ["x"]}).schema)
    table.append(pa.table({"id": [1, 2], "ID": [10, 20], "of rows": ["a", "b"]}))
    table.update({"ID": "`ID` + id"}, where="`ID` = 20")
    table.upsert(pa.table({"id": [2, 3], "of rows": ["c", "d"]}), on=["id"])
    assert [(1, 10, "a"), (2, 22, "c"), (3, None, "d")] == [tuple(row.values()) for row in table.read().to_pylist()]


@pytest.mark.parametrize(
    "wrong,hint",
    [("when_matchd", "did you mean 'when_matched'?"), ("x", "there are when_matched, when_not_matched")],
)
def test_a_choice_that_is_not_there_is_told(tmp_path: Path, wrong: str, hint: str) -> None:
    """The error suggests the argument that was probably meant."""
    table = LanceTable.create(tmp_path / "t", pa.schema({"id": pa.int64()}))
    with pytest.raises(InvalidInputError) as caught:
        table.upsert(pa.table({"id": [1]}), on=["id"], **{wrong: "keep"})  # type: ignore[arg-type]  # what is tested
    assert f"unknown option of an upsert {wrong!r}; {hint}" in str(caught.value)
