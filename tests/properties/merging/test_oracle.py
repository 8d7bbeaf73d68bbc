"""The rules that merges are compared with obey the laws of three-way merges, on versions of random histories."""

from collections.abc import Iterator
from itertools import product

import pyarrow as pa
import pytest

from tests.properties.merging.histories import history
from tests.properties.merging.laws import same_content
from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS, MergeInputs
from tests.properties.merging.oracle import expected
from tests.properties.merging.rows_model import Cell, Column, Made, Row, Snapshot
from tests.properties.merging.table_model import TableModel
from tests.properties.merging.tally import Tally

ID, WORD, NUMBER = (
    Column(token=1, name="id", type=pa.int64()),
    Column(token=2, name="word", type=pa.string()),
    Column(token=3, name="number", type=pa.int32()),
)


def state(*columns: Column, **rows: tuple[int, int]) -> Snapshot:
    """A snapshot with rows `r1`, `r2` and so on, each with the stamp of the row and that of its number."""
    made = {
        int(name[1:]): Row({1: Cell(int(name[1:]), 1), 2: Cell(f"w{row}", row), 3: Cell(cell, cell)}, row)
        for name, (row, cell) in rows.items()
    }
    return Snapshot(columns=columns or (ID, WORD, NUMBER), rows=made)


SAME, UPDATED, WRITTEN = (1, 1), (2, 1), (1, 2)
BASE = state(r1=SAME, r2=SAME)


@pytest.mark.parametrize(
    "source, dest, rows",
    [
        (state(r1=SAME, r2=UPDATED), BASE, {1: 1, 2: 2}),
        (BASE, state(r1=SAME, r2=UPDATED), {1: 1, 2: 2}),
        (state(r1=SAME), BASE, {1: 1}),
        (state(r1=SAME), state(r2=SAME), {}),
        (state(r1=SAME), state(r1=SAME), {1: 1}),
        (state(r1=SAME), state(r1=SAME, r2=UPDATED), None),
        (state(r1=SAME, r2=(3, 1)), state(r1=SAME, r2=UPDATED), None),
        (state(r1=SAME, r2=WRITTEN), state(r1=SAME, r2=UPDATED), {1: 1, 2: 2}),
        (state(r1=SAME, r2=WRITTEN), state(r1=SAME, r2=(2, 3)), None),
        (state(r1=SAME, r2=WRITTEN), state(r1=SAME, r2=(1, 3)), None),
        (state(r1=SAME, r2=WRITTEN), state(r1=SAME), {1: 1}),
        (state(r1=SAME, r2=SAME, r3=(5, 5)), state(r1=SAME, r2=SAME, r4=(6, 6)), {1: 1, 2: 1, 3: 5, 4: 6}),
        (state(r1=SAME, r2=SAME, r3=(5, 5)), state(r1=SAME, r2=SAME, r3=(6, 6)), None),
    ],
)
def test_rows(source: Snapshot, dest: Snapshot, rows: dict[int, int] | None) -> None:
    """Every combination of unchanged, updated, deleted and inserted has its result; None is a conflict."""
    outcome = expected(MergeInputs(BASE, source, dest))
    assert (rows is None) == outcome.must_refuse
    if rows is not None:
        assert rows == {uid: row.stamp for uid, row in outcome.result.rows.items()}


def test_strategies() -> None:
    """With a strategy, one side wins the rows in conflict, and no others."""
    inputs = MergeInputs(BASE, state(r1=(3, 1), r2=UPDATED), state(r1=(4, 1), r2=SAME, r3=(5, 5)))
    won = {strategy: expected(inputs, strategy).result.rows for strategy in (SOURCE_WINS, DEST_WINS)}
    assert [3, 2, 5] == [won[SOURCE_WINS][uid].stamp for uid in (1, 2, 3)]
    assert [4, 2, 5] == [won[DEST_WINS][uid].stamp for uid in (1, 2, 3)]


def versions(seed: int) -> Iterator[tuple[Made, Made, Made, TableModel]]:
    """A merge base and both sides from a random history."""
    one = history(seed)
    model = TableModel(stable=one.stable, tally=Tally())
    try:
        model.start(one.rows, one.fragments)
        for step in one.steps:
            if step.kind != "merge":
                model.do(step)
    finally:
        model.close()
    for left, right in product(model.graph.heads.values(), repeat=2):
        source, dest = model.graph.made[left], model.graph.made[right]
        for base in model.graph.bases(source.within, dest.within):
            yield base, source, dest, model


@pytest.mark.parametrize("seed", range(12))
def test_three_way_laws(seed: int) -> None:
    """A merge is symmetric; with an unchanged side it gives the other side, and of equal sides that side."""
    merges = [*versions(seed)]
    assert merges
    for base, source, dest, model in merges:
        did, others = (
            model.graph.since(source.within, dest.within),
            model.graph.since(dest.within, source.within),
        )
        there = expected(MergeInputs(base.snapshot, source.snapshot, dest.snapshot, did, others))
        back = expected(MergeInputs(base.snapshot, dest.snapshot, source.snapshot, others, did))
        assert there.must_refuse == back.must_refuse
        if not there.must_refuse:
            assert (there.kinds, True) == (back.kinds, same_content(there.result, back.result))
        only = expected(MergeInputs(base.snapshot, source.snapshot, base.snapshot, did))
        assert (False, True) == (only.must_refuse, same_content(source.snapshot, only.result))
        same = expected(MergeInputs(base.snapshot, source.snapshot, source.snapshot))
        assert (False, True) == (same.may_refuse, same_content(source.snapshot, same.result))
