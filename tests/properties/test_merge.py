"""Random histories of two branches, merged twice, against a model of rows.

Every row has a unique value, so a table is a set of values. A value has a key, which stands for its partition.
The model says which rows a merge has to give, or that it has to be refused:

* both sides claim a partition, and one of them claims to have replaced it;
* one side replaced the whole table, and the other did anything;
* a claim does not name partitions, and rows that the other side inserted or deleted match it.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings, strategies as st

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.table_factory import SCHEMA, as_pylance, contents

APPEND, REPLACE, OVERWRITE = "append", "replace", "overwrite"
KEYS = ("a", "b", "c", "d", "e")


@dataclass(frozen=True, slots=True)
class Action:
    """One commit: its claim, the number of rows of each key that it adds, and whether it names its partitions."""

    kind: str
    keys: tuple[str, ...]
    added: tuple[str, ...]
    named: bool

    @property
    def exclusive(self) -> bool:
        """Whether the commit claims that no other rows of its keys exist."""
        return self.kind != APPEND

    @property
    def tells(self) -> bool:
        """Whether the partitions that the commit names identify its rows."""
        return self.named and bool(self.keys)

    def claims(self, key: str) -> bool:
        """Whether the commit claims the rows of a key."""
        return self.kind == OVERWRITE or key in self.keys


@dataclass(slots=True)
class BranchModel:
    """A branch in the model: the keys of its rows by value, and its commits with the rows they put in and took out."""

    rows: dict[int, str] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    effects: list[tuple[set[int], set[int]]] = field(default_factory=list)

    def copy(self) -> "BranchModel":
        """The same rows, without commits."""
        return BranchModel(dict(self.rows))

    def do(self, action: Action, values: Iterator[int]) -> dict[int, str]:
        """Apply an action; return the rows that it adds."""
        self.actions.append(action)
        taken = {value for value, key in self.rows.items() if action.exclusive and action.claims(key)}
        self.rows = {value: key for value, key in self.rows.items() if value not in taken}
        new = {next(values): key for key in action.added}
        self.effects.append((set(new), taken))
        self.rows.update(new)
        return new


def subsets(most: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Some of the keys."""
    return st.lists(st.sampled_from(KEYS), min_size=1, max_size=most, unique=True).map(lambda keys: tuple(sorted(keys)))


@st.composite
def actions(draw: st.DrawFn, *, named: st.SearchStrategy[bool]) -> Action:
    """An append, a replace (also by no rows, which deletes), or rarely an overwrite."""
    kind = draw(st.sampled_from([*[APPEND] * 8, *[REPLACE] * 8, OVERWRITE]))
    keys = draw(subsets(2))
    added = keys if kind == APPEND else ()
    added += tuple(draw(st.lists(st.sampled_from(keys), max_size=2)))
    return Action(kind, keys, tuple(sorted(added)), draw(named))


def histories(most: int) -> st.SearchStrategy[list[Action]]:
    """The commits of a branch, most of which name their partitions."""
    return st.lists(actions(named=st.sampled_from([True] * 5 + [False])), max_size=most)


def commit(table: LanceTable, branch: str, action: Action, new: dict[int, str]) -> None:
    """Make the commit of the model on the table."""
    rows = pa.Table.from_pylist([{"key": key, "value": value} for value, key in new.items()], schema=SCHEMA)
    partitions = action.keys if action.named else ()
    if action.kind == APPEND:
        table.append(rows, branch=branch, partitions=partitions)
    elif action.kind == OVERWRITE:
        table.overwrite(rows, branch=branch, partitions=partitions)
    else:
        wanted = ", ".join(f"'{key}'" for key in action.keys)
        table.replace_where(f"key IN ({wanted})", rows, branch=branch, partitions=partitions)


def conflicts(base: BranchModel, source: BranchModel, dest: BranchModel, *, against: Sequence[Action]) -> bool:
    """Whether the model refuses to merge the source's commits since `base` with the dest's own commits."""
    claimed, others = _claims_that_count(base, source, source.actions), _claims_that_count(base, dest, against)
    return (
        any(_name_the_same(action, other) for action in claimed for other in others)
        or _found(claimed, against, _touched(base, dest, beside=source))
        or _found(others, source.actions, _touched(base, source, beside=dest))
    )


def _claims_that_count(base: BranchModel, side: BranchModel, made: Sequence[Action]) -> Sequence[Action]:
    """The actions whose claims count: those of a side that has the rows of the base again add no row to a partition.

    Of an action whose rows are gone and which took none out, nothing is left, unless it replaced the whole table.
    """
    left = [
        action
        for action, (put, taken) in zip(made, side.effects, strict=True)
        if action.kind == OVERWRITE or not put or taken or not put.isdisjoint(side.rows)
    ]
    return [action for action in left if action.exclusive] if side.rows == base.rows else left


