"""What a table knows of the values of its data files: searches open few files, and find the same rows as pylance."""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster import InvalidInputError, LanceTable
from lance_dagster.format.value_ranges import ValueRange, encode_range
from lance_dagster.history.context import open_context
from lance_dagster.transactions.fragment_pruning import known_matches
from tests.conftest import S3Storage
from tests.store.providers import requests_of

DAYS = [dt.date(2026, 1, day) for day in range(1, 8)]
COLUMNS: dict[str, pa.DataType] = {
    "day": pa.string(),
    "date": pa.date32(),
    "local": pa.timestamp("ms"),
    "at": pa.timestamp("us", "UTC"),
    "id": pa.int64(),
    "small": pa.uint8(),
    "flag": pa.bool_(),
    "kind": pa.dictionary(pa.int8(), pa.string()),
    "price": pa.float64(),
}
SCHEMA = pa.schema(COLUMNS)
NAMES = ["d1", "d2", "d10", "D2", "", "é", "it's", "d2 AND d3", "d1\0", "\n"]
NUMBERS = [0, 1, -1, 255, 256, 2**63 - 1, -(2**63), 7, 100]


def random_rows(draw: random.Random, count: int) -> pa.Table:
    """Rows with few distinct values, and nulls in some columns; sometimes with one value in each column."""
    single = draw.random() < 0.4

    def column(values: list[Any]) -> list[Any]:
        chosen = [draw.choice(values)] if single else [*draw.sample(values, 2), *([None] * draw.randrange(2))]
        return [draw.choice(chosen) for _ in range(count)]

    moments = [dt.datetime(2026, 1, day, hour, tzinfo=dt.UTC) for day in (1, 2, 3) for hour in (0, 12, 23)]
    columns = {
        "day": column(NAMES),
        "date": column(DAYS),
        "local": column([moment.replace(tzinfo=None) for moment in moments]),
        "at": column(moments),
        "id": column(NUMBERS),
        "small": column([0, 1, 7, 255]),
        "flag": column([True, False]),
        "kind": column(NAMES),
        "price": column([0.0, -0.0, float("nan"), 1.5, float("inf")]),
    }
    return pa.table({name: pa.array(values, COLUMNS[name]) for name, values in columns.items()})


def text(value: str) -> str:
    """A text of Lance SQL."""
    return "'" + value.replace("'", "''") + "'"


def random_comparison(draw: random.Random) -> str:
    """A comparison that Lance accepts."""
    sign = draw.choice(["=", "<", "<=", ">", ">=", "<>", "!="])
    moment = dt.datetime(2026, 1, draw.randrange(1, 4), draw.choice([0, 12]), tzinfo=dt.UTC).replace(tzinfo=None)
    literals = {
        "day": text(draw.choice(NAMES)),
        "kind": text(draw.choice(NAMES)),
        "date": f"date '{draw.choice(DAYS)}'",
        "local": f"timestamp '{moment}'",
        "at": f"""arrow_cast('{moment.isoformat()}Z', 'Timestamp(Microsecond, Some("UTC"))')""",
        "id": str(draw.choice(NUMBERS[:-3])),
        "small": str(draw.choice([0, 1, 7, 255])),
        "flag": draw.choice(["true", "false"]),
        "price": "1.5",
    }
    name = draw.choice([*literals])
    column = draw.choice([name, f"`{name}`"])
    forms = [
        f"{column} {sign} {literals[name]}",
        f"{literals[name]} {sign} {column}",
        f"{column} IS NULL",
        f"{column} is not null",
        f"{column} IN ({literals[name]}, {literals[name]})",
        f"{column} NOT IN ({literals[name]})",
        f"{column} BETWEEN {literals[name]} AND {literals[name]}",
        f"{column} NOT BETWEEN {literals[name]} AND {literals[name]}",
        f"coalesce({column}, {literals[name]}) = {literals[name]}",
        "flag",
        draw.choice(["true", "false"]),
    ]
    return draw.choice(forms)


def random_predicate(draw: random.Random, depth: int = 3) -> str:
    """A condition of comparisons, with and without parentheses."""
    if not depth or draw.random() < 0.3:
        return random_comparison(draw)
    left, right = random_predicate(draw, depth - 1), random_predicate(draw, depth - 1)
    return draw.choice(
        [f"{left} AND {right}", f"{left} or {right}", f"({left} OR {right}) AND {left}", f"NOT ({left})", f"not {left}"]
    )


def same_rows(first: pa.Table, second: pa.Table) -> bool:
    """Whether two tables have the same rows in the same order; NaN is NaN here."""
    return str(first.to_pylist()) == str(second.to_pylist())


