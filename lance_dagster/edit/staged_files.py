"""Check staged files before a commit names them, and read their rows.

A description of staged files, or a transaction, may come from another process, an older run or a configuration. A
version that names a file that is missing, truncated, or has other rows makes every reader of the table fail. So the
files are checked first, by one ranged read of each, in parallel. Files that the same call wrote are not checked again.
"""

import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_dagster.datafiles import ExpectedFile, read_data_file, read_shapes, staged_fragments
from lance_dagster.datafiles.writing import StagedFile, StagedFiles
from lance_dagster.errors import CorruptFileError, InvalidInputError, counted
from lance_dagster.format import layout
from lance_dagster.format.model import (
    LEGACY_FILE_VERSION,
    BasePath,
    DataFile,
    Fragment,
    Fragments,
    IndexFile,
    file_version_name,
)
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.format.transaction import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Rewrite,
    Transaction,
    Update,
)
from lance_dagster.format.validation import check_class
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.context import TableContext, expected_file
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import base_store, options_of, spelled
from lance_dagster.store import Store
from lance_dagster.transactions.base_paths import base_path_of, data_folder
from lance_dagster.transactions.index_updates import indices_of


def check_staged(context: TableContext, head: State, staged: StagedFiles) -> None:
    """Check that staged files exist at their place, with the size, rows and columns of their description.

    Raises:
        InvalidInputError: A description has an invalid name or size, or the file has other rows or columns.
        CorruptFileError: A file is missing, has another size, or is not a data file.
        StoreError: The storage failed.
    """
    _check_descriptions(staged.files)
    store, folder = _place(context, head, staged.base)
    files = [ExpectedFile(store=store, key=layout.join(folder, file.name), size=file.size) for file in staged.files]
    fragments = staged_fragments(staged, fields_from_arrow(staged.schema), head.manifest.file_version)
    for file, fragment, shape in zip(files, fragments, read_shapes(files), strict=True):
        described = fragment.files[0]
        columns, version = len(described.column_indices), described.version
        file_version = file_version_name(shape.major, shape.minor)
        wrong = (
            f"{counted(shape.rows, 'row')}, but its description has {fragment.physical_rows}"
            if shape.rows != fragment.physical_rows
            else f"{counted(shape.columns, 'column')}, and the table stores {columns}"
            if shape.columns < columns
            else f"the format version {file_version}, and the table has {version}"
            if file_version != version
            else None
        )
        if wrong is not None:
            raise InvalidInputError(f"the staged file {file.path} has {wrong}")


def commit_given(context: TableContext, branch: str, transaction: Transaction) -> State:
    """Commit a transaction that a caller made, or return the version it made if it landed before.

    Raises:
        CommitConflictError: A version that was committed since its read version conflicts with it.
        CommitStateUnknownError: The transaction may or may not have landed; commit it again to find out.
        ProtectedError: The branch is protected and takes only merges.
        InvalidInputError: It is not a transaction.
    """
    check_class("transaction", transaction, Transaction, "lance_dagster.Transaction(...)")
    # Refuses a branch that does not exist, or whose creation or deletion has not finished.
    head = context.head(branch)

    def check() -> None:
        check_transaction(context, head, transaction)

    return commit_transaction(context.versions, branch, transaction, check=check)


def check_transaction(context: TableContext, head: State, transaction: Transaction) -> None:
    """Check the files that a transaction adds, as `check_staged` does, and that the files of new indices exist.

    Files that the version describes in the same way already are not read again.

    Raises:
        InvalidInputError: A name cannot be the name of a file, a file has other rows or columns, or the version has its
            rows already.
        CorruptFileError: A file is missing, has another size, or is damaged.
        BasePathRefusedError: A file lies outside of the table, where it is not allowed.
        StoreError: The storage failed.
    """
    operation = transaction.operation
    # What landed since the transaction read the table is classified against it (`transactions.conflicts`).
    read_state = head if transaction.read_version == head.number else None
    read_state = read_state or context.versions.find(head.branch, transaction.read_version) or head
    added, replaced = _added_fragments(operation)
    refuse_repeated(
        read_state, added, read_state.manifest.fragments.ids if isinstance(operation, Overwrite) else replaced
    )
    if isinstance(operation, Overwrite) and operation.initial_bases:
        bases = (*head.manifest.base_paths, *operation.initial_bases)
        head = replace(head, manifest=replace(head.manifest, base_paths=bases))
    files = list(_added_files(context, head, operation))
    for expected, _, _ in files:
        # A file whose writer did not record its size, and that is not in the listing of its folder.
        if expected.size <= 0:
            raise CorruptFileError(expected.path, "it is missing")
    # Files of the first format have another layout, so only their place was checked.
    shaped = [added_file for added_file in files if added_file[1].version != LEGACY_FILE_VERSION]
    for (expected, file, rows), shape in zip(
        shaped, read_shapes([added_file[0] for added_file in shaped]), strict=True
    ):
        if shape.rows != rows:
            rows_of_file = counted(shape.rows, "row")
            raise InvalidInputError(f"the file {expected.path} has {rows_of_file}, but the transaction has {rows}")
        last_column = max(file.column_indices, default=-1)
        if shape.columns <= last_column:
            columns = counted(shape.columns, "column")
            raise InvalidInputError(
                f"the file {expected.path} has {columns}, but the transaction names column {last_column}, counted from "
                "0"
            )
        version = file_version_name(shape.major, shape.minor)
        if version != file.version:
            raise InvalidInputError(
                f"the file {expected.path} has the format version {version}, but the transaction has {file.version}"
            )
    _check_indices(context, head, operation)


