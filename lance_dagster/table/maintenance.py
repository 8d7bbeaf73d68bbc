"""`table.maintenance`: what looks after the files of a table and where they lie."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, TypeVar

from lance_dagster.edit import compaction, index_status
from lance_dagster.edit.compaction import Goal
from lance_dagster.edit.index_status import IndexStatus
from lance_dagster.edit.write import CommitInfo
from lance_dagster.errors import FormatError, InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import BasePath
from lance_dagster.gc.collect import SETTLING, GarbageOptions, GarbageReport, collect
from lance_dagster.gc.retention import DEFAULT_AGE, SETTING, Retention, Rule, retention_from_json
from lance_dagster.history.context import Properties, Ref, TableContext
from lance_dagster.history.identifiers import content_id_of
from lance_dagster.history.versions import Version, Versions
from lance_dagster.placement import base_stores, clone, relocate
from lance_dagster.placement.base_stores import NewBase
from lance_dagster.placement.relocate import How, Relocation, migrate_manifest_names
from lance_dagster.verify import verify as verification
from lance_dagster.verify.verify import VerifyReport
from lance_dagster.verify.version_checks import Progress

TableT = TypeVar("TableT")
_SHORTEST_GRACE = timedelta(days=1)


class Maintenance(Generic[TableT]):
    """Maintenance of a table, as `table.maintenance`. Rows are the same before and after each of these."""

    def __init__(self, context: TableContext, table_of: Callable[[TableContext], TableT]) -> None:
        """Wrap the context of a table, and what makes a table of the context of another one."""
        self._context, self._table_of = context, table_of

    def verify(self, ref: Ref | None = None, *, deep: bool = False, progress: Progress | None = None) -> VerifyReport:
        """Look for damage: in every version, every file and every name; or in one version.

        Nothing is written. Writers may go on meanwhile.

        Args:
            ref: The version to look at; None for all of every branch, and the names themselves.
            deep: Read every data file whole instead of comparing its size, and every transaction file.
            progress: Called with how many steps are done and how many there are.

        Returns:
            What is wrong, and how much was looked at. Damage is no exception here.

        Raises:
            RefNotFoundError: There is no branch or tag of that name.
        """
        return verification.verify(self._context, None if ref is None else str(ref), deep=deep, progress=progress)

    def bases(self, ref: Ref = MAIN) -> tuple[BasePath, ...]:
        """Return the other places in which files of a version may lie."""
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
        """Add a place that new data files can be written to: `append(stage(rows, base=name))`.

        One that is there already, the same in everything, is left as it is. Branches forked later have it too. Storage
        options of its own are given when the table is opened, as `base_<id>.<option>`; without, the table's apply.

        Args:
            name: What it is called.
            uri: A local path or `s3://bucket/path`.
            is_dataset_root: Whether data files lie in a folder `data` below it, or in the place itself.
            branch: The branch to commit to.
            message: What the log says.
            properties: Kept with the transaction.

        Raises:
            AlreadyExistsError: The branch has another base path of that name or at that place.
            InvalidInputError: The place is in the table itself, or cannot be reached with the options known.
        """
        wanted = NewBase(
            name=name,
            uri=os.fspath(uri),
            is_dataset_root=is_dataset_root,
            message=message,
            properties=properties or {},
        )
        return base_stores.add_base(self._context, branch, wanted)

    def move_base(
        self,
        name: str,
        uri: str | os.PathLike[str],
        *,
        check: bool = True,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Relocation:
        """Say that the files under a base path were moved or copied elsewhere; commits to every branch that has it.

        Older versions go on naming the old place. Tags on them are taken along as `relocate` does. A call that was
        interrupted is made again.

        Args:
            name: The base path's name, or its present place where it has none.
            uri: Where its files are.
            check: Look for every file before a commit names it there.
            dry_run: Only say what would be done.
            progress: Called with how many branches and tags were looked at, and how many there are.

        Raises:
            InvalidInputError: No branch has such a base path.
            CorruptFileError: Files are missing at the new place.
        """
        options = How(check=check, dry_run=dry_run, progress=progress)
        return relocate.move_base(self._context, name, os.fspath(uri), options)

    def relocate(
        self,
        old_uri: str | os.PathLike[str] | None = None,
        *,
        check: bool = True,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Relocation:
        """Make the branches of a table that was moved or copied here work here, by one metadata commit each.

        `main` works anywhere; branches name what they inherited by the place the table was at. Call this once at the
        new place before anything else. Nothing is done to what is right already, and a call that was interrupted is
        made again. Older versions of a branch can be read only while the old place is there; a tag on one of them is
        moved to the version that repeats it, or to a branch `relocated-<tag>` forked from it.

        Args:
            old_uri: Where the table was; None to find out from its branches.
            check: Look for every file before a commit names it here.
            dry_run: Only say what would be done.
            progress: Called with how many branches and tags were looked at, and how many there are.

        Raises:
            InvalidInputError: Where the table was cannot be told.
            CorruptFileError: Files are missing here.
        """
        options = How(check=check, dry_run=dry_run, progress=progress)
        return relocate.relocate(self._context, None if old_uri is None else os.fspath(old_uri), options)

    def clone(
        self,
        uri: str | os.PathLike[str],
        at: Ref = MAIN,
        *,
        shallow: bool = True,
        storage_options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> TableT:
        """Make a table of its own out of one version, and return it.

        A shallow clone is one manifest; it names the files here and lives as long as they do. It leaves a tag here on
        the version that is cloned, `clone-<digest>`: delete that when the clone is gone. A deep clone copies the
        version's files, on the server's side where both are on one; a call that was interrupted is made again and
        copies the rest. History, branches and tags stay here.

        Args:
            uri: Where the clone shall lie.
            at: The version to clone.
            shallow: Whether files are named or copied.
            storage_options: For the clone; None for those of this table.
            progress: Called with how many files were copied, and how many there are.

        Raises:
            AlreadyExistsError: There is a table already.
            CorruptFileError: A file of the version is missing; the clone is not there.
        """
        made = clone.clone(
            self._context,
            self._context.at(at),
            os.fspath(uri),
            shallow=shallow,
            storage_options=storage_options,
            progress=progress,
        )
        return self._table_of(made)

    def indices(self, ref: Ref = MAIN) -> tuple[IndexStatus, ...]:
        """Return the indices of a version by name, with how many rows each covers."""
        return index_status.index_statuses(self._context.at(ref).manifest)

    def drop_index(
        self, name: str, *, branch: str = MAIN, message: str | None = None, properties: Properties = None
    ) -> Version:
        """Drop an index; its files stay until they are collected.

        Raises:
            NotFoundError: The branch has no index of that name.
        """
        info = CommitInfo.of(branch, message, properties)
        return self._context.versions.describe(index_status.drop_index(self._context, name, info))

    def compact(
        self,
        *,
        branch: str = MAIN,
        target_rows: int = 1024 * 1024,
        deleted_share: float = 0.1,
        message: str | None = None,
        properties: Properties = None,
        progress: Progress | None = None,
    ) -> Version:
        """Write neighbouring small fragments, and those with many deleted rows, anew as one; rows stay as they are.

        Row ids and row versions follow. A version that reserves fragment ids comes before the one returned; when
        nothing is worth rewriting, the newest version is returned. Where there are indices or blobs, pylance does the
        work and makes the versions. An index that a branch inherited does not follow: it answers for the rows that
        were not moved, and `indices` says how many the others are.

        Args:
            branch: The branch to compact. Readers of older versions, and branches forked from them, keep the old files.
            target_rows: Rows a fragment should have at least.
            deleted_share: From 0 to 1: the share of deleted rows above which a fragment is rewritten even alone.
            message: What the log says.
            properties: Kept with the transaction.
            progress: Called with how many groups of fragments were rewritten, and how many there are; not by pylance.

        Raises:
            InvalidInputError: The branch has blobs, or an index of its own, beside an index it inherited.
            CommitConflictError: Other writers changed the same fragments again and again.
        """
        info = CommitInfo.of(branch, message, properties)
        goal = Goal(target_rows=target_rows, deleted_share=deleted_share)
        return self._context.versions.describe(compaction.compact(self._context, goal, info, progress))

    def migrate_manifest_names(self) -> int:
        """Give the versions of an old table their present file names, which list the newest first; returns how many.

        Branches included. Needed for nothing but speed on object storage. While it runs, nobody can open the table at
        its newest version, and writers have to be stopped: one that is at work would go on under the old scheme. A call
        that was interrupted is made again.

        Raises:
            CorruptFileError: Two different manifests would have one name; both are still there.
        """
        return migrate_manifest_names(self._context.versions, self._context.refs.branches())

    def content_id(self, ref: Ref = MAIN) -> str:
        """Return a digest of what a version holds, which is the same for versions that hold the same.

        It covers columns, data files, deleted rows, row ids, settings and indices, in their order; not the version's
        number, time or transaction, the numbers fragments have, nor where files lie. So a branch has the content id of
        the version it was forked from, and `main` that of a branch it took in without having changed meanwhile.
        Reads one deletion file for each fragment that has one.
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
        """Let old versions expire, and delete files that no version names.

        A version expires when it was not in use for `older_than`, and no tag, fork or coming merge needs it. From then
        on it cannot be read. The files that only such versions name are deleted by a later call, a day after, so that
        whoever is about to restore, tag or fork such a version at the same moment loses nothing. Writers and readers
        may go on meanwhile; a crash leaves a table that reads as before, and the next call goes on.

        Rules kept with the table, in the setting `lance_dagster.retention` of `main`, apply too: a version stays when
        they or the arguments say so. Nothing outside of the table's folder is ever deleted, nor a file that is not
        named like one of a table.

        Args:
            older_than: For how long versions stay that are not the newest any more; None for what is kept with the
                table, or else 14 days.
            dry_run: Only say what would be done.
            keep_last: How many of the newest versions of each branch stay however old they are.
            branches: Other ages for branches whose names match a pattern: `{"run/*": timedelta(days=2)}`. The first
                that matches counts.
            grace: How old a file has to be that no version names, since somebody may be about to commit it; None for
                `older_than`, but at least a day. Shorter than a day, it also is how long files of expired versions
                stay; with zero everything happens at once, and nobody else may be at work.
            progress: Called with how many steps are done and how many there are.

        Returns:
            What was deleted, or would be, and what was kept and why. A version or a name that cannot be read is no
            exception here: it is among the problems, and nothing was deleted.

        Raises:
            InvalidInputError: A duration is negative, or the rules kept with the table cannot be read.
        """
        try:
            stored = self._stored_retention()
        except FormatError:
            # Then nothing is deleted, and the report says so.
            stored, dry_run = None, True
        age = _duration(older_than if older_than is not None else stored.rest.older_than if stored else DEFAULT_AGE)
        # Where the table has rules, those not given here leave it to them.
        rest = timedelta(0) if stored and older_than is None else age
        ages = {pattern: _duration(found) for pattern, found in (branches or {}).items()}
        given = Retention(
            rest=Rule(older_than=rest, keep_last=keep_last),
            branches={pattern: Rule(older_than=found, keep_last=keep_last) for pattern, found in ages.items()},
        )
        grace = max(age, _SHORTEST_GRACE) if grace is None else _duration(grace)
        options = GarbageOptions(
            rules=(given, stored) if stored else (given,),
            grace=grace,
            settling=min(grace, SETTLING),
            dry_run=dry_run,
        )
        try:
            return collect(self._context.store, options, progress)
        finally:
            # Versions that were read before, and kept in memory, may be gone.
            self._context.versions.forget()

    def _stored_retention(self) -> Retention | None:
        text = Versions(self._context.store).head(MAIN).manifest.config.get(SETTING)
        return None if text is None else retention_from_json(text)


def _duration(value: object) -> timedelta:
    if not isinstance(value, timedelta):
        raise InvalidInputError(f"{value!r} is no duration; give a timedelta or a pendulum.Duration")
    return value
