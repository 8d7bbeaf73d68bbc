"""`status`."""

from pathlib import Path

from lance_dagster.history.table_uri import table_uri
from tests.cli.running import document_of, lines_of, run
from tests.table_factory import entries, new_table


def test_names_stand_beside_main(tmp_path: Path) -> None:
    """Branches and tags are listed with their differences from main, and run branches that wait for a merge."""
    table = new_table(tmp_path, entries("a", 1))
    table.tags.create("production", "main@1")
    for name in ("run/1", "run/2", "work"):
        table.branches.create(name)
        table.append(entries(name, 1, 2), branch=name)
    table.append(entries("b", 1), branch="work")
    table.merge("run/1", message="the first run")
    lines = lines_of("table", "status", table.uri)
    assert ["main@3", table.head().id[:10]] == lines[0].split()[:2]
    assert lines[0].endswith("3 rows  the first run")
    assert [
        "",
        "branches:",
        "    run/1  run/1@3  3 rows  1 behind",
        "    run/2  run/2@3  3 rows  1 ahead, 2 behind",
        "    work   work@4   4 rows  2 ahead, 2 behind",
        "",
        "tags:",
        "    production  main@1  0 rows  3 behind",
        "",
        "not merged: run/2",
    ] == lines[1:]
    answer = document_of("table", "status", table.uri)
    assert (table.uri, "main@3", ["run/2"]) == (answer["table"], answer["main"]["version"], answer["unmerged_runs"])
    assert {
        "name": "run/2",
        "version": "run/2@3",
        "rows": 3,
        "ahead": 1,
        "behind": 2,
        "squashed": False,
        "held": None,
        "merged": False,
    } == answer["branches"][1]
    table.merge("run/2", mode="squash")
    assert "    run/2  run/2@3  3 rows  1 ahead, 3 behind (squashed)" in lines_of("table", "status", table.uri)
    assert [] == document_of("table", "status", table.uri)["unmerged_runs"]


def test_a_table_without_names_is_one_line(tmp_path: Path) -> None:
    """The line has the newest version."""
    table = new_table(tmp_path)
    assert ["main@1"] == [line.split()[0] for line in lines_of("table", "status", table.uri)]
    assert 2 == run("table", "status", table_uri(table.uri, "main")).exit_code
