"""`lance-dagster table diff`: its output for two versions, and its exit code."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lance_dagster import LanceTable
from lance_dagster.cli.main import main


def run(*arguments: str, color: bool = False) -> Result:
    """Call the command in this process."""
    return CliRunner().invoke(main, ("table", "diff", *arguments), color=color)


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """A table and a branch that appended, changed and deleted a row."""
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    made = LanceTable.create(tmp_path / "t", rows.schema)
    made.append(rows)
    made.branches.create("run/1")
    made.append(pa.table({"id": [9], "name": ["main"]}))
    made.append(pa.table({"id": [4], "name": ["new\nline " + "x" * 60]}), branch="run/1")
    made.update({"name": "'B'"}, where="id = 2", branch="run/1")
    made.delete("id = 1", branch="run/1")
    return made


def test_three_dots_show_what_the_branch_did(table: LanceTable) -> None:
    """Three dots show the changes of the branch: fragments by default, counts and rows on request."""
    result = run(table.uri, "main...run/1", "--stat", "--rows")
    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        "main@2 -> run/1@5 (since the merge base with main@3)",
        "fragments: 2 added, 1 changed",
        "  ~ fragment 0: 0 -> 2 deleted rows",
        "  + fragment 1: 1 row",
        "  + fragment 2: 1 row",
        "rows: 3 -> 3",
        "1 row added, 1 removed, 1 changed",
        "",
        "   id  name",
        "-  1   a",
        "-  2   b",
        "+  2   B",
        "+  4   new line xxxxxxxxxxxxxxxxxxxxxxxxxxxx...",
    ] == result.stdout.splitlines()


def test_two_dots_and_two_refs_are_the_same(table: LanceTable) -> None:
    """Two dots and two refs both show the changes from one version to the other."""
    dots = run(table.uri, "main..run/1", "--stat")
    assert "1 row added, 2 removed, 1 changed" == dots.stdout.splitlines()[-1]
    assert dots.stdout == run(table.uri, "main", "run/1", "--stat").stdout
    assert "nothing differs" in run(table.uri, "main", "main").stdout


def test_rows_are_limited_and_told_by_a_key(table: LanceTable) -> None:
    """The output says when there are more rows than the limit; a key and columns can be chosen."""
    result = run(table.uri, "main..run/1", "--rows", "--limit", "1", "--on", "id")
    assert ["   id  name", "-  1   a"] == result.stdout.splitlines()[-3:-1]
    assert "there are more rows; --limit shows them" == result.stdout.splitlines()[-1]
    named = run(table.uri, "main..run/1", "--stat", "--column", "id")
    assert "1 row added, 2 removed, 0 changed" == named.stdout.splitlines()[-1]


def test_the_key_is_shown_beside_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    """The key is shown with the chosen columns, in lines and in JSON, so that rows can be told apart."""
    rows = pa.table({"id": [1, 2], "name": ["a", None], "amount": [1, 2]})
    table = LanceTable.create(tmp_path / "t", rows.schema)
    table.append(rows)
    table.update({"name": "'b'", "amount": "5"}, where="id = 2")
    arguments = (table.uri, "main~1..main", "--rows", "-c", "name", "-k", "id")
    assert ["   id  name", "-  2   null", "+  2   b"] == run(*arguments).stdout.splitlines()[-3:]
    shown = json.loads(run(*arguments, "--json").stdout)["rows"]
    assert [(2, None), (2, "b")] == [(row["id"], row["name"]) for row in shown]
    assert "amount" not in shown[0]
    again = run(*arguments, "-c", "id").stdout.splitlines()
    assert "   id  name" == again[-3]


def test_a_null_is_no_empty_text(tmp_path: Path) -> None:
    """A null and an empty text are shown differently."""
    rows = pa.table({"id": [1, 2], "name": ["", None]})
    table = LanceTable.create(tmp_path / "t", rows.schema)
    table.append(rows)
    assert ["+  1", "+  2   null"] == run(table.uri, "main~1..main", "--rows").stdout.splitlines()[-2:]


def test_a_terminal_shows_colours(table: LanceTable) -> None:
    """On a terminal added rows are green and removed rows red."""
    shown = run(table.uri, "main..run/1", "--rows", color=True).stdout
    assert "\x1b[32m+  4" in shown
    assert "\x1b[31m-  1" in shown
    assert "\x1b[32m  + fragment" in shown


def test_json_has_it_all(table: LanceTable) -> None:
    """The JSON document is complete, with numbers such as NaN, which JSON lacks, as text."""
    table.columns.add(pa.field("x", pa.float64()), branch="run/1")
    table.append(pa.table({"id": [7], "name": ["n"], "x": [math.nan]}), branch="run/1")
    found = json.loads(run(table.uri, "main..run/1", "--json", "--stat", "--rows").stdout)
    assert ("main@3", "run/1@7", None, 4, 4) == (
        found["before"],
        found["after"],
        found["base_of"],
        found["rows_before"],
        found["rows_after"],
    )
    assert {"added": 2, "removed": 2, "changed": 1} == found["stat"]
    assert [{"kind": "added", "path": "x", "before": None, "after": "double"}] == found["schema"]
    assert {"_change_type": "insert", "_change_id": 4, "id": 7, "name": "n", "x": "nan"} == found["rows"][-1]
    assert ["added", "added", "added", "changed", "removed"] == sorted(change["kind"] for change in found["fragments"])


@pytest.mark.parametrize(
    "versions,said",
    [
        (["main"], "'..' or '...' between two refs"),
        (["main..nobody"], "no branch or tag 'nobody'"),
        (["main", "run/1", "main"], "give two versions"),
        ([], "missing argument"),
        (["main..run/1", "--stat", "--column", "nothing"], "no column 'nothing'"),
        (["main..run/1", "--on", "nothing"], "column 'nothing' cannot be a key"),
    ],
)
def test_a_wrong_call_is_told(table: LanceTable, versions: list[str], said: str) -> None:
    """The error says what is wrong, and the exit code is 2."""
    result = run(table.uri, *versions)
    assert (2, "", True) == (result.exit_code, result.stdout, said in result.stderr)


def test_values_that_differ_are_shown_so(tmp_path: Path) -> None:
    """Nanoseconds of a time of day, durations below zero, and bytes, for people and as JSON."""
    types: dict[str, pa.DataType] = {
        "id": pa.int64(),
        "at": pa.time64("ns"),
        "took": pa.duration("us"),
        "raw": pa.binary(),
    }
    made = LanceTable.create(tmp_path / "t", pa.schema(types))
    for nanoseconds in (1, 2):
        values: list[list[object]] = [[1], [nanoseconds], [-1], [b"a\x00"]]
        made.overwrite(pa.Table.from_arrays([*map(pa.array, values, types.values())], names=[*types]))
    arguments = (made.uri, "main~1..main", "--rows", "--on", "id")
    lines = [line.split() for line in run(*arguments).stdout.splitlines() if line[:1] in "+-" and "00:" in line]
    expected = [[sign, "1", f"00:00:00.00000000{at}", "-0:00:00.000001"] for sign, at in (("-", 1), ("+", 2))]
    assert expected == [line[:4] for line in lines]
    _, after = json.loads(run(*arguments, "--json").stdout)["rows"]
    assert ("00:00:00.000000002", "-0:00:00.000001", "6100") == (after["at"], after["took"], after["raw"])
