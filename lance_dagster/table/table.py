"""`LanceTable`: the one object a caller holds.

Every method that takes a ref takes a ref expression (`history.resolve`). Every method that writes makes exactly one
version, atomically: it is there whole or not at all, and readers of other versions notice nothing.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from lance_dagster import datafiles
from lance_dagster.edit import write
from lance_dagster.edit.write import create_empty
from lance_dagster.errors import (
    AlreadyExistsError,
    InvalidInputError,
    Remedy,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.history.context import open_parts, schema_of
from lance_dagster.history.table_uri import is_table_uri, parse_table_uri, table_uri
from lance_dagster.table.collecting import Collecting
from lance_dagster.table.diffing import Diffing
from lance_dagster.table.editing import Editing
from lance_dagster.table.evolving import Evolving
from lance_dagster.table.history import History
from lance_dagster.table.keeping import Keeping
from lance_dagster.table.merging import Merging
from lance_dagster.table.naming import Naming
from lance_dagster.table.standing import Surveying
from lance_dagster.table.tagging import Tagging
from lance_dagster.table.undoing import Undoing


class LanceTable(
    History, Editing, Evolving, Naming, Tagging, Merging, Undoing, Diffing, Surveying, Keeping, Collecting
):
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
            InvalidInputError: The URI's scheme or a storage option is not known, or it names a version, for `open_at`.
        """
        if is_table_uri(uri):
            raise InvalidInputError(
                "this URI names a version of a table: LanceTable.open_at opens the table and returns the ref too"
            )
        table = cls(open_parts(uri, storage_options))
        if not table._parts.versions.has_versions(MAIN):
            remedy = Remedy("check the path; tables are made from Python, with LanceTable.create")
            raise TableNotFoundError(f"no Lance table at {table.uri}", remedy=remedy)
        return table

    @classmethod
    def open_at(
        cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> tuple["LanceTable", str]:
        """Open a table by a URI that may name one of its versions, and return it with the ref expression.

        The ref is `main` where none is named. It is not looked up: `table.at(ref)` does that, once, when it is needed.

        Args:
            uri: `lance+<uri>?ref=<expression>`, such as `lance+s3://bucket/orders.lance?ref=production`; or what
                `open` takes. `%`, `?`, `#`, `&` and blanks are written `%25`, `%3F`, `%23`, `%26` and `%20` in the
                first form.
            storage_options: Credentials and endpoint, in pylance's vocabulary; never part of the URI.

        Raises:
            TableNotFoundError: There is no Lance table.
            InvalidInputError: The URI cannot be read, or carries something other than a ref.
        """
        if not is_table_uri(uri):
            return cls.open(uri, storage_options), MAIN
        place, ref = parse_table_uri(os.fspath(uri))
        return cls.open(place, storage_options), ref

    def uri_at(self, ref: str = MAIN) -> str:
        """Return one URI for this table and a ref expression, which `open_at` takes; it holds no credentials."""
        return table_uri(self.uri, ref)

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
        return open_parts(uri, storage_options).versions.has_versions(MAIN)

    def __repr__(self) -> str:
        """Show the URI and nothing secret."""
        return f"LanceTable({self.uri!r})"

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, str]]]:
        """Pickle as URI and options, for processes of the same job."""
        return _reopen, (self.uri, dict(self.storage_options))

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
