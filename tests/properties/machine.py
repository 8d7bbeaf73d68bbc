"""The state of a random history: one table on disk, the model of each branch, and the comparison of both."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from lance_dagster import LanceTable, Transaction
from lance_dagster.errors import CommitConflictError
from tests.properties import operations
from tests.properties.operations import Operation
from tests.properties.replica import Column, Condition, Line, Snapshot, by_null, by_remainder, by_value
from tests.properties.replica_checks import answers, checked_version, same_for_the_package
from tests.properties.writers import PackageWriter, PylanceWriter
from tests.table_factory import as_pylance

FileVersion = Literal["2.0", "2.1", "2.2"]
MOST_ROWS, MOST_COLUMNS = 24, 5
TYPES: tuple[pa.DataType, ...] = (pa.int64(), pa.int32(), pa.string(), pa.float64())
COUNTED: Counter[str] = Counter()
"""How often each kind of step was done or refused, over all histories of the process."""
# The errors that pylance raises after a lost race: they have no common class.
TOO_LATE = (CommitConflictError, OSError, ValueError, RuntimeError)


class Machine(RuleBasedStateMachine):
    """One table, and the model of what it should contain."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.uri = str(self.folder / "table")
        self.package, self.pylance = PackageWriter.at(self.uri), PylanceWriter.at(self.uri)
        self.lines: dict[str, Line] = {}
        self.tags: dict[str, tuple[str, int]] = {}
        self.handles: list[tuple[str, Snapshot, lance.LanceDataset]] = []
        self.drafts: list[tuple[str, Operation, Transaction]] = []
        self.keys, self.names, self.tokens = count(1), count(1), count(1)
        self.stable = True

    def teardown(self) -> None:
        """Check every version once more, and delete all files."""
        for branch, line in self.lines.items():
            for number in sorted(line.versions):
                self.look_at(branch, number)
        shutil.rmtree(self.folder)

    def start(self, *, stable: bool, file_version: FileVersion, rows: int) -> None:
        """Create the table."""
        empty = Snapshot(columns=(self.column("word", pa.string()), self.column("number", pa.int64())))
        snapshot = empty.with_rows(empty.made_up(self.new_keys(rows)))
        data = snapshot.arrow(snapshot.rows)
        lance.write_dataset(data, self.uri, data_storage_version=file_version, enable_stable_row_ids=stable)
        self.stable = stable
        self.lines["main"] = Line({0: empty})
        self.settle("main", snapshot)
        del self.lines["main"].versions[0]

    def column(self, name: str, kind: pa.DataType) -> Column:
        """A new column."""
        return Column(next(self.tokens), name, kind)

    def new_keys(self, number: int) -> list[int]:
        """Keys that no row has ever had."""
        return [next(self.keys) for _ in range(number)]

    def new_name(self, letter: str) -> str:
        """A name that was never used before."""
        return f"{letter}{next(self.names)}"

    def branch(self, data: st.DataObject) -> str:
        """Any branch."""
        return data.draw(st.sampled_from(["main", *self.lines]), label="branch")

    def side(self, data: st.DataObject) -> PackageWriter | PylanceWriter:
        """The program that makes the change."""
        return self.package if data.draw(st.booleans(), label="by the package") else self.pylance

    def any_version(self, data: st.DataObject, branch: str) -> int:
        """A version of a branch that was not garbage-collected."""
        return data.draw(st.sampled_from(sorted(self.lines[branch].versions)), label="version")

    def opened(self, branch: str, number: int | None = None) -> lance.LanceDataset:
        """A branch, or a version of it, opened by pylance."""
        dataset = as_pylance(LanceTable.open(self.uri), branch)
        return dataset if number is None else dataset.checkout_version((None if branch == "main" else branch, number))

    def settle(self, branch: str, *candidates: Snapshot) -> None:
        """Check that the head of a branch is one of the possible outcomes, and record it in the model."""
        line, table = self.lines[branch], LanceTable.open(self.uri)
        before, head = line.number, line.head
        dataset = self.opened(branch)
        assert dataset.version >= before, "a version was lost"
        found = checked_version(dataset, candidates, stable=self.stable)
        same_for_the_package(table, branch, dataset)
        answers(dataset, found, dataset.version)
        for between in table.branches.version_numbers(branch, after=before):
            line.versions[between] = head
        ever = found.ever.union(row.stamp for row in found.rows.values())
        line.versions[dataset.version] = replace(found, ever=ever)

    def look_at(self, branch: str, number: int) -> None:
        """Check that a version has not changed."""
        checked_version(self.opened(branch, number), [self.lines[branch].versions[number]], stable=self.stable)

    def commit(self, kind: str, branch: str, act: Callable[[], object], *candidates: Snapshot) -> None:
        """Do a change that has to succeed."""
        COUNTED[kind] += 1
        act()
        self.settle(branch, *candidates)

    def attempt(self, kind: str, branch: str, act: Callable[[], object], candidates: Sequence[Snapshot]) -> None:
        """Do a change that may come too late; a refused change must have no effect."""
        line = self.lines[branch]
        try:
            act()
        except TOO_LATE:
            COUNTED[f"{kind} refused"] += 1
            assert line.number == self.opened(branch).version
            candidates = [line.head]
        else:
            COUNTED[kind] += 1
        self.settle(branch, *candidates)

    def work(self, data: st.DataObject, seen: Snapshot, kinds: Sequence[str] = operations.KINDS) -> Operation:
        """A change of rows, prepared on a version."""
        kind = data.draw(st.sampled_from(kinds), label="kind")
        new = self.new_keys(data.draw(st.integers(1, 3), label="new") if len(seen.rows) < MOST_ROWS else 0)
        if not seen.rows or (kind == "append" and new):
            return operations.append(seen, new or self.new_keys(1))
        keys = data.draw(
            st.lists(st.sampled_from(sorted(seen.rows)), min_size=1, max_size=4, unique=True), label="keys"
        )
        column = data.draw(st.sampled_from(seen.columns), label="column") if seen.columns else None
        if kind == "update" and column is not None:
            return operations.update(seen, keys, column, keys[0] + 1)
        if kind == "upsert":
            return operations.upsert(seen, keys, new, len(keys))
        if kind == "upsert partly" and column is not None:
            return operations.upsert_partly(seen, keys, new, column)
        if kind == "replace":
            return operations.replace_rows(seen, keys, new)
        return operations.delete(seen, keys)

    def column_work(self, data: st.DataObject, seen: Snapshot) -> Operation:
        """A change of columns, prepared on a version."""
        kind = data.draw(st.sampled_from(operations.COLUMN_KINDS), label="kind")
        column = data.draw(st.sampled_from(seen.columns), label="column") if seen.columns else None
        if column is not None and kind == "drop":
            return operations.drop(column)
        if column is not None and kind == "rename":
            return operations.rename(column, self.new_name("n"))
        # Neither program casts an indexed column.
        free = column is not None and column.type in operations.CASTS and column.token not in seen.indices.values()
        if column is not None and kind == "cast" and free:
            return operations.cast(column, next(self.tokens))
        if kind == "add null":
            return operations.add_null(self.column(self.new_name("c"), data.draw(st.sampled_from(TYPES), label="type")))
        return operations.add_computed(self.column(self.new_name("c"), pa.int64()))

    def any_work(self, data: st.DataObject, seen: Snapshot, kinds: Sequence[str]) -> Operation:
        """A change of rows, or sometimes of columns."""
        columns = len(seen.columns) < MOST_COLUMNS and data.draw(st.integers(0, 3), label="of columns") == 3
        return self.column_work(data, seen) if columns else self.work(data, seen, kinds)

    def condition(self, data: st.DataObject, head: Snapshot) -> Condition:
        """A filter of any kind."""
        choices = [by_remainder(divisor) for divisor in (2, 3, 5)]
        for column in head.columns:
            value = column.made_up(len(head.rows) + 1)
            choices.append(by_null(column) if value is None else by_value(column, value))
        return choices[data.draw(st.integers(0, len(choices) - 1), label="condition")]