def refuse_repeated(head: State, added: Iterable[Fragment], replaced: Collection[int] = ()) -> None:
    """Refuse new fragments with a data file whose rows a version has already, or that two of the fragments name.

    The rows would be in the table twice. A second commit of the same staged files is a retry of one that landed, so the
    error says that the rows are there.

    Args:
        head: The version that the fragments are added to.
        added: The fragments, with base ids of the version.
        replaced: The ids of the fragments that the same commit removes or replaces.

    Raises:
        InvalidInputError: Names the file.
    """
    named = Counter((file.path, file.base_id) for fragment in added for file in fragment.files)
    names = {path for path, _ in named}
    # One write gives its files one prefix, so almost every fragment is passed over without being parsed.
    prefix = os.path.commonprefix([*names]).encode()  # noqa: RUF071  # letters of a name, not parts of a path
    fragments = head.manifest.fragments
    for number, item in zip(fragments.ids, fragments.items, strict=True) if _may_name(fragments, names, prefix) else ():
        if number in replaced or (isinstance(item, bytes) and prefix not in item):
            continue
        if not names.isdisjoint(fragments.paths(number)) and (own := fragments.find(number)) is not None:
            places = [(file.path, file.base_id) for file in own.files]
            named.update(place for place in places if place in named)
    for (path, _), count in named.items():
        if count > 1:
            raise InvalidInputError(
                f"{head} has the rows of the file {path} already, or the file is given twice, so its rows would be "
                "duplicated; to add equal rows again, write them to new files"
            )


def _may_name(fragments: Fragments, names: Collection[str], prefix: bytes) -> bool:
    """Return whether a fragment may have a file of these names; False is certain."""
    encoded = [item for item in fragments.items if isinstance(item, bytes)]
    parsed = (item for item in fragments.items if isinstance(item, Fragment))
    # One search in all fragments takes a twentieth of the time of a search in each, which reads the ids too.
    return bool(names) and (
        prefix in b"".join(encoded) or any(file.path in names for fragment in parsed for file in fragment.files)
    )


def _added_files(
    context: TableContext, head: State, operation: Operation
) -> Iterator[tuple[ExpectedFile, DataFile, int]]:
    """Return the data files that a version does not describe in the same way, with the rows of their fragments."""
    described = {_description(file, own.physical_rows) for own in head.manifest.fragments for file in own.files}
    for fragment in _named_fragments(head, operation):
        if not fragment.files:
            raise InvalidInputError(f"the fragment {fragment.id} has no data file, so nothing records its rows")
        for file in fragment.files:
            if _description(file, fragment.physical_rows) in described:
                continue
            _check_name(file.path)
            if file.version == LEGACY_FILE_VERSION != head.manifest.file_version:
                known_version = head.manifest.file_version
                raise InvalidInputError(
                    f"the transaction gives {file.path} the format 0.1, but {head} has {known_version}"
                )
            yield expected_file(context.versions, head, file), file, fragment.physical_rows
        before = head.manifest.fragments.find(fragment.id)
        if fragment.deletion is not None and (before is None or before.deletion != fragment.deletion):
            # Decoding it compares it with the fragment.
            deleted_offsets(context.versions, head, fragment)


def _description(file: DataFile, rows: int) -> Hashable:
    """Return the facts about a data file that a fragment records and the file may contradict."""
    return file.path, file.base_id, file.size, file.version, max(file.column_indices, default=-1), rows


def _named_fragments(head: State, operation: Operation) -> Iterator[Fragment]:
    """Return the fragments that an operation describes."""
    yield from _numbered_fragments(head, operation)
    for fragment in _added_fragments(operation)[0]:
        if fragment.deletion is not None:
            raise InvalidInputError(
                "a new fragment cannot have a deletion file: its name has the id that the commit gives the fragment"
            )
        yield fragment