@pytest.mark.parametrize("seed", range(4))
def test_the_same_rows_as_pylance(tmp_path: Path, seed: int) -> None:
    """Whatever the predicate and the values are, with writes and changes of pylance in between."""
    draw = random.Random(seed)
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    for _ in range(8):
        table.append(random_rows(draw, draw.randrange(1, 6)))
    lance.write_dataset(random_rows(draw, 3), table.uri, mode="append")
    table.delete("small = 1 AND flag")
    lance.dataset(table.uri).update({"day": "'d2'"}, where="small = 7")
    table.update({"id": "7"}, where="date = date '2026-01-02'")
    decided = 0
    for _ in range(40):
        predicate = random_predicate(draw)
        pylance = table.to_lance()
        expected = pylance.to_table(filter=f"({predicate})")
        assert same_rows(expected, table.read(filter=predicate)), predicate
        assert expected.num_rows == table.count_rows(filter=predicate), predicate
        head = open_context(table.uri, None).find_head("main")
        decided += head is not None and known_matches(head.manifest, predicate) is not None
    # Otherwise this would test nothing.
    assert decided >= 10
    for _ in range(3):
        predicate = random_predicate(draw)
        kept = table.to_lance().to_table(filter=f"({predicate}) IS NOT TRUE")
        result = table.delete(predicate)
        assert same_rows(kept, table.read()), predicate
        assert table.count_rows() == kept.num_rows
        assert result.rows_deleted is not None
    assert table.maintenance.verify(deep=True).ok


