"""The two programs that write to one table, with the same methods for the same operations."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import lance
import pyarrow as pa
import pyarrow.compute as pc

from lance_dagster import LanceTable, Transaction
from lance_dagster.format.transaction import Restore
from lance_dagster.store import open_store
from tests.properties.replica import KEY
from tests.store.scripted import PlugPulledError, Request, ScriptedStore
from tests.table_factory import as_pylance, context_on

Opened = Callable[[str], lance.LanceDataset]


@dataclass(frozen=True, slots=True)
class PylanceWriter:
    """Pylance as a writer. `opened` returns its handle of a branch, which may be an old one."""

    opened: Opened
    name: ClassVar[str] = "pylance"

    @classmethod
    def at(cls, uri: str) -> "PylanceWriter":
        """Open the table anew for every operation."""
        return cls(lambda branch: as_pylance(LanceTable.open(uri), branch))

    def append(self, branch: str, rows: pa.Table) -> None:
        """Add rows."""
        self.opened(branch).insert(rows)

    def overwrite(self, branch: str, rows: pa.Table) -> None:
        """Overwrite the table."""
        lance.write_dataset(rows, self.opened(branch), mode="overwrite")

    def delete(self, branch: str, where: str) -> None:
        """Delete rows."""
        self.opened(branch).delete(where)

    def update(self, branch: str, values: Mapping[str, str], where: str) -> None:
        """Update rows."""
        self.opened(branch).update(dict(values), where=where)

    def upsert(self, branch: str, rows: pa.Table) -> None:
        """Insert rows, or replace those with the same key."""
        builder = self.opened(branch).merge_insert(KEY).when_matched_update_all().when_not_matched_insert_all()
        builder.execute(rows)

    def add_null(self, branch: str, name: str, kind: pa.DataType) -> None:
        """Add a column without values."""
        self.opened(branch).add_columns(pa.field(name, kind))

    def add_computed(self, branch: str, name: str, sql: str) -> None:
        """Add a column computed from an expression."""
        self.opened(branch).add_columns({name: sql})

    def add_function(self, branch: str, name: str) -> None:
        """Add a column with three times the key, computed by a function."""
        schema = pa.schema([(name, pa.int64())])

        @lance.batch_udf(output_schema=schema)
        def thrice(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch([pc.multiply(batch[KEY], 3)], schema=schema)

        self.opened(branch).add_columns(thrice, read_columns=[KEY])

    def drop(self, branch: str, name: str) -> None:
        """Drop a column."""
        self.opened(branch).drop_columns([name])

    def rename(self, branch: str, old: str, new: str) -> None:
        """Rename a column."""
        self.opened(branch).alter_columns({"path": old, "name": new})  # type: ignore[dict-item]

    def cast(self, branch: str, name: str, kind: pa.DataType) -> None:
        """Change the type of a column."""
        self.opened(branch).alter_columns({"path": name, "data_type": kind})  # type: ignore[dict-item]

    def configure(self, branch: str, key: str, value: str | None) -> None:
        """Set or delete a config key."""
        self.opened(branch).update_config({key: value})

    def describe(self, branch: str, key: str, value: str | None) -> None:
        """Set or delete a key of the table's metadata."""
        self.opened(branch).update_metadata({key: value})

    def compact(self, branch: str) -> None:
        """Rewrite small fragments as one."""
        self.opened(branch).optimize.compact_files()

    def restore(self, branch: str, number: int) -> None:
        """Restore a version."""
        self.opened(branch).checkout_version((None if branch == "main" else branch, number)).restore()

    def create_branch(self, name: str, parent: str, number: int) -> None:
        """Fork a branch."""
        self.opened(parent).create_branch(name, (None if parent == "main" else parent, number))

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        self.opened("main").branches.delete(name)

    def create_tag(self, name: str, branch: str, number: int) -> None:
        """Create a tag."""
        self.opened("main").tags.create(name, (None if branch == "main" else branch, number))

    def delete_tag(self, name: str) -> None:
        """Delete a tag."""
        self.opened("main").tags.delete(name)

    def index(self, branch: str, column: str, kind: str) -> None:
        """Create an index named after the column."""
        self.opened(branch).create_scalar_index(column, kind, name=f"of_{column}")  # type: ignore[arg-type]

    def drop_index(self, branch: str, name: str) -> None:
        """Drop an index."""
        self.opened(branch).drop_index(name)

    def optimize(self, branch: str) -> None:
        """Bring the indices up to date."""
        self.opened(branch).optimize.optimize_indices()

    def clean_up(self, branch: str) -> None:
        """Delete every version that may be deleted, and every file that is not needed."""
        self.opened(branch).cleanup_old_versions(
            older_than=timedelta(microseconds=1), delete_unverified=True, error_if_tagged_old_versions=False
        )


