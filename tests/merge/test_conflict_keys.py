"""Conflicts name the committer, the run, and the first few rows by key."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import Conflict, LanceTable
from lance_dagster.errors import InvalidInputError, MergeConflictError

PRIMARY = {b"lance-schema:unenforced-primary-key": b"true"}


def rows(*ids: int, v: int = 0) -> pa.Table:
    """Rows of a value, by id."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids))})


def torn(tmp_path: Path, *, declared: bool, updated: str = "id < 3") -> LanceTable:
    """A table with rows that both sides updated."""
    key = pa.field("id", pa.int64(), nullable=False, metadata=PRIMARY if declared else None)
    table = LanceTable.create(tmp_path / "keys", pa.schema([key, pa.field("v", pa.int64())]))
    table.append(rows(*range(10)).cast(table.schema()))
    table.branches.create("run")
    for branch in ("run", "main"):
        table.update({"v": "v + 1" if branch == "run" else "v + 2"}, where=updated, branch=branch)
    return table


def conflicts(table: LanceTable) -> list[Conflict]:
    """The conflicts of merging `run`, which are those of its preview."""
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    found = [conflict for conflict in caught.value.conflicts if isinstance(conflict, Conflict)]
    assert [one.keys for one in found] == [one.keys for one in table.preview_merge("run").conflicts]
    return found


def test_rows_are_named_by_the_declared_key(tmp_path: Path) -> None:
    """The keys are in the conflict and in its text."""
    (conflict,) = conflicts(torn(tmp_path, declared=True))
    assert ("id 0", "id 1", "id 2") == conflict.keys
    assert str(conflict).startswith("3 rows in fragment 0 of the merge base (id 0, id 1, id 2): ")


def test_only_the_first_few_rows_are_named(tmp_path: Path) -> None:
    """The last entry says that there are more."""
    (conflict,) = conflicts(torn(tmp_path, declared=True, updated="id < 9"))
    assert ("id 0", "id 1", "id 2", "...") == conflict.keys


def test_rows_are_named_by_the_key_of_an_upsert(tmp_path: Path) -> None:
    """If the table declares no key, the columns by which a side upserted identify rows."""
    table = torn(tmp_path, declared=False)
    assert () == conflicts(table)[0].keys
    table.upsert(rows(77).cast(table.schema()), on=["id"], branch="run")
    assert ("id 0", "id 1", "id 2") == conflicts(table)[0].keys


def test_rows_are_named_by_a_key_of_an_extension_type(tmp_path: Path) -> None:
    """One version does not have the row: Arrow makes no array of such a type from Python values."""
    key = pa.field("id", pa.uuid(), nullable=False, metadata=PRIMARY)
    table = LanceTable.create(tmp_path / "uuids", pa.schema([key, pa.field("v", pa.int64())]))
    ids = pa.array([b"0" * 16], pa.binary(16)).cast(pa.uuid())
    table.append(pa.table([ids, pa.array([1])], schema=table.schema()))
    table.branches.create("run")
    table.update({"v": "2"}, where="v = 1", branch="run")
    table.delete("v = 1")
    (conflict,) = conflicts(table)
    assert (f"id {ids[0].as_py()!r}",) == conflict.keys
    (row,) = table.preview_merge("run").conflicting_rows().read_all().to_pylist()
    assert ({"id": ids[0].as_py(), "v": 2}, None) == (row["source"], row["dest"])


def test_rows_are_named_by_a_key_that_python_has_no_object_for(tmp_path: Path) -> None:
    """The moment is in the year 20237; a diff by this key names it too where it comes twice."""
    key = pa.field("at", pa.timestamp("us"), nullable=False, metadata=PRIMARY)
    table = LanceTable.create(tmp_path / "far", pa.schema([key, pa.field("v", pa.int64())]))
    rows = pa.table({"at": [2**59], "v": [1]}).cast(table.schema())
    table.append(rows)
    table.branches.create("run")
    for branch in ("run", "main"):
        table.update({"v": "2" if branch == "run" else "3"}, where="v = 1", branch=branch)
    (conflict,) = conflicts(table)
    assert ("at '20237-04-25 10:45:03.423488'",) == conflict.keys
    table.append(pa.concat_tables([rows, rows]))
    with pytest.raises(InvalidInputError, match=r"at = '20237-04-25 10:45:03\.423488'"):
        table.diff("main~1", "main", on=["at"]).stat()


def test_both_the_committer_and_the_run_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run tells where to look, and the committer whom to ask."""
    monkeypatch.setenv("LANCE_DAGSTER_COMMITTER", "ann")
    table = torn(tmp_path, declared=False, updated="id < 0")
    table.update({"v": "5"}, where="id = 1", branch="run", properties={"dagster/run_id": "77"})
    table.update({"v": "6"}, where="id = 1")
    (conflict,) = conflicts(table)
    assert "ann in run 77 (run@3)" in conflict.source
    assert "ann (main@3) changed or deleted them" == conflict.dest


def test_a_strategy_for_a_column_that_neither_side_has_is_refused(tmp_path: Path) -> None:
    """The error lists the possible units, even where there is nothing to merge."""
    table = torn(tmp_path, declared=False)
    for unit in ("column w", "column v, w", "metadata of column w"):
        with pytest.raises(InvalidInputError, match="neither side has"):
            table.merge("run", strategy={unit: "dest-wins"})
    # Whether the merge gets as far as the columns does not matter.
    with pytest.raises(InvalidInputError, match="neither side has"):
        table.preview_merge("run", mode="ff-only", strategy={"column w": "dest-wins"})
    table.merge("run", strategy={"column v": "dest-wins", "column id, v": "source-wins", "rows": "dest-wins"})
    with pytest.raises(InvalidInputError, match="neither side has"):
        table.merge("run", strategy={"column w": "dest-wins"})


@pytest.mark.parametrize(
    "keys,named", [([77], ("id 77",)), (list(range(10, 2010)), ("id 10", "id 11", "id 12", "..."))]
)
def test_a_conflict_about_upserted_keys_names_them(tmp_path: Path, keys: list[int], named: tuple[str, ...]) -> None:
    """The keys are those of the upsert, under the name that the dest has for the column."""
    table = torn(tmp_path, declared=False, updated="id < 0")
    for branch, value in (("run", 5), ("main", 6)):
        table.upsert(rows(*keys, v=value), on=["id"], branch=branch)
    (conflict,) = conflicts(table)
    assert ("partition", named) == (conflict.kind, conflict.keys)
    table.columns.rename("id", "number")
    (conflict,) = conflicts(table)
    assert tuple(each.replace("id", "number") for each in named) == conflict.keys
