# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, build_publisher

KEY, PROMOTED = dg.AssetKey("orders"), dg.AssetKey(["production", "orders"])


def materialized(lake: LanceResource, rows: pa.Table, *, preview: int = 5, **metadata: Any) -> dict[str, Any]:
    """Write rows, publish them, and return the metadata of both events."""

    @dg.asset(key=KEY, metadata={f"lance/{name}": value for name, value in metadata.items()})
    def orders() -> pa.Table:
        return rows

    resources = {"lance": lake, "io_manager": LanceIOManager(lance=lake, preview_rows=preview)}
    result = dg.materialize([orders, build_publisher([orders], unchecked=True)], resources=resources)
    made = {event.asset_key: event.step_materialization_data.materialization for event in events_of(result)}
    return {
        **{name: value.value for name, value in made[KEY].metadata.items()},
        "promoted": {name: value.value for name, value in made[PROMOTED].metadata.items()},
    }


def events_of(result: dg.ExecuteInProcessResult) -> list[dg.DagsterEvent]:
    """The materializations of a run."""
    return [event for event in result.all_events if event.is_step_materialization]


def numbers(found: dict[str, Any]) -> tuple[int, int, int]:
    """The numbers of rows that were added, removed and changed."""
    return found["lance/rows_added"], found["lance/rows_removed"], found["lance/rows_changed"]


def test_changes_of_an_upsert(lake: LanceResource) -> None:
    """The changes of an upsert are counted by the keys: one row is new, one changed, one unchanged."""
    upsert: dict[str, Any] = {"write_mode": "upsert", "keys": ["id"]}
    first = materialized(lake, pa.table({"id": [1, 2], "price": [5, 6]}), **upsert)
    assert (2, 0, 0) == numbers(first)
    second = materialized(lake, pa.table({"id": [1, 2, 3], "price": [5, 7, 8]}), **upsert)
    assert (1, 0, 1) == numbers(second)
    lines = second["lance/changes"].splitlines()
    assert "| the version before | 1 | 0 | 1 |  |" == lines[2]
    assert "| main@2 | 1 | 0 | 1 |  |" == second["promoted"]["lance/changes"].splitlines()[2]


def test_changes_of_columns(lake: LanceResource) -> None:
    """For an overwrite, all rows count as replaced, and columns are compared by name."""
    materialized(lake, pa.table({"id": [1, 2]}))
    found = materialized(lake, pa.table({"id": [1], "note": ["x"]}), schema_evolution="replace")
    assert (1, 2, 0) == numbers(found)
    assert "note" in found["lance/changes"].splitlines()[2]


def test_changes_of_many_rows_are_counted_by_the_manifests(lake: LanceResource) -> None:
    """When many rows may differ, none is read, and the page says that the numbers are estimates."""
    rows = pa.table({"id": pa.array(range(60_000))})
    upsert: dict[str, Any] = {"write_mode": "upsert", "keys": ["id"]}
    materialized(lake, rows, **upsert)
    found = materialized(lake, rows.set_column(0, "id", pa.array(range(60_000, 120_000))), **upsert)
    assert (60_000, 0, 0) == numbers(found)
    found = materialized(lake, pa.table({"id": pa.array(range(120_000, 300_000))}), **upsert)
    assert (180_000, 0, 0) == numbers(found)
    assert "| ~ 180,000 |" in found["lance/changes"]


def test_preview_of_rows(lake: LanceResource) -> None:
    """A preview has a few of the newest rows, with wide values cut; a setting leaves out preview and size."""
    wide = {f"c{number}": [number] for number in range(12)}
    found = materialized(lake, pa.table({"note": ["a|b\nc " + "x" * 50], **wide}))
    head, _, row, _, more = found["lance/preview"].splitlines()
    assert head.startswith("| note | c0 | c1 |")
    assert row.startswith("| a\\|b c xxxx")
    assert "…" in row
    assert "3 more columns: c9, c10, c11" == more
    assert found["lance/bytes"] > 0
    assert "lance/preview" not in materialized(lake, pa.table({"note": ["x"], **wide}), preview=0)
    appended = materialized(lake, pa.table({"note": ["newest"], **wide}), write_mode="append")
    assert "newest" in appended["lance/preview"]


def test_preview_of_values_that_python_has_no_object_for(lake: LanceResource) -> None:
    """The rows are stored, and the preview shows the value as text, here a moment in the year 20237."""
    found = materialized(lake, pa.table({"id": [1], "at": pa.array([2**59], pa.timestamp("us"))}))
    assert "| 1 | 20237-04-25 10:45:03.423488 |" == found["lance/preview"].splitlines()[2]


def test_names_of_columns_do_not_end_a_cell(lake: LanceResource) -> None:
    """A bar and a new line in a name leave the tables of the preview and of the changes whole."""
    materialized(lake, pa.table({"id": [1]}), schema_evolution="replace")
    found = materialized(lake, pa.table({"id": [1], "a|b\nc": [2]}), schema_evolution="replace")
    assert ["| id | a\\|b c |", "| --- | --- |", "| 1 | 2 |"] == found["lance/preview"].splitlines()
    assert "a\\|b c" in found["lance/changes"]
    assert all(line.endswith(" |") for line in found["lance/changes"].splitlines()[2:])


def test_empty_output(lake: LanceResource) -> None:
    """An empty output has no preview, and causes no failure."""
    found = materialized(lake, pa.table({"id": pa.array([], pa.int64())}))
    assert (0, 0, 0) == numbers(found)
    assert "lance/preview" not in found


def test_links_of_the_promoted_node(lake: LanceResource) -> None:
    """The page of the promoted node links to the candidate and to the run whose rows it shows."""
    promoted = materialized(lake, pa.table({"id": [1]}))["promoted"]
    assert KEY == promoted["lance/candidate"]
    (run,) = promoted["lance/merged"].removeprefix("run/").split("@")[:1]
    assert run == promoted["lance/published_run"]