@dataclass(frozen=True, slots=True)
class PackageWriter:
    """This package as a writer. `opened` returns the table as another process has it, without a cache."""

    opened: Callable[[], LanceTable]
    name: ClassVar[str] = "package"

    @classmethod
    def at(cls, uri: str) -> "PackageWriter":
        """Open the table anew for every operation."""
        return cls(lambda: LanceTable.open(uri))

    def append(self, branch: str, rows: pa.Table) -> None:
        """Add rows."""
        self.opened().append(rows, branch=branch)

    def overwrite(self, branch: str, rows: pa.Table) -> None:
        """Overwrite the table."""
        self.opened().overwrite(rows, branch=branch)

    def replace(self, branch: str, where: str, rows: pa.Table) -> None:
        """Replace rows by others."""
        self.opened().replace_where(where, rows, branch=branch)

    def delete(self, branch: str, where: str) -> None:
        """Delete rows."""
        self.opened().delete(where, branch=branch)

    def update(self, branch: str, values: Mapping[str, str], where: str) -> None:
        """Update rows."""
        self.opened().update(values, where=where, branch=branch)

    def upsert(self, branch: str, rows: pa.Table) -> None:
        """Insert rows, or replace those with the same key."""
        self.opened().upsert(rows, on=[KEY], branch=branch)

    def add_null(self, branch: str, name: str, kind: pa.DataType) -> None:
        """Add a column without values."""
        self.opened().columns.add(pa.field(name, kind), branch=branch)

    def add_computed(self, branch: str, name: str, sql: str) -> None:
        """Add a column computed from an expression."""
        self.opened().columns.add({name: sql}, branch=branch)

    def add_function(self, branch: str, name: str) -> None:
        """Add a column with three times the key, computed by a function."""

        def thrice(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch([pc.multiply(batch[KEY], 3)], names=[name])

        self.opened().columns.add(thrice, reads=[KEY], branch=branch)

    def drop(self, branch: str, name: str) -> None:
        """Drop a column."""
        self.opened().columns.drop([name], branch=branch)

    def rename(self, branch: str, old: str, new: str) -> None:
        """Rename a column."""
        self.opened().columns.rename(old, new, branch=branch)

    def cast(self, branch: str, name: str, kind: pa.DataType) -> None:
        """Change the type of a column."""
        self.opened().columns.cast(name, kind, branch=branch)

    def configure(self, branch: str, key: str, value: str | None) -> None:
        """Set or delete a config key."""
        self.opened().config.set({key: value}, branch=branch)

    def describe(self, branch: str, key: str, value: str | None) -> None:
        """Set or delete a key of the table's metadata."""
        self.opened().config.set_table_metadata({key: value}, branch=branch)

    def compact(self, branch: str) -> None:
        """Rewrite small fragments as one."""
        self.opened().maintenance.compact(branch=branch)

    def restore(self, branch: str, number: int) -> None:
        """Restore a version."""
        table = self.opened()
        transaction = Transaction(
            read_version=table.head(branch).number, uuid=str(uuid.uuid4()), operation=Restore(version=number)
        )
        table.commit(transaction, branch=branch)

    def create_branch(self, name: str, parent: str, number: int) -> None:
        """Fork a branch."""
        self.opened().branches.create(name, f"{parent}@{number}")

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        self.opened().branches.delete(name)

    def create_tag(self, name: str, branch: str, number: int) -> None:
        """Create a tag."""
        self.opened().tags.create(name, f"{branch}@{number}")

    def delete_tag(self, name: str) -> None:
        """Delete a tag."""
        self.opened().tags.delete(name)

    def merge(self, source: str, dest: str) -> None:
        """Merge a branch into another."""
        self.opened().merge(source, into=dest)

    def resume(self, branch: str, transaction: Transaction) -> None:
        """Commit a transaction that was prepared earlier."""
        self.opened().commit(transaction, branch=branch)


def prepared(uri: str, branch: str, work: Callable[[PackageWriter], object]) -> Transaction | None:
    """Do something to a branch as a process that dies before it commits; return its transaction, if it has one."""
    manifests: list[Path] = []

    def script(request: Request) -> object:
        answer = request.send()
        if request.commits:
            manifests.append(Path(uri, request.key))
            raise PlugPulledError
        return answer

    try:
        work(PackageWriter(lambda: LanceTable(context_on(ScriptedStore(open_store(uri), script)))))
    except PlugPulledError:
        # The transaction is a part of the manifest, which is as if it had never been put once it was read.
        newest = LanceTable.open(uri).head(branch)
        state = context_on(open_store(uri)).versions.find(branch, newest.number)
        manifests[0].unlink()
        assert state is not None
        return state.transaction
    return None
