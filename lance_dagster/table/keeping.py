"""Upkeep: the methods of a table that look after its files and where they lie."""

import os
from collections.abc import Mapping
from typing import Self

from lance_dagster.datafiles import StagedFiles
from lance_dagster.edit import compaction as compacting, index_status as indexing, write
from lance_dagster.edit.compaction import Goal
from lance_dagster.edit.index_status import IndexStatus
from lance_dagster.edit.write import Note, Rows
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import BasePath
from lance_dagster.history.versions import Version
from lance_dagster.placement import base_stores, clone, relocate
from lance_dagster.placement.base_stores import NewBase
from lance_dagster.placement.relocate import How, Relocation, migrate_manifest_names
from lance_dagster.table.facade import Facade
from lance_dagster.verify import verify as verifying
from lance_dagster.verify.verify import VerifyReport
from lance_dagster.verify.version_checks import Progress


class Keeping(Facade):
    """Rows are the same before and after each of these."""

    def verify(self, ref: str | None = None, *, deep: bool = False, progress: Progress | None = None) -> VerifyReport:
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
        return verifying.verify(self._parts, ref, deep=deep, progress=progress)

    def bases(self, ref: str = MAIN) -> tuple[BasePath, ...]:
        """Return the other places in which files of a version may lie."""
        return tuple(sorted(self._parts.at(ref).manifest.base_paths, key=lambda base: base.id))

    def add_base(
        self,
        name: str,
        uri: str | os.PathLike[str],
        *,
        is_dataset_root: bool = False,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> BasePath:
        """Add a place that new data files can be written to: `append(stage(rows, base=name))`.

        One that is there already, the same in everything, is left as it is. Branches forked later have it too. Storage
        options of its own are given when the table is opened, as `base_<id>.<option>`; without, the table's apply.

        Args:
            name: What it is called.
            uri: A local path or `s3://bucket/path`.
            is_dataset_root: Whether data files lie in a folder `data` below it, or in the place itself.
            branch: The branch to commit to.
            message: What to say in the log.
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
        return base_stores.add_base(self._parts, branch, wanted)

    def stage(self, data: Rows, *, branch: str = MAIN, base: str | None = None) -> StagedFiles:
        """Write rows as data files that no version names yet, for any write of the table to commit.

        Args:
            data: Arrow rows.
            branch: The branch they will be committed to, whose columns they must have.
            base: The name of the base path to write to; None for the table itself.

        Raises:
            SchemaMismatchError: The rows do not fit the table.
            InvalidInputError: The branch has no base path of that name.
        """
        return write.stage(self._parts, data, branch, base)

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
        how = How(check=check, dry_run=dry_run, progress=progress)
        return relocate.move_base(self._parts, name, os.fspath(uri), how)

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
        how = How(check=check, dry_run=dry_run, progress=progress)
        return relocate.relocate(self._parts, None if old_uri is None else os.fspath(old_uri), how)

    def clone(
        self,
        uri: str | os.PathLike[str],
        at: str = MAIN,
        *,
        shallow: bool = True,
        storage_options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Self:
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
            self._parts,
            self._parts.at(at),
            os.fspath(uri),
            shallow=shallow,
            storage_options=storage_options,
            progress=progress,
        )
        return type(self)(made)

    def indices(self, ref: str = MAIN) -> tuple[IndexStatus, ...]:
        """Return the indices of a version by name, with how many rows each covers."""
        return indexing.index_statuses(self._parts.at(ref).manifest)

    def drop_index(self, name: str, *, branch: str = MAIN, message: str | None = None) -> Version:
        """Drop an index; its files stay until they are collected.

        Raises:
            NotFoundError: The branch has no index of that name.
        """
        note = Note(branch=branch, message=message)
        return self._described(indexing.drop_index(self._parts, name, note))

    def compact(
        self,
        *,
        branch: str = MAIN,
        target_rows: int = 1024 * 1024,
        deleted_share: float = 0.1,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
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
            message: What to say in the log.
            properties: Kept with the transaction.
            progress: Called with how many groups of fragments were rewritten, and how many there are; not by pylance.

        Raises:
            InvalidInputError: The branch has blobs, or an index of its own, beside an index it inherited.
            CommitConflictError: Other writers changed the same fragments again and again.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        goal = Goal(target_rows=target_rows, deleted_share=deleted_share)
        return self._described(compacting.compact(self._parts, goal, note, progress))

    def migrate_manifest_names(self) -> int:
        """Give the versions of an old table their present file names, which list the newest first; returns how many.

        Branches included. Needed for nothing but speed on object storage. While it runs, nobody can open the table at
        its newest version, and writers have to be stopped: one that is at work would go on under the old scheme. A call
        that was interrupted is made again.

        Raises:
            CorruptFileError: Two different manifests would have one name; both are still there.
        """
        return migrate_manifest_names(self._parts.versions, self._parts.refs.branches())