def _name_the_same(action: Action, other: Action) -> bool:
    if not (action.exclusive or other.exclusive):
        return False
    if OVERWRITE in (action.kind, other.kind):
        return True
    return action.named and other.named and not set(action.keys).isdisjoint(other.keys)


def _touched(base: BranchModel, side: BranchModel, *, beside: BranchModel) -> set[str]:
    """The keys of the rows that only one side inserted, and of those that it deleted."""
    new = side.rows.keys() - base.rows.keys() - beside.rows.keys()
    return {side.rows[value] for value in new} | {base.rows[value] for value in base.rows.keys() - side.rows.keys()}


def _found(claiming: Sequence[Action], others: Sequence[Action], keys: set[str]) -> bool:
    """Whether a claim that names no partitions matches rows that the other side inserted or deleted."""
    return any(
        any(action.claims(key) for key in keys)
        for action in claiming
        if action.exclusive and any(not action.named or not other.tells for other in others)
    )


def merged(base: BranchModel, source: BranchModel, dest: BranchModel) -> dict[int, str]:
    """The rows of the base that both sides kept, and the rows that either side added."""
    everything = base.rows | source.rows | dest.rows
    return {
        value: row
        for value, row in everything.items()
        if (value in source.rows and value in dest.rows) or value not in base.rows
    }


def files(table: LanceTable) -> set[Path]:
    """Every file of a table."""
    return {path for path in Path(table.uri).rglob("*") if path.is_file()}


def merge_and_compare(
    table: LanceTable, base: BranchModel, source: BranchModel, dest: BranchModel, *, against: Sequence[Action]
) -> bool:
    """Merge `run` into main in the table and the model, and compare them; return False when both refuse."""
    before, number = files(table), table.head().number
    refusable = bool(source.actions) and conflicts(base, source, dest, against=against)
    try:
        version = table.merge("run")
    except MergeConflictError as error:
        reasons = error.conflicts
    else:
        reasons = ()
    if reasons:
        assert refusable
        assert before == files(table)
        assert number == table.head().number
        return False
    # Where both sides ended with the rows of the base, no row can be lost. The rules leave such a merge open: beside a
    # claim that names no partitions, the package compares rows, and finds none that changed.
    assert not refusable or source.rows == dest.rows == base.rows
    if source.actions:
        assert number + 1 == version.number
        dest.rows = merged(base, source, dest)
    assert rows_of(dest) == contents(table)
    assert version == table.merge("run")
    return True


def rows_of(side: BranchModel) -> list[tuple[str, int]]:
    """The rows of the model in the form in which the table gives them."""
    return sorted((key, value) for value, key in side.rows.items())


EMPTIED = Action(REPLACE, ("a",), (), named=True)
ADDED = Action(APPEND, ("a",), ("a",), named=True)
ADDED_TO_B = Action(APPEND, ("b",), ("b",), named=True)
EMPTIED_B = Action(REPLACE, ("b",), (), named=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=histories(3),
    on_source=histories(3),
    on_dest=histories(3),
    source_later=histories(2),
    dest_later=histories(1),
)
@example(
    before=[],
    on_source=[],
    on_dest=[ADDED],
    source_later=[ADDED, EMPTIED],
    dest_later=[replace(EMPTIED, named=False)],
)
@example(
    before=[],
    on_source=[],
    on_dest=[ADDED, EMPTIED_B],
    source_later=[ADDED_TO_B, replace(EMPTIED_B, named=False)],
    dest_later=[],
)
def test_a_merge_gives_what_the_model_says(
    tmp_path: Path,
    before: list[Action],
    on_source: list[Action],
    on_dest: list[Action],
    source_later: list[Action],
    dest_later: list[Action],
) -> None:
    """A merge gives the model's rows, or a refusal that writes nothing; a second merge of the branch adds its news."""
    table = LanceTable.create(tmp_path / uuid.uuid4().hex, SCHEMA)
    values = count(1)
    play = _player(table, values)
    dest = BranchModel()
    play(dest, "main", before)
    base = dest.copy()
    source, dest = base.copy(), base.copy()
    table.branches.create("run")
    play(source, "run", on_source)
    play(dest, "main", on_dest)
    assert rows_of(source) == contents(table, "run")
    if not merge_and_compare(table, base, source, dest, against=dest.actions):
        return
    base, source = source.copy(), source.copy()
    play(source, "run", source_later)
    play(dest, "main", dest_later)
    merge_and_compare(table, base, source, dest, against=dest.actions)
    as_pylance(table).validate()


def _player(table: LanceTable, values: Iterator[int]) -> Callable[[BranchModel, str, Sequence[Action]], None]:
    def play(side: BranchModel, branch: str, history: Sequence[Action]) -> None:
        for action in history:
            commit(table, branch, action, side.do(action, values))

    return play
