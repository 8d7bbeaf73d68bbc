"""Random histories by seed, run one after another; a history that breaks a law is shrunk to the steps that break it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from lance_dagster.errors import LanceDagsterError
from tests.properties.merging.laws import BrokenError
from tests.properties.merging.operations import OPERATIONS
from tests.properties.merging.pick_checks import CHECKED
from tests.properties.merging.revert_checks import RevertChecks
from tests.properties.merging.table_model import Merger, Step, TableModel, merge_by_package
from tests.properties.merging.tally import Tally

_PLACES = re.compile(r"/\S*|\d+")
KINDS = list(OPERATIONS)
WEIGHTS = [weight for _, weight in OPERATIONS.values()]
LIFE = ("append", "update", "delete", "upsert", "compact", "optimize")
TRIED = (0, 0, 1)
"""How many trials a history has."""
FINDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LanceDagsterError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pa.ArrowException,
)
"""Every way a history may end that it should not: a law that is broken, or an error nobody expected."""
MANY = 24
"""How often a shorter history is looked for, at most, for each step of the one that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that determines a history."""

    seed: int
    stable: bool
    rows: int
    fragments: int
    steps: tuple[Step, ...]

    def but(self, steps: Sequence[Step]) -> "History":
        """The same history with other steps."""
        return History(seed=self.seed, stable=self.stable, rows=self.rows, fragments=self.fragments, steps=tuple(steps))


@dataclass(slots=True)
class _Maker:
    """Makes up the steps of one history."""

    random: Random
    steps: list[Step] = field(default_factory=list)

    def step(self, kind: str, branch: str, other: str = "main") -> None:
        numbers = tuple(self.random.randrange(1 << 16) for _ in range(7))
        self.steps.append(Step(kind, branch, other, self.random.random() < 0.5, numbers))

    def work(self, branch: str, least: int, most: int) -> None:
        for kind in self.random.choices(KINDS, WEIGHTS, k=self.random.randint(least, most)):
            self.step(kind, branch)

    def merge(self, source: str, into: str) -> None:
        """A merge; sometimes also one in the other direction, or one of compacted sides."""
        beside = self.random.choices(["none", "reverse", "compacted"], [8, 1, 1])[0]
        number = len(self.steps)
        if beside != "none":
            self.step("fork", f"s{number}", source)
        if beside == "reverse":
            self.step("merge", into, f"s{number}")
        elif beside == "compacted":
            self.step("fork", f"d{number}", into)
            for letter in self.random.choice([("s",), ("d",), ("s", "d")]):
                self.step("compact", f"{letter}{number}")
            self.step("merge", f"s{number}", f"d{number}")
        self.step("merge", source, into)

    def pick_checks(self, dice: Random, lines: Sequence[str]) -> None:
        """Sometimes a cherry-pick, a revert or a restore, somewhere in the second half."""
        for _ in range(dice.choice(TRIED)):
            numbers = tuple(dice.randrange(1 << 16) for _ in range(7))
            step = Step(dice.choice(CHECKED), dice.choice(lines), "", dice.random() < 0.5, numbers)
            self.steps.insert(dice.randint(len(self.steps) // 2, len(self.steps)), step)

    def live(self, branch: str) -> None:
        """Changes of every usual kind, as they continue after a merge."""
        for kind in self.random.sample(LIFE, len(LIFE)):
            self.step(kind, branch)


def history(seed: int) -> History:
    """The history of a seed."""
    maker = _Maker(Random(seed))
    dice = maker.random
    maker.work("main", 0, 3)
    branches = [f"b{number}" for number in range(1, dice.choice([1, 1, 1, 2, 2, 3]) + 1)]
    for number, name in enumerate(branches):
        parent = "main" if number == 0 or dice.random() < 0.7 else branches[number - 1]
        maker.step("fork", name, parent)
    lines = ["main", *branches]
    most = dice.choice([1, 2, 3, 4, 6])
    for _ in range(dice.choice([1, 1, 2, 3])):
        for line in lines:
            maker.work(line, 0 if line == "main" else 1, most)
        for _ in range(dice.choice([1, 1, 2])):
            source = dice.choice(branches)
            dest = "main" if dice.random() < 0.6 else dice.choice([line for line in lines if line != source])
            pair = (source, dest) if dice.random() < 0.8 else (dest, source)
            maker.merge(*pair)
    maker.live(dice.choice(lines))
    maker.pick_checks(Random(f"trials of {seed}"), lines)
    return History(
        seed=seed,
        stable=dice.random() < 0.5,
        rows=dice.randint(2, 14),
        fragments=dice.randint(1, 4),
        steps=tuple(maker.steps),
    )


def run(
    one: History, tally: Tally, merger: Merger = merge_by_package, checks: type[RevertChecks] = RevertChecks
) -> None:
    """Run a history; raise `BrokenError`, with the steps of the history, when a law does not hold."""
    model = TableModel(stable=one.stable, tally=tally, merger=merger, checks=checks)
    try:
        model.start(one.rows, one.fragments)
        for step in one.steps:
            model.do(step)
        if one.seed % 8 == 1:
            model.look_at_orders()
        model.look_at_files()
        if one.seed % 4 == 0:
            model.look_back()
    except FINDS as error:
        error.add_note("\n".join([f"seed {one.seed}:", *model.told]))
        raise
    finally:
        model.close()


def broken(
    one: History, merger: Merger = merge_by_package, checks: type[RevertChecks] = RevertChecks
) -> Exception | None:
    """The failure of a history; None if there is none."""
    try:
        run(one, Tally(), merger, checks)
    except FINDS as error:
        return error
    return None


def signature(error: Exception) -> str:
    """The signature by which two failures count as the same."""
    if isinstance(error, BrokenError):
        return error.law
    return f"{type(error).__name__}: {_PLACES.sub('', str(error))[:60]}"


def shrunk(one: History, fails: Callable[[History], bool]) -> History:
    """Remove steps as long as the history still fails in the same way."""
    steps, size, left = list(one.steps), max(1, len(one.steps) // 2), MANY * len(one.steps)
    while size and left > 0:
        for start in range(len(steps) - size, -1, -size):
            shorter = steps[:start] + steps[start + size :]
            left -= 1
            if fails(one.but(shorter)):
                steps = shorter
        size //= 2
    return one.but(steps)
