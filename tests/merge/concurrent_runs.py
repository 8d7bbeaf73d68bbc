"""A table that many runs write and are merged into, with a plain model of its expected rows."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError

PARTS = 12
_COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "part": pa.string(), "value": pa.int64()}
SCHEMA = pa.schema(_COLUMNS)
Rows = dict[int, tuple[str, int]]
_OPERATION_PAIRS: Mapping[str, tuple[str, str]] = {
    "two updates": ("update", "other update"),
    "an update and a deletion": ("update", "delete"),
    "a deletion and an update": ("delete", "update"),
    "two replacements": ("replace", "replace"),
    "a replacement and an append": ("replace", "append"),
    "an append and a replacement": ("append", "replace"),
    "an update and a replacement": ("update", "replace"),
    "two appends": ("append", "append"),
    "two deletions": ("delete", "delete"),
    "two equal updates": ("update", "update"),
}
"""The operations of two runs on one partition; the last three pairs do not conflict."""


def as_arrow(rows: Mapping[int, tuple[str, int]]) -> pa.Table:
    """Rows of the model for a table."""
    listed = [{"id": number, "part": part, "value": value} for number, (part, value) in rows.items()]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def as_rows(data: pa.Table) -> Rows:
    """Rows of a table for the model, which requires each id to occur once."""
    found = {row["id"]: (row["part"], row["value"]) for row in data.to_pylist()}
    assert len(found) == data.num_rows
    return found


class Rival(NamedTuple):
    """A second run on a partition: its name, and the rows that both leave there, or None if the two runs conflict."""

    name: str
    left: Rows | None


class ConcurrentRuns:
    """A table, a plain model of its main, and open runs, each with a partition of its own or with a rival."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Make a table of one fragment that has rows of all partitions."""
        self.random = random.Random(seed)
        self.table = LanceTable.create(folder / f"runs-{seed}", SCHEMA)
        self.ids = iter(range(10**9))
        self.rows: Rows = {}
        for number in range(PARTS):
            self.rows |= self.new(f"p{number}", 10)
        self.table.append(as_arrow(self.rows))
        self.touched = dict.fromkeys((f"p{number}" for number in range(PARTS)), self.table.head().number)
        self.open: dict[str, tuple[str, Rows]] = {}
        self.rivals: dict[str, Rival] = {}
        self.merged = self.refused = 0

    def new(self, part: str, count: int) -> Rows:
        """Rows with new ids."""
        return {next(self.ids): (part, self.random.randrange(1000)) for _ in range(count)}

    def fork(self, name: str) -> None:
        """Begin a run on a partition, fork from a version since which the partition is unchanged, and write."""
        head = self.table.head().number
        start = max(2, head - self.random.randrange(4))
        busy = {part for part, _ in self.open.values()}
        free = [part for part, version in self.touched.items() if part not in busy and version <= start]
        part = self.random.choice(free or [part for part in self.touched if part not in busy])
        self.table.branches.create(name, f"main@{max(start, self.touched[part])}")
        own = {number: row for number, row in self.rows.items() if row[0] == part}
        for _ in range(self.random.randrange(1, 4)):
            own = self.write(name, part, own, through_pylance=self.random.random() < 0.3)
        self.open[name] = part, own

    def fork_rivals(self, name: str) -> None:
        """Begin two runs on one partition, which update the same row, replace the partition, or do not conflict."""
        busy = {part for part, _ in self.open.values()}
        parts = {row[0] for row in self.rows.values()} - busy
        if not parts:
            return
        part = self.random.choice(sorted(parts))
        own = {number: row for number, row in self.rows.items() if row[0] == part}
        row, names = self.random.choice(sorted(own)), (name, f"{name}-rival")
        for each in names:
            self.table.branches.create(each)
        how = self.random.choice(list(_OPERATION_PAIRS))
        new = [self.new(part, 2), self.new(part, 3)]
        for each, operation, rows in zip(names, _OPERATION_PAIRS[how], new, strict=True):
            self.through_the_package(operation, each, f"id = {row}", as_arrow(rows))
        updated = own | {row: (part, own[row][1] + 1000)}
        without = {number: each for number, each in own.items() if number != row}
        first = {"update": updated, "delete": without, "append": own | new[0], "replace": new[0]}[
            _OPERATION_PAIRS[how][0]
        ]
        together = {"two appends": own | new[0] | new[1], "two deletions": without, "two equal updates": updated}
        self.open[name] = part, first
        self.rivals[name] = Rival(names[1], together.get(how))

    def write(self, branch: str, part: str, own: Rows, *, through_pylance: bool) -> Rows:
        """Change the rows of a partition, and return the rows that it has then."""
        operation = self.random.choice(
            ["append", "update", "delete", "compact", *([] if through_pylance else ["replace"])]
        )
        some = self.random.sample(sorted(own), len(own) // 3)
        where = f"id in ({', '.join(map(str, some or [-1]))})"
        new = self.new(part, self.random.randrange(1, 6)) if operation in ("append", "replace") else {}
        if through_pylance:
            self.through_pylance(operation, branch, where, as_arrow(new))
        else:
            self.through_the_package(operation, branch, where, as_arrow(new))
        if operation == "update":
            return own | {number: (part, own[number][1] + 1000) for number in some}
        if operation == "delete":
            return {number: row for number, row in own.items() if number not in some}
        return new if operation == "replace" else own | new

    def through_pylance(self, operation: str, branch: str, where: str, new: pa.Table) -> None:
        """Apply the operation through pylance."""
        handle = lance.dataset(self.table.uri)
        if branch != "main":
            handle = handle.checkout_version((branch, None))
        if operation == "append":
            handle.insert(new)
        elif operation == "update":
            handle.update({"value": "value + 1000"}, where=where)
        elif operation == "delete":
            handle.delete(where)
        else:
            handle.optimize.compact_files()

    def through_the_package(self, operation: str, branch: str, where: str, new: pa.Table) -> None:
        """Apply the operation as a run does."""
        if operation == "append":
            self.table.append(new, branch=branch, partitions=[new["part"][0].as_py()])
        elif operation == "update":
            self.table.update({"value": "value + 1000"}, where=where, branch=branch)
        elif operation == "other update":
            self.table.update({"value": "value + 2000"}, where=where, branch=branch)
        elif operation == "delete":
            self.table.delete(where, branch=branch)
        elif operation == "replace":
            part = new["part"][0].as_py()
            self.table.replace_where(f"part = '{part}'", new, branch=branch, partitions=[part])
        else:
            self.table.maintenance.compact(branch=branch)

    def write_main(self) -> None:
        """Write to main, on a partition that no open run has."""
        busy = {part for part, _ in self.open.values()}
        part = self.random.choice([part for part in self.touched if part not in busy])
        own = {number: row for number, row in self.rows.items() if row[0] == part}
        left = self.write("main", part, own, through_pylance=self.random.random() < 0.7)
        self.settle(part, left)

    def merge(self) -> None:
        """Merge one of the open runs."""
        name = self.random.choice(sorted(self.open))
        part, own = self.open.pop(name)
        self.table.merge(name)
        if self.random.random() < 0.7:
            self.table.branches.delete(name)
        self.merged += 1
        self.settle(part, own)
        rival = self.rivals.pop(name, None)
        if rival is not None:
            self.merge_rival(part, rival)

    def merge_rival(self, part: str, rival: Rival) -> None:
        """Merge the second run; if it conflicts with the first, it is refused, and main stays as it is."""
        head = self.table.head()
        try:
            self.table.merge(rival.name)
        except MergeConflictError:
            assert rival.left is None
            assert head == self.table.head()
            self.refused += 1
        else:
            assert rival.left is not None
            self.settle(part, rival.left)
        self.table.branches.delete(rival.name)

    def settle(self, part: str, own: Rows) -> None:
        """Record the rows that main has of a partition."""
        self.rows = {number: row for number, row in self.rows.items() if row[0] != part} | own
        self.touched[part] = self.table.head().number

    def check(self) -> None:
        """Compare main, read by the package and by pylance, with the model."""
        assert self.rows == as_rows(self.table.read())
        dataset = lance.dataset(self.table.uri)
        assert self.rows == as_rows(dataset.to_table())
        dataset.validate()
