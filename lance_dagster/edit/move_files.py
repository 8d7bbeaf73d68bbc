"""Move the data files of old rows to another base path, such as cheaper storage, and leave everything else as it is.

The files of a fragment are copied under the names they have, and one commit makes the fragment name the copies. Its id,
its rows with their ids and versions, its deletion file and the indices on it stay. A file has one name wherever it
lies, so diffs, merges and the known ranges of values see no difference either. The former files are left to the
collection, since older versions name them.

To other writers the commit is a compaction (`Rewrite`) of fragments into themselves: pylance repeats a change to these
fragments that it prepared on an older version, and an append, or a change elsewhere, is not disturbed. The other way
round, nothing that others commit meanwhile is in the way: a fragment of which they deleted rows is moved all the same,
and a fragment that they replaced, or gave other values, is left alone.

A record of the copies is written before the first of them (`gc.copy_records`), so that a collection finds what a call
that was killed has copied.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

import pyarrow as pa

from lance_dagster.datafiles import evaluate_predicate, matching_offsets, recorded_digests
from lance_dagster.edit.write import CommitInfo
from lance_dagster.errors import CommitConflictError, CorruptFileError, InvalidInputError, counted
from lance_dagster.format import layout
from lance_dagster.format.model import LEGACY_FILE_VERSION, BasePath, DataFile, Fragment
from lance_dagster.format.transaction import COMMIT_MESSAGE, Rewrite, RewriteGroup, Transaction
from lance_dagster.format.validation import check_flag, check_options, check_string
from lance_dagster.gc.collect import Progress
from lance_dagster.gc.copy_records import CopyRecord, write_record
from lance_dagster.history.base_access import refuse_place_of_table
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State, Version
from lance_dagster.placement.base_stores import base_store, destination, options_of, spelled
from lance_dagster.store import Store, concurrently, copy_file
from lance_dagster.transactions.base_paths import base_path_of, data_folder, root_base_id

_SUFFIX = ".lance"
_REQUESTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMove:
    """The data files that were moved, or would be moved by a call without `dry_run`.

    Attributes:
        version: The version that names the files at their new place; without a move, the version that was looked at.
        to: The name of the base path; "root" for the table's own folder.
        fragments: The ids of the fragments.
        files: The number of files, those of blobs and digests included.
        bytes: Their size.
        requests: How many requests the copies take on S3: four for each file, one of which copies it on the server.
            Between two storages a file is read and written, and a large file in parts.
        searched: The number of fragments whose data files were read to find out whether all of their rows match,
            because the version does not tell between which values they lie.
        dry_run: Whether nothing was done.
    """

    version: Version
    to: str
    fragments: tuple[int, ...] = ()
    files: int = 0
    bytes: int = 0
    requests: int = 0
    searched: int = 0
    dry_run: bool = False

    def __str__(self) -> str:
        """Return how many fragments, files and bytes are moved, and where."""
        if not self.fragments:
            return f"{self.version}: no fragment to move to {self.to}"
        did = "would move" if self.dry_run else "moved"
        return (
            f"{self.version}: {did} {counted(len(self.fragments), 'fragment')} to {self.to}, "
            f"{counted(self.files, 'file')} with {self.bytes:,} bytes, in {counted(self.requests, 'request')}"
        )


class FileMoveOptions(TypedDict, total=False):
    """The keyword arguments of `move_files` that a caller rarely needs."""

    dry_run: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where files are moved to: the folder of data files, as a URI and in its store, and the base id of a branch."""

    uri: str
    store: Store
    folder: str
    base_id: int | None
    base: BasePath | None

    def key(self, name: str) -> str:
        return layout.join(self.folder, name)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file to copy: its store and key (none of a digest), its name in the folder of data files, and its size."""

    store: Store
    key: str
    name: str
    size: int

    def to(self, place: _Place) -> None:
        if not self.key:
            # A digest is a name; the object is empty.
            place.store.put(place.key(self.name), b"", durable=False)
        elif not copy_file(self.store, self.key, place.store, place.key(self.name)):
            raise CorruptFileError(f"{self.store.uri}/{self.key}", "it is missing")


def move_files(
    context: TableContext,
    where: str,
    to: str,
    info: CommitInfo,
    **options: Unpack[FileMoveOptions],
) -> FileMove:
    """Move the data files of the fragments of which all rows match a predicate.

    Args:
        context: The table.
        where: The predicate.
        to: The name of a base path of the branch, or "root" for the folder of the table.
        info: The branch, message and properties of the commit.
        **options: `dry_run` only tells what would be moved; `progress` is called with the number of copied files and
            their total.

    Raises:
        InvalidInputError: The predicate is not valid, or files cannot be moved to the place.
        CorruptFileError: A file is missing, or a file of the name at the new place has another size.
        CommitConflictError: The base path was moved meanwhile.
    """
    check_options(move_files, options, FileMoveOptions)
    dry_run, progress = options.get("dry_run", False), options.get("progress")
    check_string("where", where)
    check_string("to", to)
    check_flag("dry_run", dry_run)
    head = context.head(info.branch)
    place = _place(context, head, to)
    if place.base is not None:
        # The base path of a clone is the table that it was made of: a collection of that table would delete the files.
        refuse_place_of_table(place.base.path, options_of(context, place.base))
    fragments, searched = _matching(context, head, where, place)
    copies = list(_copies(context, head, fragments, place))
    move = FileMove(
        version=context.versions.describe(head),
        to=to,
        fragments=tuple(fragment.id for fragment in fragments),
        files=len(copies),
        bytes=sum(copy.size for copy in copies),
        requests=_REQUESTS * len(copies),
        searched=searched,
        dry_run=dry_run,
    )
    if dry_run or not fragments:
        return move
    _copy_all(context, copies, place, progress)
    message = info.message or f"move the files of {counted(len(fragments), 'fragment')} to {to}"
    properties = {**info.properties, COMMIT_MESSAGE: message}
    mover = _Mover(context, to, place, {fragment.id: fragment for fragment in fragments}, properties)
    state = commit(context.versions, info.branch, mover.propose)
    return replace(move, version=context.versions.describe(state), fragments=tuple(mover.moved))


def _place(context: TableContext, head: State, to: str) -> _Place:
    base = destination(context, head, to)
    if base is None:
        uri = f"{context.uri}/{layout.DATA}"
        return _Place(uri, context.store, layout.DATA, root_base_id(head.manifest, context.uri), None)
    if context.versions.bases.is_inside(base.path):
        raise InvalidInputError(
            f"the base path {to!r} is a folder of the table itself; give 'root' to move files there"
        )
    folder = layout.DATA if base.is_dataset_root else ""
    return _Place(data_folder(base), base_store(context, base), folder, base.id, base)


def _matching(context: TableContext, head: State, where: str, place: _Place) -> tuple[list[Fragment], int]:
    """Return the fragments to move, and how many fragments were searched to find them.

    Raises:
        InvalidInputError: The predicate is invalid, or names a column that does not exist.
    """
    matches = context.known_matches(head, where)
    folders = _Folders(context, head)
    present = head.manifest.fragments
    numbers = present.ids if matches is None else matches.fragments
    elsewhere = {
        number: fragment
        for number in numbers
        if (fragment := present.find(number)) and any(folders.of(file) != place.uri for file in fragment.files)
    }
    whole = frozenset() if matches is None else frozenset(matches.whole)
    possible = [number for number in elsewhere if number not in whole]
    if not possible:
        # For the error that a search would raise.
        evaluate_predicate(where, pa.Table.from_batches([], head.schema))
        return list(elsewhere.values()), 0
    offsets = matching_offsets(context.dataset(head, possible), where, possible)
    matching = whole.union(number for number in possible if len(offsets.get(number, ())) == elsewhere[number].rows)
    return [fragment for number, fragment in elsewhere.items() if number in matching], len(possible)


@dataclass(slots=True)
class _Folders:
    """The folders of the data files of a version, by base id."""

    context: TableContext
    head: State
    _by_id: dict[int | None, tuple[BasePath, str]] = field(default_factory=dict)

    def base(self, file: DataFile) -> BasePath:
        return self._of(file)[0]

    def of(self, file: DataFile) -> str:
        return self._of(file)[1]

    def _of(self, file: DataFile) -> tuple[BasePath, str]:
        if file.base_id not in self._by_id:
            branch_uri = self.context.versions.branch_uri(self.head.branch)
            base = base_path_of(self.head.manifest, file.base_id, branch_uri)
            base = replace(base, path=spelled(base.path))
            self._by_id[file.base_id] = base, data_folder(base)
        return self._by_id[file.base_id]


def _copies(context: TableContext, head: State, fragments: Iterable[Fragment], place: _Place) -> Iterator[_Copy]:
    """Yield the files to copy: data files that lie elsewhere, with their blobs and digests."""
    folders = _Folders(context, head)
    by_base: dict[int | None, dict[str, DataFile]] = {}
    for fragment in fragments:
        for file in fragment.files:
            if folders.of(file) != place.uri:
                by_base.setdefault(file.base_id, {})[file.path] = file
    for files in by_base.values():
        base = folders.base(next(iter(files.values())))
        store, folder = context.versions.locate(base.path, layout.DATA if base.is_dataset_root else "", base.id)
        yield from _copies_of(store, folder, sorted(files), blobs=head.manifest.holds_blobs)


def _copies_of(store: Store, folder: str, names: Sequence[str], *, blobs: bool) -> Iterator[_Copy]:
    # One listing has the sizes of all files, and their digests.
    sizes = store.sizes(folder)
    digests = recorded_digests(sizes)
    for name in names:
        if name not in sizes:
            raise CorruptFileError(f"{store.uri}/{layout.join(folder, name)}", "it is missing")
        # Blobs are in a folder that is named like their data file.
        for entry in store.walk(layout.join(folder, name.removesuffix(_SUFFIX))) if blobs else ():
            yield _Copy(store, entry.key, entry.key.removeprefix(f"{folder}/") if folder else entry.key, entry.size)
        for digest in sorted(digests.get(name, ())):
            yield _Copy(store, "", layout.digest_file(name, digest), 0)
        yield _Copy(store, layout.join(folder, name), name, sizes[name])


def _copy_all(context: TableContext, copies: Sequence[_Copy], place: _Place, progress: Progress | None) -> None:
    names = frozenset(copy.name for copy in copies if copy.key and "/" not in copy.name)
    base = place.base
    if base is None:
        context.store.refuse_links(layout.DATA)
        record = CopyRecord(base=None, names=names)
    else:
        # Without the allowance of the place, a collection could not tell it from the folder of the table.
        context.versions.bases.allow_everyone(base.path, base.id)
        record = CopyRecord(base=base.path, base_id=base.id, is_dataset_root=base.is_dataset_root, names=names)
    write_record(context.store, record)
    concurrently(lambda copy: copy.to(place), copies, progress=progress)
    place.store.sync_folder(place.folder)


@dataclass(slots=True)
class _Mover:
    """Commits fragments whose files were copied.

    Attributes:
        context: The table.
        to: The name of the base path.
        place: The place of the copies.
        fragments: The fragments as they were when they were copied, by id.
        properties: The properties of the transaction.
        moved: The ids of the fragments in the newest proposal.
    """

    context: TableContext
    to: str
    place: _Place
    fragments: Mapping[int, Fragment]
    properties: Mapping[str, str]
    moved: list[int] = field(default_factory=list)
    # All proposals share one uuid, so a commit whose response was lost is recognised as this commit.
    _id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def propose(self, head: State) -> Proposal | State:
        """Propose the new places of the fragments that still have the copied files."""
        if head.transaction is not None and head.transaction.uuid == self._id:
            return head
        place = _place(self.context, head, self.to)
        if place.uri != self.place.uri:
            raise CommitConflictError(
                f"the base path {self.to!r} of {head} is at {place.uri} by now, and the files were copied to "
                f"{self.place.uri}; move them again",
                str(head),
                retryable=True,
            )
        find = head.manifest.fragments.find
        same = [
            own for number, fragment in self.fragments.items() if (own := find(number)) and own.files == fragment.files
        ]
        self.moved = [fragment.id for fragment in same]
        if not same:
            return head
        self._check(head, same)
        new = tuple(self._at_place(head, fragment, place) for fragment in same)
        operation = Rewrite(groups=(RewriteGroup(old=tuple(same), new=new),))
        transaction = Transaction(
            read_version=head.number, uuid=self._id, operation=operation, properties=self.properties
        )
        return Proposal(transaction, next_manifest(self.context.versions, head, transaction))

    def _at_place(self, head: State, fragment: Fragment, place: _Place) -> Fragment:
        folders = _Folders(self.context, head)
        files = (
            file if folders.of(file) == place.uri else replace(file, base_id=place.base_id) for file in fragment.files
        )
        return replace(fragment, files=tuple(files))

    def _check(self, head: State, fragments: Iterable[Fragment]) -> None:
        """Refuse to commit when a copy is missing: a collection that took it for garbage may have deleted it.

        Raises:
            CorruptFileError: A copy is missing, or has another size.
        """
        sizes = self.place.store.sizes(self.place.folder)
        for file in (file for fragment in fragments for file in fragment.files):
            size = sizes.get(file.path)
            # A size of 0 is unknown, and the size that a file of the first format records may be wrong.
            recorded = file.size if file.version != LEGACY_FILE_VERSION else 0
            if size is None or recorded not in (0, size):
                problem = "it is missing" if size is None else f"it has {size} bytes, and {head} has {recorded}"
                raise CorruptFileError(f"{self.place.uri}/{file.path}", f"{problem}; move the files again")
