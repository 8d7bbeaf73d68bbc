"""`LanceTable`: the one object a caller holds.

Every method that takes a ref takes a ref expression (`history.resolve`). Every method that writes makes exactly one
version, atomically: it is there whole or not at all, and readers of other versions notice nothing.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from lance_dagster import datafiles
from lance_dagster.errors import AlreadyExistsError, TableNotFoundError, UnsupportedFeatureError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.log import first_parents
from lance_dagster.history.versions import Version
from lance_dagster.table import write
from lance_dagster.table.editing import Editing
from lance_dagster.table.evolving import Evolving
from lance_dagster.table.keeping import Keeping
from lance_dagster.table.merging import Merging
from lance_dagster.table.naming import Naming
from lance_dagster.table.parts import open_parts, schema_of
from lance_dagster.table.write import create_empty


class LanceTable(Editing, Evolving, Naming, Merging, Keeping):
    """A Lance table with branches, tags and merges.

    Holds no open file and no lock, and is cheap to make. Use one per process.
    """

    @classmethod
    def open(cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> "LanceTable":
        """Open an existing table.

        Args:
            uri: A local path or `s3://bucket/path`.
            storage_options: Credentials and endpoint, in pylance's vocabulary.

        Raises:
            TableNotFoundError: There is no Lance table at `uri`.
            InvalidInputError: The URI's scheme or a storage option is not known.
        """
        table = cls(open_parts(uri, storage_options))
        if not table._parts.versions.exist(MAIN):
            raise TableNotFoundError(
                f"no Lance table at {table.uri}; create one with LanceTable.create, or check the path"
            )
        return table

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        schema: pa.Schema,
        *,
        storage_options: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> "LanceTable":
        """Create an empty table with stable row ids, as `main@1`.

        Args:
            uri: Where the table shall lie.
            schema: Its columns.
            storage_options: Credentials and endpoint, in pylance's vocabulary.
            exist_ok: Open the table that is there instead of failing; its schema is not compared.

        Raises:
            AlreadyExistsError: There is a table already.
        """
        parts = open_parts(uri, storage_options)
        if parts.versions.newest(MAIN) is None and create_empty(parts, schema) is not None:
            return cls(parts)
        if not exist_ok:
            raise AlreadyExistsError(f"there is a Lance table at {parts.uri} already")
        return cls(parts)

    @staticmethod
    def exists(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> bool:
        """Tell whether there is a Lance table."""
        return open_parts(uri, storage_options).versions.exist(MAIN)

    def __repr__(self) -> str:
        """Show the URI and nothing secret."""
        return f"LanceTable({self.uri!r})"

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, str]]]:
        """Pickle as URI and options, for processes of the same job."""
        return _reopen, (self.uri, dict(self.storage_options))

    def at(self, ref: str) -> Version:
        """Return the version a ref expression names."""
        return self._described(self._parts.at(ref))

    def head(self, branch: str = MAIN) -> Version:
        """Return the newest version of a branch."""
        return self._described(self._parts.head(branch))

    def versions_after(self, number: int, branch: str = MAIN) -> list[int]:
        """List the numbers of a branch's versions after `number`, ascending, from file names alone."""
        return [found for found in self._parts.versions.numbers(branch) if found > number]

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[Version]:
        """Return a version and those it was made from, newest first, along first parents and across forks.

        Versions that a clean-up removed are left out.
        """
        return first_parents(self._parts.versions, self._parts.at(ref), limit)

    def schema(self, ref: str = MAIN) -> pa.Schema:
        """Return the Arrow schema of a version."""
        return schema_of(self._parts.at(ref))

    def count_rows(self, ref: str = MAIN, filter: str | None = None) -> int:
        """Count rows; without a filter this reads one manifest and no data.

        Unless it was written by very old programs, which did not put down how many there are.
        """
        state = self._parts.at(ref)
        if filter is None:
            with suppress(UnsupportedFeatureError):
                return state.manifest.rows
        return datafiles.count(self._parts.dataset(state), filter)

    def to_lance(self, ref: str = MAIN) -> datafiles.LanceDataset:
        """Open a version with pylance, pinned to it, for vector search, SQL and everything else pylance reads."""
        return self._parts.dataset(self._parts.at(ref))

    def scan(
        self, ref: str = MAIN, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> pa.RecordBatchReader:
        """Read rows as a stream of record batches.

        Args:
            ref: The version to read.
            columns: The columns wanted, in that order; None for all.
            filter: A condition in Lance SQL, such as `"distance > 100 AND carrier = 'UA'"`.

        Raises:
            InvalidInputError: A column does not exist, or the filter cannot be understood.
        """
        return datafiles.scan(self.to_lance(ref), columns, filter)

    def read(self, ref: str = MAIN, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
        """Read rows into memory; the arguments are those of `scan`."""
        return datafiles.read(self.to_lance(ref), columns, filter)

    def target(
        self, schema: pa.Schema | None = None, branch: str = MAIN, base: str | None = None
    ) -> datafiles.WriteTarget:
        """Return what another process needs to write data files: `datafiles.write_files(target, batches)`.

        Args:
            schema: The columns of the files; None for those of the branch.
            branch: Whose schema is meant. The files can be committed to any branch.
            base: The name of the base path the files shall lie under, which the branch has to know; None for the
                table itself. Give the target's `base` on to the `StagedFiles` made of them.
        """
        head = self._parts.head(branch)
        return write.target(self._parts, schema or schema_of(head), head, base)


def _reopen(uri: str, storage_options: Mapping[str, str]) -> LanceTable:
    return LanceTable(open_parts(uri, storage_options))
