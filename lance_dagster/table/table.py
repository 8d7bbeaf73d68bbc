"""`LanceTable`: the one object a caller holds.

Every method that takes a ref takes a ref expression (`history.resolve`). Every method that writes makes exactly one
version, atomically: it is there whole or not at all, and readers of other versions notice nothing.
"""

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lance_dagster import datafiles
from lance_dagster.errors import AlreadyExistsError, RefNotFoundError, TableNotFoundError
from lance_dagster.format.layout import MAIN, check_tag_name
from lance_dagster.format.transaction import Transaction
from lance_dagster.history import branches as branching
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.log import first_parents
from lance_dagster.history.refs import READY, Branch, Tag
from lance_dagster.history.versions import State, Version
from lance_dagster.table import join as joining, write
from lance_dagster.table.join import MergePreview
from lance_dagster.table.parts import Parts, open_parts, schema_of
from lance_dagster.table.write import Note, Rows, create_empty


class LanceTable:
    """A Lance table with branches, tags and merges.

    Holds no open file and no lock, and is cheap to make. Use one per process.
    """

    def __init__(self, parts: Parts) -> None:
        """Wrap the parts of a table; callers use `open` or `create`."""
        self._parts = parts

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
        if table._parts.versions.newest(MAIN) is None:
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
        return open_parts(uri, storage_options).versions.newest(MAIN) is not None

    @property
    def uri(self) -> str:
        """The table's canonical URI: base paths are stored in this spelling, so maintenance should use it too."""
        return self._parts.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The credentials and endpoint given; secret."""
        return self._parts.storage_options

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

    def branches(self) -> dict[str, Branch]:
        """Return the branches by name, without `main` and without those being created or deleted."""
        return {name: found for name, found in self._parts.refs.branches().items() if found.state == READY}

    def tags(self) -> dict[str, Tag]:
        """Return the tags by name."""
        return self._parts.refs.tags()

    def schema(self, ref: str = MAIN) -> pa.Schema:
        """Return the Arrow schema of a version."""
        return schema_of(self._parts.at(ref))

    def count_rows(self, ref: str = MAIN, filter: str | None = None) -> int:
        """Count rows; without a filter this reads one manifest and no data."""
        state = self._parts.at(ref)
        return state.manifest.rows if filter is None else datafiles.count(self._parts.dataset(state), filter)

    def is_merged(self, source: str, into: str = MAIN) -> Version | None:
        """Return the version of `into` that contains all of `source`, or None when `source` has something new."""
        found = joining.find_merged(self._parts, self._parts.at(source), into)
        return None if found is None else self._described(found)

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

    def target(self, schema: pa.Schema | None = None, branch: str = MAIN) -> datafiles.WriteTarget:
        """Return what another process needs to write data files: `datafiles.write_files(target, batches)`.

        Args:
            schema: The columns of the files; None for those of the branch.
            branch: Whose schema is meant. The files can be committed to any branch.
        """
        head = self._parts.head(branch)
        return write.target(self._parts, schema or schema_of(head), head.manifest.file_version)

    def append(
        self,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
        replaces: Version | None = None,
    ) -> Version:
        """Add rows.

        Args:
            data: Arrow rows, or data files that are already staged.
            branch: The branch to commit to.
            message: What to say in the log.
            properties: Kept with the transaction.
            partitions: The partition keys the rows belong to. A merge compares them with what others claim.
            replaces: A version an earlier attempt of the same work made; the fragments it added are taken out in
                the same commit, so that a retry leaves no row twice.

        Raises:
            SchemaMismatchError: The rows do not fit the table; nothing was written.
            CommitConflictError: A commit that got in between replaced the table.
        """
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
        return self._described(write.append(self._parts, data, note, replaces))

    def overwrite(
        self,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
    ) -> Version:
        """Replace all rows, and the schema where the new rows do not fit the old one.

        Raises:
            CommitConflictError: Somebody else replaced the table meanwhile.
        """
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
        return self._described(write.overwrite(self._parts, data, note))

    def replace_where(
        self,
        predicate: str,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
    ) -> Version:
        """Take out the rows that match a condition and put others in, as one version.

        The new rows are not tested against the condition. A merge refuses when another branch replaced rows of the
        same partitions, or put rows there.

        Raises:
            SchemaMismatchError: The rows do not fit the table; nothing was written.
            InvalidInputError: The condition cannot be understood.
        """
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
        return self._described(write.replace_where(self._parts, predicate, data, note))

    def commit(self, transaction: Transaction, *, branch: str = MAIN) -> Version:
        """Commit a transaction, or find the version it made when it landed before.

        Raises:
            CommitConflictError: A version committed since it read the table contradicts it.
            CommitStateUnknownError: It may or may not have landed; commit it again.
        """
        self._parts.head(branch)
        return self._described(commit_transaction(self._parts.versions, branch, transaction))

    def create_branch(
        self,
        name: str,
        at: str = MAIN,
        *,
        exist_ok: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Branch:
        """Fork a branch from a version; no data is copied.

        Args:
            name: The new branch.
            at: The version to fork from.
            exist_ok: Return the branch of that name when there is one, wherever it was forked.
            metadata: Kept with the branch.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: The name is taken.
        """
        if name in self._parts.refs.tags():
            raise AlreadyExistsError(f"{name!r} is a tag of {self.uri}; a branch of that name would be ambiguous")
        return branching.create_branch(
            name,
            self._parts.at(at),
            self._parts.refs,
            self._parts.versions,
            exist_ok=exist_ok,
            metadata=metadata or {},
        )

    def delete_branch(self, name: str) -> None:
        """Delete a branch; its data files stay until they are collected.

        Raises:
            RefNotFoundError: There is no such branch.
            ConflictError: A tag or another branch refers to it.
        """
        branching.delete_branch(name, self._parts.refs)

    def create_tag(self, name: str, at: str, *, metadata: Mapping[str, str] | None = None) -> Tag:
        """Name a version.

        Raises:
            InvalidRefNameError: The name breaks a rule of the specification.
            AlreadyExistsError: The name is taken.
        """
        return self._parts.refs.add_tag(self._tag(name, at, metadata))

    def move_tag(
        self,
        name: str,
        at: str,
        *,
        expected: Version | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Tag:
        """Point a tag to another version by compare-and-swap; create it when there is none and none is expected.

        Args:
            name: The tag.
            at: The version to point to. A tag that points there already is left as it is.
            expected: Where the tag has to point now.
            metadata: Kept with the tag, in place of what was there.

        Raises:
            RefMovedError: It does not point to `expected`, or somebody moved it at the same time.
        """
        wanted = self._tag(name, at, metadata)
        current = self._parts.refs.tag(name)
        if current is None and expected is None:
            try:
                return self._parts.refs.add_tag(wanted)
            except AlreadyExistsError:
                current = self._parts.refs.tag(name)
        if current is not None and current.ref == wanted.ref and expected is None:
            return current
        return self._parts.refs.swap_tag(wanted, None if expected is None else str(expected))

    def delete_tag(self, name: str) -> None:
        """Delete a tag.

        Raises:
            RefNotFoundError: There is no such tag.
        """
        if self._parts.refs.tag(name) is None:
            raise RefNotFoundError(name, list(self._parts.refs.tags()), self.uri)
        self._parts.refs.remove_tag(name)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Merge a version into a branch; only metadata is written.

        Rows that either side appended, replaced or deleted since their merge base are carried over. When
        everything was merged before, the version that did it is returned and nothing is written.

        Args:
            source: The branch, or another ref expression, to merge.
            into: The branch to merge into.
            message: What to say in the log.
            properties: Kept with the transaction.

        Raises:
            MergeConflictError: With every reason why not; nothing was written.
            CommitStateUnknownError: It may or may not have landed; merge again, which finds out.
        """
        state = self._parts.at(source)
        return self._described(joining.merge(self._parts, state, into, message=message, properties=properties or {}))

    def preview_merge(self, source: str, into: str = MAIN) -> MergePreview:
        """Say what a merge would do now, every conflict included; nothing is written."""
        return joining.preview(self._parts, self._parts.at(source), into)

    def _described(self, state: State) -> Version:
        return self._parts.versions.describe(state)

    def _tag(self, name: str, at: str, metadata: Mapping[str, str] | None) -> Tag:
        check_tag_name(name)
        if self._parts.refs.branch(name) is not None or name == MAIN:
            raise AlreadyExistsError(f"{name!r} is a branch of {self.uri}; a tag of that name would be ambiguous")
        state = self._parts.at(at)
        return Tag(
            name=name,
            branch=state.branch,
            version=state.number,
            metadata=metadata or {},
            manifest_size=self._parts.versions.manifest_size(state),
        )


def _reopen(uri: str, storage_options: Mapping[str, str]) -> LanceTable:
    return LanceTable(open_parts(uri, storage_options))