def test_invalid_predicates_are_refused(tmp_path: Path) -> None:
    """Also where the ranges say that no row can match."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    table.append(random_rows(random.Random(0), 3))
    for predicate in ("day = 'zzz' AND nothing = 1", "false AND", "day = 'zzz' AND id = 'x' || 5", "day = 'zzz'; true"):
        with pytest.raises(InvalidInputError):
            table.delete(predicate)
        with pytest.raises(InvalidInputError):
            table.count_rows(filter=predicate)
        with pytest.raises(InvalidInputError):
            table.read(filter=predicate)


def test_verification_finds_a_wrong_range(tmp_path: Path) -> None:
    """A deep verification compares the ranges with the values."""
    table = LanceTable.create(tmp_path / "table", SCHEMA)
    table.append(random_rows(random.Random(1), 5))
    assert table.maintenance.verify(deep=True).ok
    staged = table.stage(random_rows(random.Random(2), 5))
    lie = encode_range("small", "uint8", ValueRange(has_nulls=True, lower=250, upper=251))
    table.append(replace(staged, files=tuple(replace(file, ranges=lie) for file in staged.files)))
    (problem,) = table.maintenance.verify(deep=True).problems
    assert "values are outside of the recorded range 5 u8?250,251" == problem.what
    assert ("main@3",) == problem.versions


def many_days(storage: S3Storage, count: int) -> str:
    """A table with one data file for each of many days, and one data file with rows of two days."""
    uri = f"{storage.uri}/{count}"
    columns: dict[str, pa.DataType] = {"day": pa.string(), "id": pa.int64()}
    table = LanceTable.create(uri, pa.schema(columns), storage_options=storage.storage_options)
    table.append(pa.table({"day": ["d0", "d1"], "id": [0, 0]}))
    staged = [
        table.stage(pa.table({"day": [f"d{day}"] * 3, "id": [3 * day + row for row in range(3)]}))
        for day in range(count)
    ]
    table.append(replace(staged[0], files=tuple(file for part in staged for file in part.files)))
    return uri


DAY = pa.table({"day": ["d3"], "id": [1]})
SEARCHES: dict[str, tuple[int, Callable[[LanceTable], object]]] = {
    "count": (3, lambda table: table.count_rows(filter="day = 'd3'")),
    "count where a file has other rows too": (5, lambda table: table.count_rows(filter="day = 'd1'")),
    "read": (5, lambda table: table.read(filter="day = 'd3'")),
    "read no row": (4, lambda table: table.read(filter="day = 'none'")),
    "replace": (7, lambda table: table.replace_where("day = 'd3'", DAY)),
    "replace in a fork": (10, lambda table: table.replace_where("day = 'd3'", DAY, branch="fork")),
    "delete": (6, lambda table: table.delete("day = 'd4'")),
    "update": (9, lambda table: table.update({"id": "id + 1"}, where="day = 'd5'")),
    "upsert": (10, lambda table: table.upsert(pa.table({"day": ["d6"], "id": [20]}), on=["id"])),
}


def test_requests_do_not_grow_with_the_table(s3_storage: S3Storage) -> None:
    """A search opens the files that may have rows, and no file where the ranges decide."""
    options = dict(s3_storage.storage_options)
    for count in (10, 60):
        uri = many_days(s3_storage, count)
        LanceTable.open(uri, options).branches.create("fork")
        made = {
            name: len(requests_of(s3_storage, partial(search, LanceTable.open(uri, options)))) + 1
            for name, (_, search) in SEARCHES.items()
        }
        assert {name: most for name, (most, _) in SEARCHES.items()} == made, count


def fragment_rows(table: LanceTable, branch: str = "main") -> list[list[Any]]:
    """The days in each fragment."""
    dataset = table.to_lance(branch)
    days = [fragment.to_table(columns=["day"]).column("day") for fragment in dataset.get_fragments()]
    return [[str(day) for day in fragment_days.to_pylist()] for fragment_days in days]


def one_day(day: str) -> pa.Table:
    """A row of a day."""
    return pa.table({"day": [day], "id": pa.array([1], pa.int64())})


def test_compaction_keeps_partitions_apart(tmp_path: Path) -> None:
    """Files of one partition are rewritten to one file, with those of other partitions between them or not."""
    table = LanceTable.create(tmp_path / "table", one_day("").schema)
    for day in ("d1", "d2"):
        table.replace_where(f"day = '{day}'", one_day(day), partitions=[day])
    for day in ("d1", "d2", "d1"):
        table.append(one_day(day), partitions=[day])
    for day in ("x", "y"):
        table.append(one_day(day))
    table.maintenance.compact()
    assert [["d1"] * 3, ["d2"] * 2, ["x", "y"]] == sorted(fragment_rows(table))
    assert table.head() == table.maintenance.compact()
    assert 3 == table.count_rows(filter="day = 'd1'")
    table.append(one_day("d1"), partitions=["d1"])
    table.maintenance.compact()
    assert ["d1"] * 4 in fragment_rows(table)
    table.replace_where("day = 'd1'", one_day("d1"), partitions=["d1"])
    assert [["d1"], ["d2"] * 2, ["x", "y"]] == sorted(fragment_rows(table))
    table.maintenance.compact(mix_partitions=True)
    assert 1 == len(fragment_rows(table))
    assert table.maintenance.verify(deep=True).ok


def decided(table: LanceTable, predicate: str, branch: str = "main") -> tuple[int, int] | None:
    """How many fragments have only rows of a predicate, and how many have to be searched."""
    head = open_context(table.uri, None).find_head(branch)
    known = None if head is None else known_matches(head.manifest, predicate)
    return None if known is None else (len(known.whole), len(known.possible))


def test_ranges_survive_everything_that_keeps_the_files(tmp_path: Path) -> None:
    """Branches, merges, picks, reverts, restores, renamed and added columns, clones; and commits of pylance."""
    table = LanceTable.create(tmp_path / "table", one_day("").schema)
    for day in ("d1", "d2"):
        table.append(one_day(day))
    table.branches.create("fix")
    assert (1, 0) == decided(table, "day = 'd1'", "fix")
    table.append(one_day("d3"), branch="fix")
    table.append(one_day("d4"))
    table.merge("fix")
    assert (1, 0) == decided(table, "day = 'd3'")
    table.columns.rename("day", "date")
    table.columns.add({"day": "concat(date, 'x')"})
    assert (1, 0) == decided(table, "date = 'd3'")
    # Nothing is known of the new column with the former name.
    assert decided(table, "day = 'd3'") is None
    assert 0 == table.count_rows(filter="day = 'd3'")
    assert 1 == table.count_rows(filter="day = 'd3x'")
    version = table.head()
    table.delete("date = 'd3'")
    table.revert("main")
    assert 1 == table.count_rows(filter="date = 'd3'") == table.read(filter="date = 'd3'").num_rows
    assert (1, 0) == decided(table, "date = 'd3'")
    table.overwrite(table.read(filter="date = 'd1'"))
    table.restore(version)
    assert (1, 0) == decided(table, "date = 'd3'")
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    lance.dataset(table.uri).delete("date = 'd2'")
    assert (1, 0) == decided(table, "date = 'd3'")
    clone = table.maintenance.clone(tmp_path / "clone", shallow=True)
    assert (1, 0) == decided(clone, "date = 'd3'")
    assert {} == table.config.table_metadata()
    assert table.maintenance.verify(deep=True).ok


def test_values_written_anew_by_pylance_are_searched(tmp_path: Path) -> None:
    """A file that pylance puts in the place of another is not one that anything is known of."""
    table = LanceTable.create(tmp_path / "table", one_day("").schema)
    table.append(pa.table({"day": ["d1", "d1"], "id": [1, 2]}))
    dataset = lance.dataset(table.uri)
    (fragment,) = dataset.get_fragments()
    changed, fields = fragment.update_columns(pa.table({"id": [2], "day": ["d9"]}), left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    lance.LanceDataset.commit(table.uri, operation, read_version=dataset.version)
    assert decided(table, "day = 'd9'") is None
    assert [2] == table.read(filter="day = 'd9'").column("id").to_pylist()
    assert 1 == table.count_rows(filter="day = 'd1'")


def test_a_column_far_to_the_right_has_a_range_once_it_was_searched(tmp_path: Path) -> None:
    """The columns of a replacement and the keys of an upsert have ranges, and so have later files."""
    names = [f"c{number}" for number in range(20)]
    rows = pa.table({name: [1] for name in names})
    table = LanceTable.create(tmp_path / "table", rows.schema)
    table.append(rows)
    assert decided(table, "c15 = 1") is None
    table.replace_where("c15 = 2", rows.set_column(15, "c15", pa.array([2])))
    table.upsert(rows.set_column(17, "c17", pa.array([3])), on=["c17"])
    table.append(rows)
    # The first file was written before either column was searched.
    assert (1, 1) == decided(table, "c15 = 2")
    assert (1, 2) == decided(table, "c17 = 1")
