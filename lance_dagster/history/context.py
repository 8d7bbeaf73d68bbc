"""The context of every operation on a table: its store, its names, its versions."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_dagster.datafiles import (
    ExpectedFile,
    IsolatedScan,
    count,
    evaluate_predicate,
    open_dataset,
    open_rows,
    read,
    read_shapes,
    scan,
    scan_isolated,
)
from lance_dagster.errors import (
    BasePathRefusedError,
    CorruptFileError,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    StoreError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.codec import check_readable
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import LEGACY_FILE_VERSION, BasePath, DataFile
from lance_dagster.format.sql_text import check_closed
from lance_dagster.format.validation import check_class, string_list
from lance_dagster.history.ancestry import Ancestry, RecordedVersion, VersionRef
from lance_dagster.history.log import LogFilter, LogQuery, all_parents, first_parents
from lance_dagster.history.rebase import check_deletions
from lance_dagster.history.refs.branch_fence import being_reset
from lance_dagster.history.refs.ref_files import READY, RENAMED_FROM, RESETTING
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.resolve import resolve, resolve_in
from lance_dagster.history.versions import State, Version, Versions
from lance_dagster.store import Store, file_checks, open_store, records_digests, together
from lance_dagster.transactions.base_paths import base_path_of, restored_base_paths
from lance_dagster.transactions.fragment_pruning import KnownMatches, known_matches

if TYPE_CHECKING:
    from lance_dagster.datafiles import LanceDataset

Ref = str | Version
"""The name of a version: a ref expression, or a version that was returned before."""
Properties = Mapping[str, str] | None
"""The properties that are stored with a transaction."""
_READ_BY_PYLANCE = (layout.DATA, layout.DELETIONS, layout.INDICES)


@dataclass(frozen=True, slots=True)
class TableContext:
    """The store, names and versions of one table, and the storage options, which its repr does not show."""

    store: Store = field(repr=False)
    refs: Refs = field(repr=False)
    versions: Versions = field(repr=False)
    storage_options: Mapping[str, str] = field(repr=False)
    uri: str = field(init=False)
    """The table's canonical URI."""
    records_digests: bool = field(init=False, repr=False)
    """Whether the digest of each data file that is written to the table is recorded."""

    def __post_init__(self) -> None:
        """Set what follows from the store and the options.

        Raises:
            InvalidInputError: An option has a value that it cannot have.
        """
        object.__setattr__(self, "uri", self.store.uri)
        object.__setattr__(self, "records_digests", records_digests(self.storage_options))

    def at(self, ref: Ref, *, fresh: bool = False) -> State:
        """Read the version a ref names.

        Args:
            ref: The version.
            fresh: Ask the store whether it is still there, for a caller that builds on it. Without this, a version of
                `main` that was read before comes from memory, also where a collection has deleted its files since.

        Raises:
            RefNotFoundError: There is no such branch, tag or commit id.
            VersionNotFoundError: The version is gone.
        """
        if isinstance(ref, Version):
            return self._load_again(ref, fresh=fresh)
        if ref == MAIN and self.versions.seen.latest(MAIN) is None:
            # The head is remembered as the newest version.
            return self.versions.head(MAIN)
        ancestry = Ancestry(self.refs, self.versions)
        place = resolve_in(ref, ancestry)
        of = ancestry.branch_of(place)
        # The newest version of `main` was just listed to resolve the name.
        state = self.versions.load(place.branch, place.number, of.id if of else "", fresh=fresh and ref != MAIN)
        return state if of is None else replace(state, of=of)

    def recall(self, ref: Ref) -> State:
        """Read the version a ref names as `at` does, from memory where the ref is a version that was read before.

        A version never changes, so neither do its schema, its settings and its number of rows. A caller that reads the
        files of the version uses `at`, and a caller that makes a new version or ref of it uses `at` with `fresh`.
        """
        # By the commit id: the branch may have been deleted, and its name and numbers belong to another branch.
        state = self.versions.cached.known(ref.id) if isinstance(ref, Version) else None
        if state is None:
            return self.at(ref)
        branch = self.refs.branches.remembered(state.branch)
        return replace(state, of=branch) if branch and self.versions.cached.is_of(state, branch.id) else state

    def place(self, ref: Ref) -> VersionRef:
        """Return the branch and the number of the version a ref names; it is read only where that is necessary."""
        if isinstance(ref, Version):
            state = self._load_again(ref)
            return VersionRef(state.branch, state.number)
        return VersionRef(*resolve(ref, self.refs, self.versions))

    def _load_again(self, version: Version, *, fresh: bool = False) -> State:
        """Read a version that was read before, even if its branch was renamed meanwhile."""
        state = self.versions.find(version.branch, version.number, fresh=fresh)
        if state is not None and state.id == version.id:
            return state
        # The branch was renamed, or it was deleted and a new branch has its name: only the commit id tells.
        try:
            return self.versions.load(*resolve(version.id, self.refs, self.versions))
        except RefNotFoundError as error:
            renamed = self._in_renamed_branch(version)
            if renamed is not None:
                return renamed
            what = "another version has its place" if state is not None else "its branch was deleted, or it expired"
            raise VersionNotFoundError(f"{version} of {self.uri} is gone: {what}") from error

    def _in_renamed_branch(self, version: Version) -> State | None:
        """Find a version on a renamed branch: its number and transaction are the same, its commit id is not."""
        # A rename writes the manifests again under the new name, so the commit id, a digest of the bytes, is another.
        for branch in self.refs.branches.all().values():
            if branch.state != READY or RENAMED_FROM not in branch.metadata or branch.name == version.branch:
                continue
            state = self.versions.find(branch.name, version.number, branch.id)
            if state is not None and state.transaction is not None and state.transaction.uuid == version.transaction:
                return state
        return None

    def load_recorded(self, recorded: RecordedVersion) -> State:
        """Read a version that was recorded, even if its branch was renamed since.

        Raises:
            VersionNotFoundError: The version is gone. A version with its number on a later branch of the same name is
                another version and is not returned.
        """
        ancestry = Ancestry(self.refs, self.versions)
        place = ancestry.resolve_recorded(recorded)
        if place is None:
            raise ancestry.recorded_version_gone(recorded)
        return self.versions.load(place.branch, place.number, recorded.branch_id)

    def head(self, branch: str) -> State:
        """Read the newest version of a branch.

        Raises:
            RefNotFoundError: There is no such branch.
            CommitConflictError: The branch is being reset to a version of another branch.
        """
        state = self.find_head(branch)
        if state is None:
            raise self.refs.branch_not_found(branch)
        return state

    def find_head(self, name: str) -> State | None:
        """Read the newest version of a branch as `head` does; return None when there is no such branch."""
        if name == MAIN:
            return self.versions.head(name)
        # The versions are listed before the file is read: a new branch of the name begins above the versions of earlier
        # branches. So the listed versions from `first` of the file on belong to the branch of the file.
        newest = self.versions.newest_few(name) if self.refs.branches.may_have(name) else []
        # The newest version is read at the same time: in almost all cases it belongs to the branch of the file.
        branch, newest_state = together(
            self.store,
            lambda: self.refs.branches.stored(name),
            lambda: self.versions.find(name, newest[0]) if newest else None,
        )
        state = READY if branch is None else branch.state
        if branch is not None and state != READY and RESETTING in branch.metadata:
            raise being_reset(branch, self.refs)
        if branch is None or state != READY:
            return None
        if not newest or newest[0] < branch.first:
            return self.versions.head(name, branch.id)
        if newest_state is not None:
            self.versions.cached.put(branch.id, newest_state)
        return replace(self.versions.head(name, branch.id, newest), of=branch)

    def dataset(self, state: State, fragment_ids: Iterable[int] | None = None) -> "LanceDataset":
        """Open a version with pylance.

        Args:
            state: The version.
            fragment_ids: The fragments that the caller reads and whose deletion files it did not decode itself; None
                for all. Their deletion files are decoded before pylance reads them.

        Raises:
            CorruptFileError: A deletion file is damaged.
            FormatError: The version's manifest cannot be read whole.
            BasePathRefusedError: The version names files outside of the table that are not allowed.
            StoreError: A file or folder is a symbolic link.
        """
        self.check_before_reading(state, fragment_ids)
        manifest = self.versions.cached.message(state)
        return open_dataset(self.uri, state.branch, state.number, self.storage_options, manifest=manifest)

    def open_rows(self, state: State) -> "LanceDataset":
        """Open a version with pylance as `dataset` does, for its rows alone (`datafiles.open_rows`)."""
        self.check_before_reading(state)
        manifest = self.versions.cached.message(state)
        return open_rows(self.uri, state.branch, state.number, self.storage_options, manifest=manifest)

    def check_before_reading(self, state: State, fragment_ids: Iterable[int] | None = None) -> None:
        """Check the files of a version as the options ask for, before pylance opens them; errors as for `dataset`."""
        check_readable(state.manifest, state.path or str(state))
        for base in state.manifest.base_paths:
            # pylance follows every base path, so it gets no version with a base path that is not allowed.
            try:
                self.versions.bases.check(base.path, base.id)
            except BasePathRefusedError as error:
                present = self.present_base(state.branch, base)
                if present == base or not self.versions.bases.is_inside(present.path):
                    raise
                # The table was relocated, so relocating it once more has nothing to do for this version.
                raise BasePathRefusedError(error.table, error.place, before_move=str(state)) from error
        _refuse_links(self.versions, state)
        checks = file_checks(self.storage_options)
        if checks != "none":
            check_deletions(self.versions, state, fragment_ids)
        if checks == "shapes":
            _check_shapes(self.versions, state)

    def present_base(self, branch: str, base: BasePath) -> BasePath:
        """Return a base path of a version, with its present place where the table or the place was moved since.

        `relocate` and `move_base` correct the newest version of a branch; older versions keep the old path. A place
        outside of the table is allowed or refused as if the newest version named it. If the newest version cannot be
        read, the base path is returned as it is.
        """
        bases = self.versions.bases
        try:
            if bases.locate(base.path, base.id)[0] is self.store:
                return base
            refused = False
        except (InvalidInputError, StoreError):
            refused = True
        try:
            (present,) = restored_base_paths([base], self.versions.head(branch).manifest.base_paths)
            # A copy of a table has copies of all its files: the original's are not looked at even if they can be read.
            return present if refused or bases.is_inside(present.path) else base
        except (FormatError, InvalidInputError, StoreError, VersionNotFoundError):
            return base

    def scan_isolated(self, state: State, columns: Sequence[str] | None, filter: str | None) -> pa.RecordBatchReader:
        """Read rows of a version in a process of its own; errors as for `LanceTable.scan`."""
        self.check_before_reading(state)
        scan = IsolatedScan(
            uri=self.uri,
            branch=state.branch,
            number=state.number,
            storage_options=self.storage_options,
            columns=None if columns is None else [*string_list("columns", columns, "id")],
            filter=filter,
            size=sum(file.size for fragment in state.manifest.fragments for file in fragment.files),
        )
        return scan_isolated(scan)

    def read(self, state: State, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
        """Read rows of a version into memory; errors as for `LanceTable.scan`."""
        return read(*self._rows(state, columns, filter))

    def scan(
        self, state: State, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> pa.RecordBatchReader:
        """Read rows of a version as a stream of batches; errors as for `LanceTable.scan`."""
        return scan(*self._rows(state, columns, filter))

    def _rows(
        self, state: State, columns: Sequence[str] | None, filter: str | None
    ) -> "tuple[LanceDataset, Sequence[str] | None, str | None, Sequence[int] | None]":
        """Return the arguments to read rows with: only fragments that may have rows of the filter are opened."""
        fragments = self.matching_fragments(state, filter)
        return self.dataset(state, fragments), columns, filter, fragments

    def count_rows(self, state: State, filter: str | None = None) -> int:
        """Return how many rows a version has, or how many of them a filter selects.

        Rows of a fragment whose metadata says that the filter selects all of them are counted in the manifest. A
        version written by a very old program does not record how many rows it has; then rows are counted.
        """
        if filter is None:
            try:
                return state.manifest.rows
            except UnsupportedFeatureError:
                return count(self.dataset(state))
        matches = self.known_matches(state, filter)
        if matches is None:
            return count(self.dataset(state), filter)
        rows = sum(state.manifest.fragment(number).rows for number in matches.whole)
        if matches.possible:
            return rows + count(self.dataset(state, matches.possible), filter, matches.possible)
        # For the error that a search would raise.
        evaluate_predicate(filter, pa.Table.from_batches([], state.schema))
        return rows

    def known_matches(self, state: State, filter: str) -> KnownMatches | None:
        """Return which fragments of a version may have rows of a filter, as far as the manifest tells.

        Raises:
            InvalidInputError: The filter is not a single condition.
        """
        check_closed("the filter", filter)
        return known_matches(state.manifest, filter)

    def matching_fragments(self, state: State, filter: str | None) -> tuple[int, ...] | None:
        """Return the ids of the fragments that may have rows of a filter; None where every fragment is searched.

        Raises:
            InvalidInputError: The filter is not a single condition.
        """
        matches = None if filter is None else self.known_matches(state, filter)
        return None if matches is None else matches.fragments


def expected_file(versions: Versions, state: State, file: DataFile) -> ExpectedFile:
    """Return where a data file of a version lies, and its size as far as it is known."""
    base = base_path_of(state.manifest, file.base_id, versions.branch_uri(state.branch))
    key = layout.join(layout.DATA if base.is_dataset_root else "", file.path)
    store, key = versions.locate(base.path, key, base.id)
    # A size of 0 is unknown, and the size that a file of the first format records may be wrong.
    size = file.size if file.version != LEGACY_FILE_VERSION else 0
    return ExpectedFile(store=store, key=key, size=size or store.sizes(key.rpartition("/")[0]).get(file.path, 0))


def _refuse_links(versions: Versions, state: State) -> None:
    """Refuse a version with a symbolic link where pylance would follow it; object storage has none."""
    root = layout.branch_root(state.branch)
    prefix = f"{root}/" if root else ""
    # pylance writes to the first two when it compacts.
    unread = [f"{prefix}{folder}" for folder in (layout.VERSIONS, layout.TRANSACTIONS)]
    versions.store.refuse_links(*unread, below=[f"{prefix}{folder}" for folder in _READ_BY_PYLANCE])
    for base in state.manifest.base_paths:
        try:
            store, folder = versions.locate(base.path, "", base.id)
        except BasePathRefusedError:
            raise
        except InvalidInputError:
            # A place that the caller allows, of a scheme that only pylance knows.
            continue
        folders = [layout.join(folder, below) for below in _READ_BY_PYLANCE] if base.is_dataset_root else [folder]
        store.refuse_links(below=folders)


def _check_shapes(versions: Versions, state: State) -> None:
    """Check the footers and the positions of all pages of the data files that were not checked before."""
    waiting: dict[str, tuple[ExpectedFile, int]] = {}
    for fragment in state.manifest.fragments:
        for file in fragment.files:
            # Files of the first format have another layout.
            if file.version != LEGACY_FILE_VERSION:
                expected = expected_file(versions, state, file)
                if expected.path not in versions.checked_files:
                    waiting[expected.path] = expected, fragment.physical_rows
    shapes = read_shapes([expected for expected, _ in waiting.values()], pages=True)
    for (path, (_, rows)), shape in zip(waiting.items(), shapes, strict=True):
        if shape.rows != rows:
            raise CorruptFileError(path, f"it has {shape.rows} rows, but {state} records {rows}")
        # A data file never changes, so once is enough for all versions that name it.
        versions.checked_files.add(path)


def open_context(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> TableContext:
    """Put together the context of the table at a URI; nothing is read yet."""
    store = open_store(uri, storage_options)
    options = dict(storage_options or {})
    return TableContext(store, Refs(store), Versions(store, options), options)


def first_parent_log(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> list[Version]:
    """Return a version and its first parents, newest first."""
    return first_parents(*_log_arguments(context, ref, after=after, limit=limit, only=only))


def full_log(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> list[tuple[Version, tuple[str, ...]]]:
    """Return a version and all its ancestors, newest first, each with its parents in the graph."""
    entries = all_parents(*_log_arguments(context, ref, after=after, limit=limit, only=only))
    return [(version, tuple(map(str, below))) for version, below in entries]


def _log_arguments(
    context: TableContext, ref: Ref, *, after: Ref | None, limit: int | None, only: LogFilter | None
) -> tuple[Ancestry, VersionRef, LogQuery]:
    if only is not None:
        check_class("only", only, LogFilter, "LogFilter(merges=True)")
    # Only the place of the version is resolved, because the log reads each manifest itself.
    start = context.place(ref)
    query = LogQuery(after=None if after is None else context.at(after), limit=limit, only=only or LogFilter())
    ancestry = Ancestry(context.refs, context.versions)
    if not ancestry.exists(start):
        # Loading raises the error that lists the existing versions.
        context.versions.load(start.branch, start.number)
    return ancestry, start, query
