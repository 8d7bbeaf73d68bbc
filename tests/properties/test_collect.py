"""Random histories made twice, once with garbage collections in between: reads and operations have the same results."""

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable, MergeConflictError
from lance_dagster.errors import LanceDagsterError
from tests.backdating import DAY, age, files
from tests.soak import FACTOR, thinned
from tests.table_factory import SCHEMA, Rows, as_pylance, contents, entries

pytestmark = pytest.mark.slow

STEPS = 40
SEEDS = thinned(range(6 * max(1, FACTOR)), kept=lambda seed: seed < 2)
FEW: Mapping[str, int] = {"merge beside": 12, "merge": 4, "fork": 0, "delete branch": 0, "overwrite": 0}
"""How often things are done to a few branches that stay, and are merged with each other."""
Step = Callable[[LanceTable], object]


def branches(table: LanceTable) -> list[str]:
    """All branches, main first."""
    return ["main", *sorted(table.branches.list())]


def step(table: LanceTable, chance: random.Random, number: int, often: Mapping[str, int]) -> Step:
    """A random step for a table and its copy; `often` has the weights of operations that differ from the usual ones."""
    branch = chance.choice(branches(table))
    other = chance.choice(sorted(table.branches.list()) or ["main"])
    version = chance.choice(table.branches.version_numbers(branch)[-3:])
    steps: dict[str, tuple[int, Step]] = {
        "append": (8, lambda t: t.append(entries(f"k{number % 4}", number, number + 1000), branch=branch)),
        "replace": (
            3,
            lambda t: t.replace_where(f"key = 'k{number % 4}'", entries(f"k{number % 4}", number), branch=branch),
        ),
        "overwrite": (1, lambda t: t.overwrite(entries("o", number), branch=branch)),
        "delete": (3, lambda t: t.delete(f"value % 7 = {number % 7}", branch=branch)),
        "compact": (2, lambda t: t.maintenance.compact(branch=branch)),
        "pylance appends": (2, lambda t: as_pylance(t, branch).insert(entries("p", number))),
        "pylance deletes": (2, lambda t: as_pylance(t, branch).delete(f"value % 5 = {number % 5}")),
        "fork": (4, lambda t: t.branches.create(f"b{number}", branch)),
        "tag": (2, lambda t: t.tags.create(f"t{number}", f"{branch}@{version}")),
        "move tag": (3, lambda t: t.tags.move("production", f"{branch}@{version}")),
        "merge": (6, lambda t: t.merge(other)),
        "take in": (4, lambda t: t.merge("main", into=other)),
        "merge beside": (0, lambda t: t.merge(other, into=branch)),
        "delete branch": (5, lambda t: t.branches.delete(other)),
    }
    weights = [often.get(name, weight) for name, (weight, _) in steps.items()]
    return chance.choices([act for _, act in steps.values()], weights)[0]


def outcome(table: LanceTable, act: Step) -> str:
    """The result of an operation: success, or its error."""
    try:
        act(table)
    except MergeConflictError:
        return "conflict"
    except LanceDagsterError as error:
        return type(error).__name__
    return "done"


def state(table: LanceTable) -> dict[str, Rows]:
    """The rows of every branch and tag."""
    return {name: contents(table, name) for name in (*branches(table), *table.tags.list())}


def two_tables(folder: Path, *, stable: bool = True) -> tuple[LanceTable, LanceTable]:
    """Two tables that get the same operations; tables without stable row ids are made by pylance."""
    for name in ("one", "two"):
        lance.write_dataset(SCHEMA.empty_table(), folder / name, enable_stable_row_ids=stable)
    one, two = (LanceTable.open(folder / name, {"durability": "process"}) for name in ("one", "two"))
    return one, two


def collect(table: LanceTable, chance: random.Random) -> None:
    """Let time pass, and collect garbage with some retention rules."""
    age(table, chance.choice([timedelta(0), timedelta(hours=30), 3 * DAY, 40 * DAY]))
    report = table.maintenance.collect_garbage(
        chance.choice([timedelta(0), DAY, 10 * DAY]),
        grace=chance.choice([None, timedelta(0), timedelta(hours=2)]),
        keep_last=chance.choice([1, 3]),
        dry_run=False,
    )
    assert report.done


def together(collected: LanceTable, kept: LanceTable, chance: random.Random, often: Mapping[str, int]) -> None:
    """Do the same operations on two tables, and collect the garbage of one sometimes; check that both stay equal."""
    for number in range(STEPS):
        act = step(collected, chance, number, often)
        assert outcome(kept, act) == outcome(collected, act)
        if not number % 3:
            collect(collected, chance)
            assert state(kept) == state(collected)
    assert state(kept) == state(collected)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_collections_change_nothing_for_branches_merged_with_each_other(
    seed: int, tmp_path: Path, *, stable: bool
) -> None:
    """Collections change no merge of branches that were merged with each other, whose base may be on a third branch."""
    chance = random.Random(seed)
    collected, kept = two_tables(tmp_path, stable=stable)
    for each in (collected, kept):
        each.append(entries("a", *range(10)))
        for name in "abx":
            each.branches.create(name)
    together(collected, kept, chance, FEW)
    assert collected.maintenance.verify(deep=True).ok


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_whose_garbage_is_collected_is_like_one_that_keeps_it(seed: int, tmp_path: Path) -> None:
    """On a table whose garbage is collected, the same steps, including merges, have the same outcomes and rows."""
    chance = random.Random(seed)
    collected, kept = two_tables(tmp_path)
    together(collected, kept, chance, {"merge beside": 4})
    errors = [
        str(problem) for problem in collected.maintenance.verify(deep=True).problems if problem.severity == "error"
    ]
    assert [] == errors
    for name in branches(collected):
        as_pylance(collected, name).validate()
    for name in collected.tags.list():
        collected.tags.delete(name)
    while left := collected.branches.list():
        # The branches from which no other was forked come first.
        parents = {found.parent_branch for found in left.values()}
        for name in left.keys() - parents:
            collected.branches.delete(name)
    rows = contents(kept)
    age(collected, 60 * DAY)
    assert collected.maintenance.collect_garbage(timedelta(0), grace=timedelta(0), dry_run=False).done
    assert 1 == len(collected.branches.version_numbers())
    assert rows == contents(collected)
    data = {file.path for fragment in collected.to_lance().get_fragments() for file in fragment.data_files()}
    assert data == {path.removeprefix("data/") for path in files(collected, "data")}
