"""The context of an operation on a branch: its table and model, its random choices, and the report of its result.

An operation picks its rows and columns with `Dice`, which answers any question with a number. So when a step is left
out of a history, later steps pick other rows, but they can still be done.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from tests.properties.merging.rows_model import PART, Claim, Column, Node, Snapshot, Value
from tests.properties.replica import KEY
from tests.properties.writers import PackageWriter, PylanceWriter

T = TypeVar("T")
Writer = PackageWriter | PylanceWriter
FAST = {"durability": "process"}
PARTS = ("a", "b", "c", "d")
MOST_ROWS, MOST_COLUMNS = 24, 9
CASTS: dict[pa.DataType, pa.DataType] = {
    pa.int32(): pa.int64(),
    pa.int64(): pa.int32(),
    pa.string(): pa.large_string(),
    pa.large_string(): pa.string(),
}
PLACE = pa.struct([("city", pa.string()), ("zone", pa.int32())])
TYPES: tuple[pa.DataType, ...] = (pa.int32(), pa.int64(), pa.string(), pa.list_(pa.int32()), PLACE)
PINNED = (KEY, PART)
"""Columns that nobody renames, drops or changes, so that rows can be named in every version."""


@dataclass(slots=True)
class Dice:
    """A fixed sequence of random numbers: each question takes the next one, and after the last the first follows."""

    numbers: tuple[int, ...]
    thrown: Iterator[int] = field(default_factory=count)

    def below(self, most: int) -> int:
        """A number from 0 to below a limit."""
        return self.numbers[next(self.thrown) % len(self.numbers)] % most

    def pick(self, choices: list[T]) -> T:
        """One of several items."""
        return choices[self.below(len(choices))]

    def some(self, choices: list[T], most: int) -> list[T]:
        """A few consecutive items; none if there are none."""
        if not choices:
            return []
        first, number = self.below(len(choices)), 1 + self.below(most)
        return (choices + choices)[first : first + min(number, len(choices))]


@dataclass(slots=True)
class Names:
    """Unused row ids, tokens, names and values."""

    ids: Iterator[int] = field(default_factory=lambda: count(1))
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def value(self, kind: pa.DataType) -> Value:
        """A unique value, sometimes null."""
        number = next(self.numbers)
        if number % 11 == 0:
            return None
        if pa.types.is_struct(kind):
            return {"city": f"c{number}", "zone": number if number % 3 else None}
        if pa.types.is_list(kind):
            return [number] * (number % 3)
        return number if pa.types.is_integer(kind) else f"w{number}"

    def row(self, columns: tuple[Column, ...], part: str) -> dict[int, Value]:
        """A new row."""
        return self.filled(columns, next(self.ids), part)

    def filled(self, columns: tuple[Column, ...], uid: int, part: str) -> dict[int, Value]:
        """Values for every column of a row."""
        given: dict[int, Value] = {}
        for column in columns:
            pinned: dict[str, Value] = {KEY: uid, PART: part}
            value = pinned.get(column.name)
            while value is None:
                value = self.value(column.type)
                if column.nullable:
                    break
            given[column.token] = value
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """The table, the branch and the model on which an operation works."""

    uri: str
    branch: str
    seen: Snapshot
    names: Names
    dice: Dice
    by_package: bool
    line: Mapping[Node, Snapshot]
    taken: frozenset[int] = frozenset()
    """Ids of rows that other branches put in and this one has not."""

    @property
    def table(self) -> LanceTable:
        """The table as a new process opens it."""
        return LanceTable.open(self.uri, FAST)

    @property
    def dataset(self) -> lance.LanceDataset:
        """The branch as pylance opens it."""
        return opened(self.uri, self.branch)

    @property
    def writer(self) -> Writer:
        """The program that does the operation."""
        return (
            PackageWriter(lambda: LanceTable.open(self.uri, FAST))
            if self.by_package
            else PylanceWriter(lambda b: opened(self.uri, b))
        )

    @property
    def stamp(self) -> int:
        """A new stamp for a write."""
        return next(self.names.numbers)

    def uids(self, most: int = 2) -> list[int]:
        """The ids of some existing rows."""
        return self.dice.some(sorted(self.seen.rows), most)

    def new_rows(self, most: int = 3, part: str | None = None) -> dict[int, dict[int, Value]]:
        """Some new rows, all of one partition."""
        token = self.seen.columns[0].token
        part = part or self.dice.pick(list(PARTS))
        number = 1 + self.dice.below(most) if len(self.seen.rows) < MOST_ROWS else 1
        rows = [self.names.row(self.seen.columns, part) for _ in range(number)]
        return {int(str(row[token])): row for row in rows}

    def free_column(self, *, scalar: bool = False, unindexed: bool = False) -> Column | None:
        """A column that may be changed."""
        choices = [
            column
            for column in self.seen.columns
            if column.name not in PINNED
            and not (scalar and column.type not in CASTS)
            and not (unindexed and column.token in self.seen.indices.values())
        ]
        return self.dice.pick(choices) if choices else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResult:
    """The result of an operation: a description, the resulting content of the branch, and the claims."""

    did: str
    told: str
    result: Snapshot
    claims: tuple[Claim, ...] = ()
    partitions: tuple[str, ...] = ()
    restored: Node | None = None


def opened(uri: str, branch: str) -> lance.LanceDataset:
    """A branch as pylance opens it."""
    dataset = lance.dataset(uri)
    return dataset if branch == "main" else dataset.checkout_version((branch, None))


def where(uids: list[int]) -> str:
    """The SQL predicate that selects rows by their ids."""
    return f"{KEY} IN ({', '.join(map(str, sorted(uids)))})"
