"""A table with branches has the rows of plain dictionaries, whatever the package and pylance do in whatever order.

Every row has a unique value. For each branch the model keeps the present rows and all values that the branch or its
ancestors ever had. That is enough to predict a merge: a row that only one side has stays, unless the other side had it
once and deleted it. A merge may be refused; then nothing changes.
"""

import shutil
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from lance_dagster import LanceTable
from lance_dagster.errors import ConflictError, MergeConflictError, VersionNotFoundError
from tests.soak import examples
from tests.table_factory import SCHEMA, as_pylance, contents, new_table

KEYS = st.sampled_from("abcd")
MANY_KEYS = st.lists(KEYS, min_size=1, max_size=3)


class Tables(RuleBasedStateMachine):
    """One table, up to five branches, and their expected content."""

    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.uri = new_table(self.folder).uri
        self.rows: dict[str, dict[int, str]] = {"main": {}}
        self.ever: dict[str, set[int]] = {"main": set()}
        self.values = count(1)
        self.names = count(1)

    def teardown(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder)

    @property
    def table(self) -> LanceTable:
        """The table as another process sees it: nothing is cached between two steps."""
        return LanceTable.open(self.uri)

    def new(self, branch: str, keys: Sequence[str]) -> pa.Table:
        """New rows, which are recorded in the model."""
        rows = {next(self.values): key for key in keys}
        self.rows[branch].update(rows)
        self.ever[branch].update(rows)
        return pa.Table.from_pylist([{"key": key, "value": value} for value, key in rows.items()], schema=SCHEMA)

    @initialize(target=branches)
    def main(self) -> str:
        """The branch that always exists."""
        return "main"

    @rule(branch=branches, keys=MANY_KEYS, named=st.booleans())
    def append(self, branch: str, keys: list[str], *, named: bool) -> None:
        """Add rows through the package."""
        self.table.append(self.new(branch, keys), branch=branch, partitions=sorted(set(keys)) if named else ())

    @rule(branch=branches, keys=MANY_KEYS)
    def append_by_pylance(self, branch: str, keys: list[str]) -> None:
        """Add rows through pylance."""
        as_pylance(self.table, branch).insert(self.new(branch, keys))

    @rule(branch=branches, key=KEYS, rows=st.integers(min_value=0, max_value=2), named=st.booleans())
    def replace(self, branch: str, key: str, rows: int, *, named: bool) -> None:
        """Replace the rows of a key, sometimes by none."""
        self.rows[branch] = {value: own for value, own in self.rows[branch].items() if own != key}
        new = self.new(branch, [key] * rows)
        self.table.replace_where(f"key = '{key}'", new, branch=branch, partitions=[key] if named else ())

    @rule(branch=branches, divisor=st.integers(min_value=2, max_value=4))
    def delete_by_pylance(self, branch: str, divisor: int) -> None:
        """Delete rows of any fragment."""
        as_pylance(self.table, branch).delete(f"value % {divisor} = 0")
        self.rows[branch] = {value: key for value, key in self.rows[branch].items() if value % divisor}

    @rule()
    def compact(self) -> None:
        """Rewrite the fragments of main."""
        as_pylance(self.table).optimize.compact_files()

    @rule()
    def clean_up(self) -> None:
        """Clean up all files that main does not need, however new."""
        as_pylance(self.table).cleanup_old_versions(older_than=timedelta(microseconds=1), delete_unverified=True)

    @rule(target=branches, parent=branches, by_pylance=st.booleans())
    def fork(self, parent: str, *, by_pylance: bool) -> str:
        """Create a branch by either program."""
        name = f"b{next(self.names)}"
        if by_pylance:
            as_pylance(self.table, parent).create_branch(name)
        else:
            self.table.branches.create(name, parent)
        self.rows[name], self.ever[name] = dict(self.rows[parent]), set(self.ever[parent])
        return name

    @rule(target=branches, branch=consumes(branches))
    def drop(self, branch: str) -> str:
        """Delete a branch, unless it is needed."""
        if branch == "main":
            return branch
        try:
            self.table.branches.delete(branch)
        except ConflictError:
            return branch
        del self.rows[branch], self.ever[branch]
        return "main"

    @rule(source=branches, dest=branches)
    def merge(self, source: str, dest: str) -> None:
        """Merge any branch into any other, in any direction."""
        try:
            self.table.merge(source, into=dest)
        except MergeConflictError:
            return
        except VersionNotFoundError:
            # The merge base was cleaned up.
            return
        source_rows, dest_rows = self.rows[source], self.rows[dest]
        self.rows[dest] = {
            value: key
            for value, key in (source_rows | dest_rows).items()
            if (value in source_rows or value not in self.ever[source])
            and (value in dest_rows or value not in self.ever[dest])
        }
        self.ever[dest] |= self.ever[source]

    @invariant()
    def every_branch_has_its_rows(self) -> None:
        """The package and pylance read the model's rows, and the files are valid."""
        for branch, rows in self.rows.items():
            assert sorted((key, value) for value, key in rows.items()) == contents(self.table, branch)
            dataset = as_pylance(self.table, branch)
            dataset.validate()
            ids = dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist()
            assert len(rows) == dataset.count_rows() == len(set(ids))


TestTables = pytest.mark.scaled(Tables.TestCase)
TestTables.settings = settings(max_examples=examples(15), stateful_step_count=25)
