"""The hint of a merge that no strategy settles says on which branch what has to be done, and that helps."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.table_factory import entries, new_table

Step = Callable[[LanceTable], object]


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    """Three rows and a branch `run`."""
    made = new_table(tmp_path, entries("a", 1, 2), entries("b", 3))
    made.branches.create("run")
    return made


def cast(table: LanceTable, branch: str) -> object:
    """Give the column `value` another type."""
    return table.columns.cast("value", pa.int32(), branch=branch)


# A column of nulls, which no file has.
PLACE: list[Step] = [
    lambda t: t.columns.add([pa.field("place", pa.struct([("x", pa.int64()), ("y", pa.int64())]))]),
    lambda t: t.merge("main", into="run"),
]
# A column in the place of both others.
REPLACED: list[Step] = [
    lambda t: t.columns.add({"double": "value * 2"}),
    lambda t: t.columns.drop(["key", "value"]),
]
REPLACED_ON_RUN: list[Step] = [
    lambda t: t.columns.add({"double": "value * 2"}, branch="run"),
    lambda t: t.columns.drop(["key", "value"], branch="run"),
]
CASES: dict[str, tuple[list[Step], str, list[Step]]] = {
    "cast, and rows": (
        [lambda t: cast(t, "run"), lambda t: t.append(entries("c", 9))],
        "column value: cast it to int32 on main too (`columns.cast`), and try again",
        [lambda t: cast(t, "main")],
    ),
    "rows, and cast": (
        [lambda t: cast(t, "main"), lambda t: t.update({"value": "5"}, where="value = 1", branch="run")],
        "column value: cast it to int32 on run too (`columns.cast`), and try again",
        [lambda t: cast(t, "run")],
    ),
    "renamed and cast, and rows": (
        [
            lambda t: t.columns.rename("value", "v", branch="run"),
            lambda t: t.columns.cast("v", pa.int32(), branch="run"),
            lambda t: t.append(entries("c", 9)),
        ],
        (
            "column value: reset run to before the change of the type (`branches.reset`), try again, and make it once "
            "more on the result"
        ),
        [lambda t: t.branches.reset("run", "run@4")],
    ),
    "dropped and another one of its name, and rows": (
        [
            lambda t: t.columns.drop(["value"], branch="run"),
            lambda t: t.columns.add(pa.field("value", pa.int64()), branch="run"),
            lambda t: t.append(entries("c", 9)),
        ],
        (
            "column value: rename the new column value on run (`columns.rename`), and try again; the values of the old "
            "one in these rows are dropped then"
        ),
        [lambda t: t.columns.rename("value", "v", branch="run")],
    ),
    "cast to another type and back, and rows": (
        [
            lambda t: cast(t, "run"),
            lambda t: t.columns.cast("value", pa.int64(), branch="run"),
            lambda t: t.append(entries("c", 9)),
        ],
        (
            "column value: reset run to before the change of the type (`branches.reset`), try again, and make it once "
            "more on the result"
        ),
        [lambda t: t.branches.reset("run", "run@3")],
    ),
    "not null, and a null": (
        [
            lambda t: t.columns.set_nullable("value", nullable=False, branch="run"),
            lambda t: t.update({"value": "null"}, where="value = 1"),
        ],
        "column value: give column value values on main where it is null (`update`), and try again",
        [lambda t: t.update({"value": "0"}, where="value is null")],
    ),
    "cast twice, and rows": (
        [
            lambda t: cast(t, "run"),
            lambda t: t.columns.cast("value", pa.int16(), branch="run"),
            lambda t: t.append(entries("c", 9)),
        ],
        "column value: cast it to int16 on main too (`columns.cast`), and try again",
        [lambda t: t.columns.cast("value", pa.int16())],
    ),
    "dropped, and cast": (
        [lambda t: t.columns.drop(["value"], branch="run"), lambda t: cast(t, "main")],
        "column value: drop it on main too, and try again",
        [lambda t: t.columns.drop(["value"])],
    ),
    "cast, and dropped": (
        [lambda t: cast(t, "run"), lambda t: t.columns.drop(["value"])],
        "column value: drop it on run too, and try again",
        [lambda t: t.columns.drop(["value"], branch="run")],
    ),
    "two columns of one name": (
        [lambda t: t.columns.rename("key", "name", branch="run"), lambda t: t.columns.add({"name": "'x'"})],
        "column name: rename the column on run or main, and try again",
        [lambda t: t.columns.rename("name", "title", branch="run")],
    ),
    "each field of a struct dropped by another side": (
        [*PLACE, lambda t: t.columns.drop(["place.x"], branch="run"), lambda t: t.columns.drop(["place.y"])],
        "column place: drop place whole on run and on main, and try again",
        [lambda t: t.columns.drop(["place"], branch="run"), lambda t: t.columns.drop(["place"])],
    ),
    "each column with values dropped by another side": (
        [*PLACE, lambda t: t.columns.drop(["key"], branch="run"), lambda t: t.columns.drop(["value"])],
        "values of 3 rows: give column place values on main where it is null (`update`), and try again",
        [lambda t: t.update({"place": "named_struct('x', 1, 'y', 2)"})],
    ),
    "rows, and all their columns dropped": (
        [lambda t: t.append(entries("c", 9), branch="run"), *REPLACED],
        (
            "values of 1 row: restore main to before its drop of columns (`restore`), try again, and make it once more "
            "on the result"
        ),
        [lambda t: t.restore("main~1")],
    ),
    "all columns dropped, and rows": (
        [*REPLACED_ON_RUN, lambda t: t.append(entries("c", 9))],
        (
            "values of 1 row: reset run to before its drop of columns (`branches.reset`), try again, and make it once "
            "more on the result"
        ),
        [lambda t: t.branches.reset("run", "run~1")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_advice_says_which_side_and_how(table: LanceTable, case: str) -> None:
    """With the advised change the merge succeeds."""
    steps, advice, advised = CASES[case]
    for step in steps:
        step(table)
    with pytest.raises(MergeConflictError) as caught:
        table.merge("run")
    assert f"no strategy settles {advice}" == caught.value.hint
    for step in advised:
        step(table)
    table.merge("run")
    assert table.count_rows() >= 3
