"""`table.maintenance`: compaction, garbage collection, verification, indices, base paths, clones and relocation."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Generic, TypeVar, Unpack

from lance_dagster.datafiles.writing import StagedFile
from lance_dagster.edit import compaction, index_status, move_files
from lance_dagster.edit.compaction import CompactionGoal, Goal
from lance_dagster.edit.compaction_plan import CompactionPlan
from lance_dagster.edit.index_status import IndexStatus
from lance_dagster.edit.move_files import FileMove, FileMoveOptions
from lance_dagster.edit.write import CommitInfo
from lance_dagster.errors import FormatError, InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import BasePath
from lance_dagster.format.validation import check_flag, check_options, check_string, require_mapping, whole_number
from lance_dagster.gc.collect import SETTLING, GarbageOptions, collect
from lance_dagster.gc.garbage_report import GarbageReport
from lance_dagster.gc.retention import DEFAULT_AGE, SETTING, Retention, Rule, retention_from_json
from lance_dagster.history.context import Properties, Ref, TableContext
from lance_dagster.history.find_commits import content_id_of
from lance_dagster.history.table_uri import check_table_alone
from lance_dagster.history.versions import Version, Versions
from lance_dagster.placement import base_stores, clone, relocate
from lance_dagster.placement.base_stores import NewBase
from lance_dagster.placement.clone import CloneOptions
from lance_dagster.placement.relocate import How, RelocateOptions, Relocation, migrate_manifest_names
from lance_dagster.verify import verify as verification
from lance_dagster.verify.verify import VerifyReport
from lance_dagster.verify.version_checks import Progress

# The table class is a parameter: an import of `LanceTable` would be a cycle, since it imports this module.
TableT = TypeVar("TableT")
_SHORTEST_GRACE = timedelta(days=1)


class Maintenance(Generic[TableT]):
    """The maintenance of a table, as `table.maintenance`. No method here changes the rows of a branch."""

    def __init__(self, context: TableContext, table_of: Callable[[TableContext], TableT]) -> None:
        """Wrap the context of a table, and the function that makes a table from a context."""
        self._context, self._table_of = context, table_of

    def verify(self, ref: Ref | None = None, *, deep: bool = False, progress: Progress | None = None) -> VerifyReport:
        """Look for damage in a version, or in all versions, files, branches and tags.

        Nothing is written. Concurrent writers may continue.

        Args:
            ref: The version to verify; None for all versions of all branches, and the branches and tags themselves.
            deep: Also read every data file whole, and every transaction file. Bytes of data files that changed since
                their digests were recorded are found by this. Without it, only sizes of data files are compared.
            progress: Called with how many steps are done and how many there are.

        Returns:
            The problems found, and how much was verified. Damage is reported there and raises no exception.

        Raises:
            NotFoundError: There is no such branch, tag, version or commit id.
        """
        check_flag("deep", deep)
        # A `Version` goes in as its ref, which is resolved again: the manifest in the store is verified.
        return verification.verify(self._context, None if ref is None else str(ref), deep=deep, progress=progress)

    def record_digests(self, ref: Ref | None = None, *, progress: Progress | None = None) -> int:
        """Record the SHA-256 of each data file that has no digest yet, for `verify(deep=True)` to compare.

        Each file is read once. With the storage option `record_digests` set to "true", writers do this for the files
        they write. A digest is an empty object beside the file, with the digest in its name; it is deleted with the
        file. Files in format 0.1, and files of names with more than 183 bytes, get no digest. Idempotent.

        Args:
            ref: The version whose files are read; None for all versions of all branches.
            progress: Called with the number of files that were checked, and their total.

        Returns:
            The number of digests that were recorded.

        Raises:
            NotFoundError: There is no such branch, tag, version or commit id.
            CorruptFileError: A manifest cannot be read.
            PermissionRefusedError: The credentials may not write beside a data file, such as a file of another table.
        """
        return verification.record_digests(self._context, None if ref is None else str(ref), progress)

    def bases(self, ref: Ref = MAIN) -> tuple[BasePath, ...]:
        """Return the base paths of a version, sorted by id."""
        # A manifest may list them in any order.
        return tuple(sorted(self._context.at(ref).manifest.base_paths, key=lambda base: base.id))

    def add_base(
        self,
        name: str,
        uri: str | os.PathLike[str],
        *,
        is_dataset_root: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
    ) -> BasePath:
        """Add a base path that new data files can be written to: `append(stage(rows, base=name))`.

        An equal base path is left as it is. Branches forked later inherit the base path. Its own storage options are
        given when the table is opened, as `base_<id>.<option>`; without them, the options of the table apply.

        Args:
            name: The name of the base path.
            uri: A local path or `s3://bucket/path`.
            is_dataset_root: True when data files go to a folder `data` below `uri`, False when directly into `uri`.
            branch: The branch to commit to.
            message: The commit message.
            properties: Stored with the transaction.

        Raises:
            AlreadyExistsError: The branch has another base path of that name or at that place.
            InvalidInputError: The place is in this or another table, or cannot be reached with the options known.
        """
        base = NewBase(
            name=name,
            uri=check_table_alone(uri),
            is_dataset_root=is_dataset_root,
            message=message,
            properties=properties or {},
        )
        return base_stores.add_base(self._context, branch, base)

    def allow_base(self, uri: str | os.PathLike[str]) -> None:
        """Allow versions of this table to name files at a place outside of it, for every reader.

        `add_base`, `move_base` and a shallow `clone` do the same, unless the storage options or the environment of the
        caller allow the place already; then other readers still need this call. It is also needed where pylance added
        the base path, or where the table was moved. The place gets a small object that names the table, below
        `_refs/tables`.

        Args:
            uri: The base path, as `bases` shows it; this does not allow places below it.

        Raises:
            StoreError: The place cannot be written. Readers can allow it with the storage option `allowed_base_paths`.
        """
        place = check_table_alone(uri)
        base_id = next((base.id for base in self._context.at(MAIN).manifest.base_paths if base.path == place), 0)
        self._context.versions.bases.allow_everyone(place, base_id)

    def move_base(
        self,
        name: str,
        uri: str | os.PathLike[str],
        *,
        message: str | None = None,
        properties: Properties = None,
        **options: Unpack[RelocateOptions],
    ) -> Relocation:
        """Change the path of a base path after its files were moved or copied, by a commit to each branch that has it.

        Older versions keep the old path; tags on them are moved as `relocate` does. Idempotent: repeat an interrupted
        call.

        Args:
            name: The name of the base path, or its present path when it has no name.
            uri: The new path.
            message: The commit message of each new version.
            properties: Stored with each transaction.
            **options: Those of `relocate`: `check`, `dry_run` and `progress`.

        Raises:
            InvalidInputError: No branch has such a base path.
            CorruptFileError: Files are missing at the new place.
        """
        info = CommitInfo.of(MAIN, message, properties)
        check_options(self.move_base, options, RelocateOptions)
        how = How(**options, properties=info.as_properties())
        return relocate.move_base(self._context, name, check_table_alone(uri), how)

    def relocate(
        self,
        old_uri: str | os.PathLike[str] | None = None,
        *,
        message: str | None = None,
        properties: Properties = None,
        **options: Unpack[RelocateOptions],
    ) -> Relocation:
        """Repair the branches of a table that was moved or copied to this place, by one metadata commit each.

        `main` works at any place, but branches reference inherited files by the former URI of the table. Call this once
        at the new place, before other operations. Idempotent: correct branches are left as they are. Older versions of
        a branch can be read only while the former place exists; a tag on such a version is moved to a later version
        with the same rows, or to a new branch `relocated-<tag>`.

        Args:
            old_uri: The former URI of the table; None to determine it from the branches.
            message: The commit message of each new version.
            properties: Stored with each transaction.
            **options: `check` looks for every file at this place before a commit references it here (True if left
                out); `dry_run` reports the changes without committing them; `progress` is called with the number of
                branches and tags processed, and their total.

        Raises:
            InvalidInputError: The former URI cannot be determined.
            CorruptFileError: Files are missing at this place.
        """
        info = CommitInfo.of(MAIN, message, properties)
        check_options(self.relocate, options, RelocateOptions)
        how = How(**options, properties=info.as_properties())
        return relocate.relocate(self._context, None if old_uri is None else check_table_alone(old_uri), how)

    def clone(
        self,
        uri: str | os.PathLike[str],
        at: Ref = MAIN,
        *,
        shallow: bool = True,
        message: str | None = None,
        properties: Properties = None,
        **options: Unpack[CloneOptions],
    ) -> TableT:
        """Clone a version to a new table, and return the new table.

        A shallow clone is a manifest that references the files of this table, and can be read as long as they exist.
        A tag `clone-<digest>` on the cloned version keeps them; delete it when the clone is deleted. If this table is a
        shallow clone itself, the tables that it was cloned from get such a tag for the new clone. A deep clone copies
        the files of the version, on the server when both tables are in one object store; repeat an interrupted call to
        copy the remaining files. History, branches and tags are not cloned.

        Args:
            uri: The URI of the clone.
            at: The version to clone.
            shallow: Reference the files instead of copying them.
            message: The commit message of the clone's first version.
            properties: Stored with its transaction.
            **options: `storage_options` of the clone; None for the options of this table. `progress`, called with the
                number of copied files and their total.

        Raises:
            AlreadyExistsError: A table exists at `uri`.
            CorruptFileError: A file of the version is missing; no clone was created.
            InvalidInputError: `uri` is inside this table, or this table inside `uri`; or it is a base path of a table.
            NotFoundError: The version is not there, or its branch was deleted meanwhile.
            ConflictError: Its branch is being reset or renamed.
        """
        # The ref is resolved once: a commit to the branch during a long copy must not change what is cloned.
        cloned = clone.clone(
            self._context,
            self._context.at(at, fresh=True),
            check_table_alone(uri),
            shallow=shallow,
            properties=CommitInfo.of(MAIN, message, properties).as_properties(),
            **options,
        )
        return self._table_of(cloned)

    def indices(self, ref: Ref = MAIN) -> tuple[IndexStatus, ...]:
        """Return the indices of a version by name, each with the number of rows that it covers."""
        return index_status.index_statuses(self._context.at(ref).manifest)

    def drop_index(
        self, name: str, *, branch: str = MAIN, message: str | None = None, properties: Properties = None
    ) -> Version:
        """Drop an index; its files stay until they are collected.

        Raises:
            NotFoundError: The branch has no index of that name.
        """
        # The files are kept because older versions and branches forked from them still use the index.
        info = CommitInfo.of(branch, message, properties)
        return self._context.versions.describe(index_status.drop_index(self._context, name, info))

    def compact(
        self,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
        progress: Progress | None = None,
        **goal: Unpack[CompactionGoal],
    ) -> Version:
        """Rewrite adjacent small fragments, and fragments with many deleted rows, to larger fragments of the same rows.

        Row ids and row versions are kept. A version that reserves fragment ids precedes the returned version; when no
        fragment needs rewriting, the newest version is returned. Tables with indices or blobs are compacted by pylance,
        which makes the versions. An index that a branch inherited no longer covers the rewritten rows; `indices` says
        how many rows it misses.

        Args:
            branch: The branch to compact. Readers of older versions, and branches forked from them, keep the old files.
            message: The commit message; a version that pylance makes has no message.
            properties: Stored with the transaction, except where pylance compacts.
            progress: Called with the number of rewritten groups of fragments and their total; pylance does not call it.
            **goal: `target_rows`, by default 1,048,576, is the number of rows below which a fragment is small, unless
                its files have 512 MiB or more. `deleted_share`, from 0 to 1 and by default 0.1, is the share of deleted
                rows above which a fragment is rewritten even alone. With `mix_partitions`, rows that were written for
                different partitions, or by replacements with different predicates, may get into one fragment;
                searches for one partition then read the other partition too. pylance always mixes them.

        Raises:
            InvalidInputError: The branch has an inherited index, and also blobs or an index of its own.
            CommitConflictError: Concurrent commits changed the same fragments at each attempt.
        """
        info = CommitInfo.of(branch, message, properties)
        # A first commit reserves the ids of the new fragments, so that concurrent appends get other ids.
        check_options(self.compact, goal, CompactionGoal)
        return self._context.versions.describe(compaction.compact(self._context, Goal(**goal), info, progress))

    def move_files(
        self,
        where: str,
        to: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Properties = None,
        **options: Unpack[FileMoveOptions],
    ) -> FileMove:
        """Move the data files of old rows to a base path, such as cheaper storage, and change nothing else.

        The files of each fragment of which all rows match `where` are copied, with their blobs, and one version names
        the copies. Rows, row ids, row versions and indices stay, and a diff shows no difference. Older versions name
        the former files, which a collection deletes once these versions are gone. Fragments that another writer
        replaces meanwhile are left alone. Idempotent: repeat an interrupted call; a collection deletes what it copied.

        Args:
            where: The rows, as a filter such as "day < '2026-01-01'". Fragments with other rows, too, stay: `compact`
                does not mix the rows of partitions.
            to: The name of a base path of the branch (`add_base`); "root" moves files back to the table's own folder.
            branch: The branch. Other branches, and older versions, name the files where they were.
            message: The commit message.
            properties: Stored with the transaction.
            **options: With `dry_run`, nothing is done, and the result tells which fragments would be moved, how many
                bytes, and by how many requests. `progress` is called with the number of copied files and their total.

        Returns:
            What was moved; without fragments where nothing was to be done.

        Raises:
            InvalidInputError: The filter is not valid, the branch has no such base path, or another table is there.
            CorruptFileError: A file is missing.
            CommitConflictError: The base path was moved to another place meanwhile.
        """
        info = CommitInfo.of(branch, message, properties)
        check_options(self.move_files, options, FileMoveOptions)
        return move_files.move_files(self._context, where, to, info, **options)

    def plan_compaction(self, branch: str = MAIN, **goal: Unpack[CompactionGoal]) -> CompactionPlan:
        """Return what `compact` would rewrite, for other processes to write; nothing is written.

        Each group of the plan is done by `write_files(group.target, rows)`, with the rows of its fragments at
        `plan.version`, in their order. `commit_compaction` takes the files. The plan can be pickled, and then holds the
        storage options.

        Raises:
            InvalidInputError: A target is not valid.
        """
        check_options(self.plan_compaction, goal, CompactionGoal)
        return compaction.plan_of(self._context, branch, Goal(**goal))

    def commit_compaction(
        self,
        plan: CompactionPlan,
        written: Sequence[Sequence[StagedFile]],
        *,
        message: str | None = None,
        properties: Properties = None,
    ) -> Version:
        """Commit the files that were written for each group of a plan, as `compact` does.

        Raises:
            InvalidInputError: The files of a group do not have its number of rows; nothing was committed.
            CommitConflictError: Another commit since the plan changed one of the fragments; make a new plan.
        """
        info = CommitInfo.of(plan.version.branch, message, properties)
        return self._context.versions.describe(compaction.commit_plan(self._context, plan, written, info))

    def migrate_manifest_names(self) -> int:
        """Rename the manifests of an old table, branches included, to the V2 scheme; return the number of versions.

        V2 names sort the newest version first, which makes opening a table on object storage faster; nothing else
        needs them. Stop all writers first, because a running writer would continue with the old scheme. Until the call
        has finished, the newest version cannot be opened. Idempotent: repeat an interrupted call.

        Raises:
            CorruptFileError: Two different manifests of one version exist; both are kept.
        """
        return migrate_manifest_names(self._context.versions, self._context.refs.branches.all())

    def content_id(self, ref: Ref = MAIN) -> str:
        """Return a digest of the content of a version: versions with equal digests have equal rows in equal order.

        The digest covers the schema with its metadata, the data files and the deleted rows of each fragment, row ids,
        table config, table metadata and indices. It does not cover the number, time and transaction of the version,
        fragment ids, and the place of files. A new branch therefore has the content id of the version it was forked
        from, and after a fast-forward merge `main` has the content id of the merged branch. Equal rows that were
        written twice have different digests, because they are in different data files. Reads the deletion file of each
        fragment that has deleted rows.
        """
        return content_id_of(self._context.versions, self._context.at(ref))

    def collect_garbage(
        self,
        older_than: timedelta | None = None,
        *,
        dry_run: bool = True,
        keep_last: int = 1,
        branches: Mapping[str, timedelta] | None = None,
        grace: timedelta | None = None,
        progress: Progress | None = None,
    ) -> GarbageReport:
        """Expire old versions, and delete files that no version references.

        A version expires when it has not been in use for `older_than` and no tag, fork or later merge needs it. An
        expired version cannot be read. The files that only expired versions reference are deleted by a later call, at
        least a day afterwards, so that a concurrent restore, tag or fork of such a version loses nothing. Readers and
        writers may continue; after a crash the table reads as before, and the next call continues.

        The retention rules stored in the config key `lance_dagster.retention` of `main` apply too: a version is kept
        when these rules or the arguments keep it. Files with names that no table file has are never deleted, and of the
        files outside of the table's folder only those that `move_files` has copied, where no other table may use them.

        Args:
            older_than: How long a version is kept after a newer version replaced it; None for the stored rules, or 14
                days without stored rules.
            dry_run: Report what would be deleted without deleting it.
            keep_last: The number of newest versions of each branch that are kept at any age.
            branches: Other ages for branches whose names match a pattern: `{"run/*": timedelta(days=2)}`. The first
                matching pattern applies.
            grace: The least age of a deleted file that no version references, since a writer may be about to commit it;
                None for `older_than`, but at least a day. A grace below a day also replaces the day for which files of
                expired versions are kept. With zero, everything is deleted at once; no other writer may be active.
            progress: Called with the number of finished steps and their total.

        Returns:
            What was or would be deleted, and what was kept and why. An unreadable version or ref raises no exception;
            it is listed as a problem, and then nothing is deleted.

        Raises:
            InvalidInputError: A duration is negative or not a timedelta, `keep_last` is not a number of 1 or more,
                `branches` is not a mapping, `dry_run` is not a boolean, or the stored rules are invalid.
        """
        check_flag("dry_run", dry_run)
        keep_last = whole_number("keep_last", keep_last, 1)
        ages = _ages({} if branches is None else branches)
        try:
            stored = self._stored_retention()
        except FormatError:
            # Unreadable rules may keep versions that the arguments do not, so the call becomes a dry run.
            stored, dry_run = None, True
        age = _duration(older_than if older_than is not None else stored.default.older_than if stored else DEFAULT_AGE)
        # An age of zero keeps nothing by itself, so without `older_than` the stored rules alone decide.
        default_age = timedelta(0) if stored and older_than is None else age
        arguments = Retention(
            default=Rule(older_than=default_age, keep_last=keep_last),
            branches={pattern: Rule(older_than=limit, keep_last=keep_last) for pattern, limit in ages.items()},
        )
        # A writer stages files before it commits them, so an unreferenced file may belong to a commit in progress.
        grace = max(age, _SHORTEST_GRACE) if grace is None else _duration(grace)
        options = GarbageOptions(
            # Both apply, and each can only keep more versions: a call cannot override the stored rules.
            rules=(arguments, stored) if stored else (arguments,),
            grace=grace,
            # With a shorter grace, the caller takes responsibility for other writers, so it shortens both waits.
            settling=min(grace, SETTLING),
            dry_run=dry_run,
        )
        try:
            return collect(self._context.store, options, progress, bases=self._context.versions.bases)
        finally:
            # The cache may hold manifests of versions that were just removed.
            self._context.versions.forget()

    def _stored_retention(self) -> Retention | None:
        # A fresh `Versions` bypasses the cache: another process may have changed the rules.
        text = Versions(self._context.store).head(MAIN).manifest.config.get(SETTING)
        return None if text is None else retention_from_json(text)


def _ages(branches: object) -> dict[str, timedelta]:
    ages = require_mapping("branches", branches, "{'run/*': timedelta(days=2)}")
    for pattern in ages:
        check_string("a pattern of branches", pattern)
    return {pattern: _duration(age) for pattern, age in ages.items()}


def _duration(value: object) -> timedelta:
    # A `pendulum.Duration` is a timedelta too. A number is refused, because its unit would be a guess.
    if not isinstance(value, timedelta):
        raise InvalidInputError(f"{value!r} is not a duration; give a timedelta or a pendulum.Duration")
    return value