def _numbered_fragments(head: State, operation: Operation) -> Iterable[Fragment]:
    """Return the fragments that an operation describes under ids that exist already or were reserved."""
    match operation:
        case Delete(updated_fragments=changed) | Update(updated_fragments=changed) | Merge(fragments=changed):
            return changed
        case Rewrite(groups=groups):
            return [fragment for group in groups for fragment in group.new]
        case DataReplacement(replacements=replacements):
            # A fragment that does not exist is refused when the operation is applied.
            pairs = [(head.manifest.fragments.find(number), file) for number, file in replacements]
            return [replace(own, files=(file,)) for own, file in pairs if own is not None]
    return ()


def _added_fragments(operation: Operation) -> tuple[Sequence[Fragment], frozenset[int]]:
    """Return the fragments that get new ids, and the ids of fragments that the same operation removes or replaces."""
    match operation:
        case Append(fragments=new) | Overwrite(fragments=new):
            return new, frozenset()
        case Update(new_fragments=new):
            # As in a `replace_where` with the same files, the rows of an updated fragment may be the replaced rows.
            return new, frozenset((*operation.removed_fragment_ids, *(own.id for own in operation.updated_fragments)))
    return (), frozenset()


def _check_indices(context: TableContext, head: State, operation: Operation) -> None:
    """Check that the files of new indices exist, with the sizes that the transaction records.

    Raises:
        InvalidInputError: A name leads out of the folder of the index.
        CorruptFileError: A file is missing or has another size.
    """
    match operation:
        case CreateIndex(new_indices=new):
            present = indices_of(head.manifest)
            # A system index may have everything in its metadata, and no file.
            added = [
                (index.uuid, index.base_id, index.files)
                for index in new
                if index not in present and (index.fields or index.files)
            ]
        case Rewrite(rewritten_indices=rewritten):
            added = [(index.new, None, index.files) for index in rewritten]
        case _:
            return
    for uuid, base_id, files in added:
        _check_index_files(context, head, uuid, base_id=base_id, files=files)


def _check_index_files(
    context: TableContext, head: State, uuid: str, *, base_id: int | None, files: Sequence[IndexFile]
) -> None:
    if not layout.is_file_name(uuid):
        raise InvalidInputError(f"{uuid!r} cannot be the uuid of an index")
    base = base_path_of(head.manifest, base_id, context.versions.branch_uri(head.branch))
    folder = layout.join(layout.INDICES if base.is_dataset_root else "", uuid)
    store, folder = context.versions.locate(base.path, folder, base.id)
    sizes: dict[str, Mapping[str, int]] = {folder: store.sizes(folder)}
    if not files and not sizes[folder]:
        raise CorruptFileError(f"{store.uri}/{folder}", "the index has no files")
    for file in files:
        if not layout.is_path_inside(file.path):
            raise InvalidInputError(f"{file.path!r} is not the path of a file in the folder of an index")
        below, _, name = layout.join(folder, file.path).rpartition("/")
        if below not in sizes:
            sizes[below] = store.sizes(below)
        size = sizes[below].get(name)
        if size is None:
            raise CorruptFileError(f"{store.uri}/{below}/{name}", "it is missing")
        # A size of 0 means that the writer did not record the size.
        if file.size not in (0, size):
            raise CorruptFileError(
                f"{store.uri}/{below}/{name}", f"it has {size} bytes, but the transaction records {file.size}"
            )


def read_staged(
    context: TableContext, head: State, staged: StagedFiles, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read columns of staged files at their place.

    Raises:
        InvalidInputError: The version has no base path at the place of the files.
        StoreError: A file cannot be read.
    """
    folder, options = f"{context.uri}/{layout.DATA}", context.storage_options
    if staged.base is not None:
        base = _base_of(head, staged.base)
        folder, options = data_folder(base), options_of(context, base)
    for file in staged.files:
        yield from read_data_file(f"{folder}/{file.name}", columns, options)


def _check_name(name: str) -> None:
    if not layout.is_file_name(name):
        raise InvalidInputError(f"{name!r} is not the name of a file in the data folder of a table")


def _check_descriptions(files: tuple[StagedFile, ...]) -> None:
    for file in files:
        _check_name(file.name)
        if file.size <= 0:
            raise InvalidInputError(f"the size of the staged file {file.name} cannot be {file.size} bytes")
    repeated = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if repeated:
        raise InvalidInputError(f"the staged file {repeated[0]} is given twice, so its rows would be duplicated")


def _place(context: TableContext, head: State, base: str | None) -> tuple[Store, str]:
    """Return the store and the folder of staged files."""
    if base is None:
        return context.store, layout.DATA
    base_path = _base_of(head, base)
    return base_store(context, base_path), layout.DATA if base_path.is_dataset_root else ""


def _base_of(head: State, place: str) -> BasePath:
    base_path = next((own for own in head.manifest.base_paths if spelled(own.path) == place), None)
    if base_path is None:
        raise InvalidInputError(f"{head} has no base path at {place}, where files were staged; add_base adds it")
    return base_path
