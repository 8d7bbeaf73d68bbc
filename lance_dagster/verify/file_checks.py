"""Checks of the files that versions name, against listings of their folders.

Each folder is listed once and the names are compared; asking for every file by itself would take one request for each.
A folder that cannot be listed is one problem for each file in it that a version names: the file may be missing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_dagster.datafiles import (
    DataFileInspector,
    ExpectedFile,
    digest_of,
    digested_files,
    read_shape,
    record_digest,
    recorded_digests,
)
from lance_dagster.errors import (
    BasePathRefusedError,
    CorruptFileError,
    FormatError,
    InvalidInputError,
    StoreError,
    counted,
)
from lance_dagster.format import layout
from lance_dagster.format.arrow_types import BLOB
from lance_dagster.format.codec import DataFileShape, decode_transaction
from lance_dagster.format.deletions import decode_offsets
from lance_dagster.format.model import LEGACY_FILE_VERSION, BasePath, DataFile, Fragment, IndexMetadata
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.store import Store, base_options
from lance_dagster.transactions.base_paths import base_path_of
from lance_dagster.transactions.index_updates import covered_fragments
from lance_dagster.verify.manifest_rules import WARNING, Problem, problem_of

# A file ends with the numbers of its format, two bytes each, and the magic.
_VERSION_BYTES = 8
_FIRST_FORMAT = (b"\0\0\1\0", b"\0\0\2\0")
_NEEDED = "a file that a version names stays until the version is gone"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files in a folder with their sizes in bytes; `sizes` is None where `problem` says why it cannot be listed."""

    store: Store | None
    key: str
    uri: str
    sizes: Mapping[str, int] | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A data file as a fragment describes it, and where it is read."""

    uri: str
    path: str
    rows: int
    file: DataFile
    fragment: int
    base: BasePath
    has_blobs: bool


@dataclass(frozen=True, slots=True)
class ReferencedIndexFile:
    """A file of an index: the index, the folder of the file and its base path, its name, and who names it."""

    index: str
    listing: Listing
    base: BasePath
    name: str
    versions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DigestCheck:
    """The problems that the digests of a data file show, how many files were compared, and how many have no digest."""

    problems: tuple[Problem, ...]
    compared: int
    without: int


class FileChecks:
    """Checks the files of one table, its base paths included, and counts the distinct files."""

    def __init__(self, context: TableContext) -> None:
        """Take the table; nothing is listed yet."""
        self._context = context
        self._listings: dict[tuple[str, int, str], Listing] = {}
        self._digests: dict[tuple[str, str], Mapping[str, frozenset[str]]] = {}
        self._present_bases: dict[tuple[str, BasePath], BasePath] = {}
        self.data_files: set[str] = set()
        self.deletion_files: set[str] = set()
        self.index_files: dict[str, ReferencedIndexFile] = {}
        self.base_paths: set[str] = set()

    def check_bases(self, state: State) -> Iterator[Problem]:
        """Record the base paths outside of the table, and report base paths that are not allowed."""
        for named in state.manifest.base_paths:
            base = self._present(state.branch, named)
            try:
                store, _ = self._context.versions.bases.locate(base.path, base.id)
            except BasePathRefusedError as error:
                self.base_paths.add(error.place)
                yield Problem(
                    what="a base path outside of the table is not allowed; its rows may be those of another table",
                    right=str(error.remedy),
                    path=error.place,
                )
            except (InvalidInputError, StoreError) as error:
                what = f"a base path cannot be reached: {error}"
                yield Problem(what=what, right="every base path can be reached", path=None)
            else:
                if store is not self._context.store:
                    self.base_paths.add(store.uri)

    def check_fragment(self, state: State, fragment: Fragment) -> Iterator[Problem]:
        """Check that a fragment's files exist in full size, and that its deletion vector fits."""
        for file in fragment.files:
            base = self._base(state, file.base_id)
            if base is None:
                continue
            listing = self._listed(base, layout.DATA)
            # Files are counted by displayed path, so a file that several versions name counts once.
            self.data_files.add(self._display_path(listing, file.path))
            # Lance recorded wrong sizes for files of the first format, and no reader uses them.
            size = file.size if file.version != LEGACY_FILE_VERSION else 0
            yield from self._compared(listing, file.path, size, fragment.id)
        yield from self._check_deletion(state, fragment)

    def named(self, state: State, fragment: Fragment) -> Iterator[NamedFile]:
        """Yield the data files of a fragment that exist and can be opened on their own."""
        blobs = {field.id for field in state.manifest.fields if field.extension_name == BLOB}
        for file in fragment.files:
            base = self._base(state, file.base_id)
            listing = None if base is None else self._listed(base, layout.DATA)
            there = listing is not None and file.path in (listing.sizes or ())
            if base is not None and listing is not None and there and file.version != LEGACY_FILE_VERSION:
                yield NamedFile(
                    uri=f"{listing.uri}/{file.path}",
                    path=self._display_path(listing, file.path),
                    rows=fragment.physical_rows,
                    file=file,
                    fragment=fragment.id,
                    base=base,
                    has_blobs=not blobs.isdisjoint(file.fields),
                )

    def opened(self, named: NamedFile, inspector: DataFileInspector, *, ranges: bool) -> DataFileShape:
        """Open a data file, and decode all of its values unless it has blob columns; find their ranges if asked to.

        Raises:
            CorruptFileError: The file cannot be opened or decoded.
        """
        listing = self._listed(named.base, layout.DATA)
        if listing.store is not None and listing.sizes is not None:
            # pylance allocates what positions and sizes in the file claim, so those are checked first.
            key = layout.join(listing.key, named.file.path)
            read_shape(ExpectedFile(store=listing.store, key=key, size=listing.sizes[named.file.path]), pages=True)
        # A blob column is stored as descriptions that only a table can decode; the values are in other files.
        return inspector.inspect(
            named.uri, self._options(named.base), size=named.file.size, decode=not named.has_blobs, ranges=ranges
        )

    def _options(self, base: BasePath) -> Mapping[str, str]:
        """Return the options for a base path, without options for other places, which may hold credentials."""
        uri, options = self._context.uri, self._context.storage_options
        own = base.path == uri or base.path.startswith(f"{uri}/")
        return options if own else base_options(options, base.id, base.path)

    def check_digests(self, named: NamedFile) -> DigestCheck:
        """Read a data file and its blob files, and compare them with the digests that are recorded for them."""
        problems: list[Problem] = []
        compared = without = 0
        for store, key, recorded in self._digested(named):
            if not recorded:
                without += 1
                continue
            digest = digest_of(store, key)
            # A data file that is gone by now is reported as missing, unless its version is gone too.
            if digest is None and (key.endswith(".lance") or not self._is_there(named)):
                continue
            compared += digest is not None
            if digest is None or recorded != {digest[0]}:
                path = f"{store.uri}/{key}".removeprefix(f"{self._context.uri}/")
                right = f"the digest recorded for it is {' and '.join(sorted(recorded))}; bring it back from a copy"
                what = "it is missing" if digest is None else f"its bytes changed: their SHA-256 is {digest[0]}"
                problems.append(Problem(what=what, right=right, path=path, fragment=named.fragment))
        return DigestCheck(tuple(problems), compared, without)

    def _is_there(self, named: NamedFile) -> bool:
        """Return whether a data file still exists: its blob files are gone where its version was removed meanwhile."""
        listing = self._listed(named.base, layout.DATA)
        return listing.store is not None and named.file.path in listing.store.sizes(listing.key)

    def record_digests(self, named: NamedFile) -> int:
        """Record the digests of a data file and its blob files where there are none; return how many were recorded."""
        return sum(record_digest(store, key) for store, key, recorded in self._digested(named) if not recorded)

    def _digested(self, named: NamedFile) -> Iterator[tuple[Store, str, frozenset[str]]]:
        """Yield the data file and its blob files: store, key, and the digests that are recorded for it."""
        listing = self._listed(named.base, layout.DATA)
        if listing.store is None or listing.sizes is None:
            return
        data = layout.join(listing.key, named.file.path)
        for key in digested_files(listing.store, data, blobs=named.has_blobs):
            folder, _, name = key.rpartition("/")
            place = (listing.store.uri, folder)
            if place not in self._digests:
                self._digests[place] = recorded_digests(
                    listing.sizes if folder == listing.key else listing.store.list(folder)
                )
            yield listing.store, key, self._digests[place].get(name, frozenset())

    def check_transaction_file(self, state: State) -> Iterator[Problem]:
        """Check that a transaction file, where it still exists, holds the transaction that its version holds."""
        name = state.manifest.transaction_file
        path = layout.join(layout.branch_root(state.branch), layout.TRANSACTIONS, name)
        # A missing file is not a problem: other programs delete these files, and the manifest holds the transaction.
        data = self._context.store.get(path) if name else None
        if data is None or state.transaction is None:
            return
        right = "it holds the transaction of its version; programs that read it take the version for another change"
        try:
            transaction = decode_transaction(data, path)
        except FormatError as error:
            what = problem_of(error)
            yield Problem(what=what, right=right, severity=WARNING, path=path)
            return
        if transaction != state.transaction:
            yield Problem(what="it holds another transaction", right=right, severity=WARNING, path=path)

    def offsets(self, state: State, fragment: Fragment) -> BitMap | Problem:
        """Return the deleted offsets of a fragment, or the problem of its deletion file."""
        deletion = fragment.deletion
        if deletion is None:
            return BitMap()
        base = self._base(state, deletion.base_id)
        name = layout.deletion_path(fragment.id, deletion).removeprefix(f"{layout.DELETIONS}/")
        listing = None if base is None else self._listed(base, layout.DELETIONS)
        if listing is None or listing.sizes is None or listing.store is None:
            return self._unreachable(listing)
        path = self._display_path(listing, name)
        if name not in listing.sizes:
            return Problem(what="the deletion file is missing", right=_NEEDED, path=path, fragment=fragment.id)
        try:
            # The file is read whole, since the count in the manifest has to agree with the bytes.
            data = listing.store.get(layout.join(listing.key, name))
            offsets = decode_offsets(deletion.kind, data or b"", path, fragment.physical_rows)
        except (CorruptFileError, StoreError) as error:
            reason = problem_of(error)
            return Problem(what=reason, right="the deletion file can be decoded", path=path, fragment=fragment.id)
        return offsets

    def read_index_file(self, path: str, inspector: DataFileInspector) -> Iterator[Problem]:
        """Open a file of an index and read it whole."""
        index_file = self.index_files[path]
        store, size = index_file.listing.store, (index_file.listing.sizes or {}).get(index_file.name)
        if store is None or not size:
            # The file is missing or empty, or cannot be listed, which another check reports.
            return
        key = layout.join(index_file.listing.key, index_file.name)
        try:
            # Indices of early releases of pylance have files of the first format, which cannot be opened on their own.
            if (store.get_range(key, size - _VERSION_BYTES, size) or b"")[:4] in _FIRST_FORMAT:
                return
            read_shape(ExpectedFile(store=store, key=key, size=size), pages=True)
            uri = f"{index_file.listing.uri}/{index_file.name}"
            inspector.inspect(uri, self._options(index_file.base), size=size, decode=True)
        except (CorruptFileError, StoreError) as error:
            right = f"a whole file of index {index_file.index!r}; create the index anew, since rows are not affected"
            yield Problem(what=problem_of(error), right=right, path=path)

    def check_index(self, state: State, index: IndexMetadata) -> Iterator[Problem]:
        """Check that the files of an index exist, in full size where their sizes are recorded."""
        base = self._base(state, index.base_id)
        # A system index may hold everything in its metadata and have no file.
        if base is None or not (index.files or index.fields):
            return
        folder = layout.join(layout.INDICES, index.uuid)
        listing = self._listed(base, folder)
        if not index.files and listing.sizes == {} and not _covers_nothing(index):
            yield Problem(
                what=f"index {index.name!r} has no files",
                right="its folder holds its files; queries that use it fail",
                path=self._display_path(listing, ""),
            )
        for file in index.files:
            below, _, name = file.path.rpartition("/")
            inner = self._listed(base, layout.join(folder, below))
            index_file = ReferencedIndexFile(index.name, inner, base, name)
            self.index_files.setdefault(self._display_path(inner, name), index_file).versions.append(str(state))
            yield from self._compared(inner, name, file.size, None)

    def _check_deletion(self, state: State, fragment: Fragment) -> Iterator[Problem]:
        deletion = fragment.deletion
        base = None if deletion is None else self._base(state, deletion.base_id)
        if deletion is None or base is None:
            return
        self.deletion_files.add(layout.join(base.path, layout.deletion_path(fragment.id, deletion)))
        deleted = self.offsets(state, fragment)
        if isinstance(deleted, Problem):
            yield deleted
            return
        # Very old manifests do not count deleted rows, so there is nothing to compare.
        if not fragment.has_row_count:
            return
        if len(deleted) != deletion.deleted_rows:
            yield Problem(
                what=f"the deletion file takes out {counted(len(deleted), 'row')}",
                right=f"the version records {deletion.deleted_rows}, and every count of rows relies on that",
                fragment=fragment.id,
            )
        if deleted and deleted.max() >= fragment.physical_rows:
            yield Problem(
                what=f"the deletion file takes out row {deleted.max()}",
                right=f"the fragment has {fragment.physical_rows} rows, counted from 0",
                fragment=fragment.id,
            )

    def _base(self, state: State, base_id: int | None) -> BasePath | None:
        """Return the folder of a file; None for an unknown base path, which `manifest_rules` reports."""
        own = self._context.versions.branch_uri(state.branch)
        try:
            base = base_path_of(state.manifest, base_id, own)
        except CorruptFileError:
            return None
        return base if base.path == own else self._present(state.branch, base)

    def _present(self, branch: str, base: BasePath) -> BasePath:
        # The result is kept, since a branch may have many versions from before it was relocated.
        place = (branch, base)
        if place not in self._present_bases:
            self._present_bases[place] = self._context.present_base(branch, base)
        return self._present_bases[place]

    def _listed(self, base: BasePath, folder: str) -> Listing:
        # A base path that is not a dataset root holds the files directly, without `data/` and the like.
        below = folder if base.is_dataset_root else folder.partition("/")[2]
        # The id is part of the key: two base paths may share a path and need different options.
        place = (base.path, base.id, below)
        if place not in self._listings:
            self._listings[place] = self._list(base, below)
        return self._listings[place]

    def _list(self, base: BasePath, folder: str) -> Listing:
        uri = layout.join(base.path.rstrip("/"), folder)
        try:
            store, key = self._context.versions.locate(base.path, folder, base.id)
            # For a folder of the table itself, the key includes the path to it.
            key = key.rstrip("/")
            return Listing(store, key, f"{store.uri}/{key}".rstrip("/"), store.sizes(key))
        except (StoreError, InvalidInputError) as error:
            return Listing(None, folder, uri, None, f"it cannot be listed: {error}")

    def _compared(self, listing: Listing, name: str, size: int, fragment: int | None) -> Iterator[Problem]:
        if listing.sizes is None:
            yield self._unreachable(listing)
            return
        path = self._display_path(listing, name)
        if name not in listing.sizes:
            yield Problem(what="the file is missing", right=_NEEDED, path=path, fragment=fragment)
        # A size of 0 means that the writer did not record the size.
        elif size not in (0, listing.sizes[name]):
            yield Problem(
                what=f"the file has {listing.sizes[name]} bytes",
                right=f"the version says {size}; a file is never changed once it is written",
                path=path,
                fragment=fragment,
            )

    def _unreachable(self, listing: Listing | None) -> Problem:
        return Problem(
            what=listing.problem if listing else "a base path is not there",
            right="every place that a version names can be reached with the options of the table",
            path=listing.uri if listing else None,
        )

    def _display_path(self, listing: Listing, name: str) -> str:
        return layout.join(listing.uri, name).removeprefix(f"{self._context.uri}/")


def _covers_nothing(index: IndexMetadata) -> bool:
    """Tell whether an index answers no query: pylance records an index before training, and writes no file of it."""
    try:
        covered = covered_fragments(index)
    except CorruptFileError:
        # Another check reports the bitmap.
        return False
    return covered is not None and not covered
