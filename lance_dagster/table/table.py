"""`LanceTable`: the one object a caller holds.

Every method that makes a version makes it atomically: the version exists completely or not at all, and readers of other
versions are not affected. Operations on branches, tags, columns, settings and files are in the namespaces
`table.branches`, `table.tags`, `table.columns`, `table.config` and `table.maintenance`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import pyarrow as pa

from lance_dagster import datafiles
from lance_dagster.datafiles.writing import StagedFiles, WriteTarget
from lance_dagster.diff import diff
from lance_dagster.diff.diff import Diff
from lance_dagster.edit import row_edits, staged_files, staged_upsert, write
from lance_dagster.edit.creation import CreateOptions, create
from lance_dagster.edit.upsert import Rules, When, upsert
from lance_dagster.edit.write import CommitInfo, Rows
from lance_dagster.edit.write_result import WriteResult, Written
from lance_dagster.errors import Remedy, TableNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import Transaction
from lance_dagster.history.context import Properties, Ref, TableContext, first_parent_log, full_log, open_context
from lance_dagster.history.log import LogFilter
from lance_dagster.history.table_uri import check_table_alone
from lance_dagster.history.versions import State, Version
from lance_dagster.merge import merge_commit, picks, preview
from lance_dagster.merge.merge_commit import MERGE_COMMIT, MergeMode, MergeOptions
from lance_dagster.merge.picks import PickOptions
from lance_dagster.merge.preview import MergePreview
from lance_dagster.merge.rules.strategy import Strategy
from lance_dagster.table.branches import Branches
from lance_dagster.table.columns import Columns
from lance_dagster.table.config import Config
from lance_dagster.table.maintenance import Maintenance
from lance_dagster.table.tags import Tags


# Unions are quoted in the signatures: `help` would write them out, on lines of 400 characters.
class LanceTable:
    """A Lance table with branches, tags and merges.

    A table object holds no open file and no lock, and is cheap to create. Use one per process.

    `ref` arguments take a branch, a tag, an expression such as `"main@17"`, `"production~2"` or
    `"main@{2026-01-31}"`, a commit id, or a `Version`; so do `source`, which is merged, and `at`, to which a branch or
    tag is to point. `branch` and `into` name the branch that gets a new version, `name` what a namespace holds.
    `message` is the commit message that the log shows, `properties` are stored with the transaction.

    A ref that names nothing raises `RefNotFoundError`, a ref whose version was cleaned up raises
    `VersionNotFoundError`. When others commit meanwhile, a write is rebased or repeated; it raises
    `CommitConflictError` where other writers replaced the table or were faster at each attempt, and
    `CommitStateUnknownError` where it may or may not have landed.
    """

    def __init__(self, context: TableContext) -> None:
        """Wrap the context of a table; use `open` or `create` instead."""
        self._context = context

    @classmethod
    def open(cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> "LanceTable":
        """Open an existing table.

        Args:
            uri: A local path or `s3://bucket/path`. `split_table_uri` splits a URI that names a version.
            storage_options: Credentials and endpoint, under pylance's names.

        Raises:
            TableNotFoundError: There is no Lance table at `uri`.
            InvalidInputError: The URI's scheme or a storage option is unknown, or the URI names a version or a file.
        """
        check_table_alone(uri)
        table = cls(open_context(uri, storage_options))
        if not table._context.versions.has_versions(MAIN):
            remedy = Remedy("check the path; LanceTable.create and `lance-dagster table create` make a table")
            raise TableNotFoundError(f"no Lance table at {table.uri}", remedy=remedy)
        return table

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        schema: pa.Schema,
        *,
        storage_options: Mapping[str, str] | None = None,
        message: str | None = None,
        properties: "Properties" = None,
        **options: Unpack[CreateOptions],
    ) -> "LanceTable":
        """Create an empty table with stable row ids, as `main@1`.

        Args:
            uri: The place of the new table: a local path or `s3://bucket/path`.
            schema: Its columns.
            storage_options: As for `open`.
            message: The commit message.
            properties: Stored with the transaction.
            **options: `exist_ok=True` opens an existing table instead of failing; its schema and config are not
                compared. `config` is the table config of the first version, so that no version exists without it.

        Raises:
            AlreadyExistsError: There is a table already.
            InvalidInputError: As for `open`; or the place is a base path of another table, or in a folder of a table.
        """
        check_table_alone(uri)
        stored_properties = CommitInfo.of(MAIN, message, properties).as_properties()
        context = open_context(uri, storage_options)
        create(context, schema, stored_properties, **options)
        return cls(context)

    @staticmethod
    def exists(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> bool:
        """Return whether there is a Lance table; the URI of a version or of a file is refused, as by `open`."""
        check_table_alone(uri)
        return open_context(uri, storage_options).versions.has_versions(MAIN)

    def __repr__(self) -> str:
        """Show the URI and nothing secret."""
        return f"LanceTable({self.uri!r})"

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, str]]]:
        """Pickle as URI and options, for processes of the same job."""
        # The cache of manifests and open connections stay behind.
        return _reopen, (self.uri, dict(self.storage_options))

    @property
    def uri(self) -> str:
        """The table's canonical URI; base paths are stored in this spelling, so pylance's maintenance needs it too."""
        return self._context.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The credentials and endpoint given; secret."""
        return self._context.storage_options

    @property
    def branches(self) -> Branches:
        """Create, list, compare, protect and delete branches."""
        # A namespace holds only the context, so it is made on each access.
        return Branches(self._context)

    @property
    def tags(self) -> Tags:
        """Create, move, roll back and delete tags."""
        return Tags(self._context)

    @property
    def columns(self) -> Columns:
        """Add, drop, rename, reorder and cast columns."""
        return Columns(self._context)

    @property
    def config(self) -> Config:
        """Read and change settings, table metadata and schema metadata."""
        return Config(self._context)

    @property
    def maintenance(self) -> "Maintenance[LanceTable]":
        """Compact, verify, move and clone the table; collect garbage; manage indices and base paths."""
        return Maintenance(self._context, LanceTable)

    def at(self, ref: "Ref") -> "Version":
        """Return the version a ref names."""
        return self._described(self._context.at(ref))

    def head(self, branch: str = MAIN) -> "Version":
        """Return the newest version of a branch."""
        return self._described(self._context.head(branch))

    def log(
        self,
        ref: "Ref" = MAIN,
        *,
        after: "Ref | None" = None,
        limit: int | None = None,
        first_parent: bool = True,
        only: LogFilter | None = None,
    ) -> list[Version]:
        """Return a version and its ancestors, newest first.

        Versions that a clean-up removed are left out; a version whose parent was removed is marked as `cut`.

        Args:
            ref: The version to begin with.
            after: Leave out what this version contains: `log("run/4f2a", after="main")` lists the branch's own
                versions.
            limit: The maximum number of versions.
            first_parent: Follow only first parents, across forks: the states of the branch over time. Otherwise the log
                has everything that the version contains, merged versions too, each once and before its parents.
            only: A filter that the returned versions have to match.
        """
        if first_parent:
            return first_parent_log(self._context, ref, after=after, limit=limit, only=only)
        return [version for version, _ in full_log(self._context, ref, after=after, limit=limit, only=only)]

    def diff(self, before: "Ref", after: "Ref", *, on: Sequence[str] | None = None, since_base: bool = False) -> "Diff":
        """Compare version `before` with version `after`, on any branches: `before..after`.

        Two manifests are read; rows only when they are asked for.

        Args:
            before: The older version of the comparison.
            after: The newer version of the comparison.
            since_base: Whether to compare with the merge base of both instead of `before`, `before...after`: the
                changes of `after` since the merge base. What was merged from `before` into `after` is not a change
                then.
            on: The key columns that identify rows, such as `["id"]`. Without them rows are identified by stable row id;
                in a table without these by all values, so that a changed row counts as one removed and one added.

        Raises:
            InvalidInputError: A key column is not in both versions; or they have no merge base, where it is needed.
            VersionNotFoundError: The merge base was cleaned up.
        """
        old, new = self._context.recall(before), self._context.recall(after)
        if not since_base:
            return diff.diff(self._context, old, new, on=on)
        base = merge_commit.base_of(self._context, old, new)
        # The result is compared from the merge base, so it has to record which version the caller named.
        return diff.diff(self._context, base, new, on=on, base_of=str(old))

    def schema(self, ref: "Ref" = MAIN) -> pa.Schema:
        """Return the Arrow schema of a version."""
        return self._context.recall(ref).schema

    def count_rows(self, ref: "Ref" = MAIN, filter: str | None = None) -> int:
        """Count rows; without a filter this reads one manifest and no data.

        A version written by a very old program does not record how many rows it has; then rows are counted.
        """
        if filter is None:
            return self._context.count_rows(self._context.recall(ref))
        return self._context.count_rows(self._context.at(ref), filter)

    def read(
        self,
        ref: "Ref" = MAIN,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        isolated: bool = False,
    ) -> pa.Table:
        """Read rows into memory; arguments as for `scan`."""
        if isolated:
            return self.scan(ref, columns, filter, isolated=True).read_all()
        return self._context.read(self._context.at(ref), columns, filter)

    def scan(
        self,
        ref: "Ref" = MAIN,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        isolated: bool = False,
    ) -> pa.RecordBatchReader:
        """Read rows as a stream of record batches.

        Args:
            ref: The version to read.
            columns: The columns to read, in that order; None for all.
            filter: A predicate in Lance SQL, such as `"distance > 100 AND carrier = 'UA'"`.
            isolated: Read in a process of its own, which takes a second or two to start. Damage that ends this process
                is raised as an error; its memory is limited to 16 times the size of the data files, at least 4 GiB.
                Rows that were read before the error may have been returned.

        Raises:
            InvalidInputError: A column does not exist, or the filter is invalid.
            CorruptFileError: A file is damaged, and the damage was detected before or during the read.
        """
        if isolated:
            return self._context.scan_isolated(self._context.at(ref), columns, filter)
        return self._context.scan(self._context.at(ref), columns, filter)

    def to_lance(self, ref: "Ref" = MAIN, *, rows_only: bool = False) -> "datafiles.LanceDataset":
        """Open a version with pylance, pinned to it, for all that pylance reads; `rows_only` saves three requests."""
        # With `rows_only`, a version that was read before is not asked for again, and a version of a branch is opened
        # without `main`: such a dataset knows neither tags nor other branches.
        context = self._context
        return context.open_rows(context.recall(ref)) if rows_only else context.dataset(context.at(ref))

    def append(
        self,
        data: "Rows",
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: "Properties" = None,
        partitions: Sequence[str] = (),
        replaces: Version | None = None,
    ) -> "WriteResult":
        """Add rows.

        Args:
            data: Arrow rows, or data files that are already staged.
            partitions: The partition keys of the rows. A merge compares them with the claims of other commits.
            replaces: A version that an earlier attempt of the same work made; the fragments it added are removed in
                the same commit, so that a retry duplicates no row.

        Raises:
            SchemaMismatchError: The rows do not fit the table; nothing was written.
        """
        info = CommitInfo.of(branch, message, properties, partitions)
        return self._result(write.append(self._context, data, info, replaces))

    def overwrite(
        self,
        data: "Rows",
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: "Properties" = None,
        partitions: Sequence[str] = (),
    ) -> "WriteResult":
        """Replace all rows, and the schema if the new rows do not fit it; arguments as for `append`."""
        info = CommitInfo.of(branch, message, properties, partitions)
        return self._result(write.overwrite(self._context, data, info))

    def replace_where(
        self,
        predicate: str,
        data: "Rows",
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: "Properties" = None,
        partitions: Sequence[str] = (),
    ) -> "WriteResult":
        """Replace the rows that match a predicate, in one version; arguments as for `append`.

        Each new row must match the predicate, since the version claims all rows that match. A merge is refused when
        another branch replaced rows of the same partitions, or inserted rows there.

        Raises:
            InvalidInputError: The predicate is invalid, or false or null for a new row; nothing was committed.
        """
        info = CommitInfo.of(branch, message, properties, partitions)
        return self._result(write.replace_where(self._context, predicate, data, info))

    def delete(
        self, predicate: str, *, branch: str = MAIN, message: str | None = None, properties: "Properties" = None
    ) -> "WriteResult":
        """Delete the rows that match a predicate.

        When another commit touches the same fragments meanwhile, the rows are looked up again.

        Args:
            predicate: A predicate in Lance SQL, such as `"distance > 100"`; `"true"` deletes every row.

        Returns:
            The version without the rows; the newest version, unchanged, when no row matches, where pylance would make a
            version that changes nothing.

        Raises:
            InvalidInputError: The predicate is invalid.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._result(row_edits.delete(self._context, predicate, info))

    def update(
        self,
        values: Mapping[str, str],
        *,
        where: str | None = None,
        branch: str = MAIN,
        message: str | None = None,
        properties: "Properties" = None,
    ) -> "WriteResult":
        """Give the rows that match a predicate new values.

        Rows keep their ids and the version they were created at, on a table with stable row ids. When another commit
        touches the same rows meanwhile, the values are computed again from its result.

        Args:
            values: An expression in Lance SQL for each column that changes, over the values before the update:
                `{"price": "price * 2", "currency": "'EUR'"}`. The type of the column has to hold each result
                exactly, rounded by ROUND or CAST if need be; only a floating-point one gets the nearest number.
            where: The predicate; None for every row.

        Returns:
            The version with the new values; the newest version, unchanged, when no row matches.

        Raises:
            SchemaMismatchError: A value does not fit its column; nothing was committed.
            InvalidInputError: A column does not exist, an expression or the predicate is invalid, or a
                column has nested blobs.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._result(row_edits.update(self._context, values, where, info))

    def upsert(
        self,
        data: "Rows | staged_upsert.StagedUpsert",
        *,
        on: Sequence[str],
        branch: str = MAIN,
        message: str | None = None,
        properties: "Properties" = None,
        partitions: Sequence[str] = (),
        **when: Unpack[When],
    ) -> "WriteResult":
        """Update the rows whose key occurs in the source rows, and insert the other source rows, as one version.

        Rows that change keep their ids and the version they were created at, on a table with stable row ids. A key
        with a null in it equals no other key, so a source row with such a key is always inserted. When several rows of
        the table have a key, all of them change. When two writers insert the same key at the same time, the second
        writer updates the row that the first writer inserted.

        Args:
            data: Arrow rows, held in memory, or the result of `stage_upsert` for a Spark frame. Rows may lack columns
                of the table: rows that change keep their values there, rows that are inserted get nulls.
            on: The columns of the key; their values are not nested.
            **when: `when_matched` applies to rows of the table whose key is in the source: `"update"` (the default),
                `"keep"`, or a condition in Lance SQL, such as `"source.changed_at > target.changed_at"`.
                `when_not_matched` applies to source rows whose key is not in the table: `"insert"` (the default) or
                `"ignore"`. `when_missing` applies to rows of the table whose key is not in the source: `"keep"` (the
                default) or `"delete"`, with `missing_where` only where that is true.

        Returns:
            The version with the rows; the newest version, unchanged, when nothing changes.

        Raises:
            InvalidInputError: A key occurs twice or a key column is missing; the condition is invalid;
                a column has nested blobs.
            SchemaMismatchError: The rows do not fit the table.
        """
        info = CommitInfo.of(branch, message, properties, partitions)
        if isinstance(data, staged_upsert.StagedUpsert):
            return self._result(staged_upsert.commit_upsert(self._context, data, info))
        return self._result(upsert(self._context, data, on, rules=Rules.of(when), info=info))

    def stage(self, data: "Rows", *, branch: str = MAIN, base: str | None = None) -> "StagedFiles":
        """Write rows to data files that no version names yet; any write of the table can commit them.

        Args:
            data: Arrow rows.
            branch: The branch they will be committed to, whose columns they must have.
            base: The name of the base path to write to; None for the table itself.

        Raises:
            SchemaMismatchError: The rows do not fit the table.
            InvalidInputError: The branch has no base path of that name.
        """
        return write.stage(self._context, data, branch, base)

    def write_target(self, schema: pa.Schema | None = None, ref: "Ref" = MAIN, base: str | None = None) -> WriteTarget:
        """Return the target with which another process stages data files: `write_files(target, batches)`.

        Args:
            schema: The columns of the files; None for all columns of the version. Any branch can commit the files.
            ref: The version that decides the columns, the base paths and the file format.
            base: The name of the base path to write the files to, which the version must have; None for the
                table itself. Pass the target's `base` on to the `StagedFiles` made of them.
        """
        state = self._context.recall(ref)
        target = write.target(self._context, schema or state.schema, state, base)
        # Only here and not in `write.target`: only Spark needs this estimate, and it would slow every small append.
        return replace(target, stored_row_bytes=write.stored_row_bytes(state))

    def commit(self, transaction: Transaction, *, branch: str = MAIN) -> "Version":
        """Commit a transaction, or return the version it made if it landed before.

        The files that it adds are checked first, by one ranged read of each; it raises the same errors as `append`.
        The files of new indices are looked up in a listing of their folder.

        Raises:
            InvalidInputError: A file has other rows or columns than the transaction records, or the branch has its
                rows already.
            CommitConflictError: A version that was committed since its read version conflicts with it.
            CorruptFileError: A file is missing, has another size, or is damaged.
        """
        return self._described(staged_files.commit_given(self._context, branch, transaction))

    def preview_merge(
        self, source: "Ref", into: str = MAIN, *, strategy: "Strategy" = None, mode: "MergeMode" = MERGE_COMMIT
    ) -> "MergePreview":
        """Return a preview of a merge, with all its conflicts; nothing is written.

        Arguments as for `merge`; the preview's `conflicting_rows` reads the rows in conflict.
        """
        return preview.preview(self._context, self._context.at(source), into, strategy=strategy, mode=mode)

    def merge(
        self,
        source: "Ref",
        into: str = MAIN,
        *,
        strategy: "Strategy" = None,
        mode: "MergeMode" = MERGE_COMMIT,
        message: str | None = None,
        properties: "Properties" = None,
    ) -> "WriteResult":
        """Merge a version into a branch; this writes only metadata, and the rows that combine cells of both sides.

        All changes of both sides to rows, columns and settings since their merge base are kept, or are reported as
        conflicts. When everything was merged before, that merge is returned and nothing is written.

        Args:
            source: The branch, or another ref, to merge.
            strategy: The side that wins conflicts, "source-wins" or "dest-wins": for all conflicts, or by unit or kind
                of conflict, such as `{"rows": "source-wins", "column price": "dest-wins"}`, with "*" for all others.
                Changes that do not conflict are kept from both sides, whatever the strategy.
            mode: "merge"; "ff-only" to refuse when `into` has changes that `source` does not contain; "squash" to
                apply the changes as one commit that does not record the merge, after which the branch can
                only be deleted or reset.

        Raises:
            InvalidInputError: The mode or strategy is unknown, or the message or a property is not a string.
            MergeConflictError: There are conflicts, which the error lists; nothing was written.
        """
        options = MergeOptions(strategy=strategy, mode=mode, message=message, properties=properties or {})
        return self._result(merge_commit.merge(self._context, self._context.at(source, fresh=True), into, options))

    def cherry_pick(
        self,
        source: "Ref",
        into: str = MAIN,
        *,
        parent: int | None = None,
        strategy: "Strategy" = None,
        message: str | None = None,
        properties: "Properties" = None,
    ) -> "WriteResult":
        """Apply the change of a version to another branch.

        The head of the branch is returned, and nothing is written, when the branch has the change already or the
        version only moved rows, such as a compaction. A branch that reverted the change gets it again. The new version
        keeps the committer of the picked version, and its message unless `message` is given; the property
        `lance_dagster.cherry_pick.by` says who picked it.

        Args:
            source: The version whose change is applied.
            into: The branch that gets it.
            parent: For a merge, the parent that the merge is compared with, counted from 1.
            strategy: As for `merge`; the picked version is the source.

        Raises:
            MergeConflictError: There are conflicts, which the error lists; nothing was written.
            InvalidInputError: It is a merge and no parent was given.
        """
        options = PickOptions(parent=parent, strategy=strategy, message=message, properties=properties or {})
        return self._result(picks.cherry_pick(self._context, self._context.at(source), into, options))

    def revert(
        self,
        ref: "Ref",
        branch: str = MAIN,
        *,
        parent: int | None = None,
        strategy: "Strategy" = None,
        message: str | None = None,
        properties: "Properties" = None,
    ) -> "WriteResult":
        """Undo the change of one version, and keep all later changes.

        Rows that the version added are deleted, rows that it deleted come back, and rows that it updated get their
        former values. When there is nothing to undo, the newest version is returned and nothing is written. The version
        stays in the log. A merge that was reverted still counts as merged: its changes come back only with a revert of
        the revert.

        Args:
            ref: The version whose change is undone.
            parent: For a merge, the parent to go back to, counted from 1.
            strategy: The side that wins conflicts, as for `merge`; the state before the version is the source.

        Raises:
            MergeConflictError: Later changes conflict with it; nothing was written.
            InvalidInputError: It is a merge and no parent was given.
        """
        options = PickOptions(parent=parent, strategy=strategy, message=message, properties=properties or {})
        return self._result(picks.revert(self._context, self._context.at(ref), branch, options))

    def restore(
        self, ref: "Ref", branch: str = MAIN, *, message: str | None = None, properties: "Properties" = None
    ) -> "WriteResult":
        """Restore an older version of a branch as a new version; later versions stay in the log.

        A branch whose newest version is a restore of that version is left as it is.

        Args:
            ref: The version to go back to: a version of the branch, or a version from before its fork point.
        """
        to = self._context.at(ref, fresh=True)
        options = PickOptions(properties=CommitInfo.of(branch, message or f"restore {to}", properties).as_properties())
        return self._result(picks.restore(self._context, to, branch, options))

    def _result(self, committed: Written) -> "WriteResult":
        return committed.described(self._context)

    def _described(self, state: State) -> "Version":
        return self._context.versions.describe(state)


def _reopen(uri: str, storage_options: Mapping[str, str]) -> LanceTable:
    return LanceTable(open_context(uri, storage_options))
