"""Check staged files before a commit names them, and read their rows.

A description of staged files, or a transaction, may come from another process, an older run or a configuration. A
version that names a file that is missing, truncated, or has other rows makes every reader of the table fail. So the
files are checked first, by one ranged read of each, in parallel. Files that the same call wrote are not checked again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_dagster.datafiles import (
    ExpectedFile,
    StagedFile,
    StagedFiles,
    read_data_file,
    read_shapes,
    staged_fragments,
)
from lance_dagster.errors import InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.model import LEGACY_FILE_VERSION, BasePath, DataFile, Fragment, file_version_name
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.format.transaction import Operation, Overwrite, Rewrite, Transaction
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.context import TableContext, expected_file
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import base_store, options_of, spelled
from lance_dagster.store import Store
from lance_dagster.transactions.base_paths import data_folder


def check_staged(context: TableContext, head: State, staged: StagedFiles) -> None:
    """Check that staged files exist at their place, with the size, rows and columns of their description.

    Raises:
        InvalidInputError: A description cannot be that of a staged file, or the file has other rows or columns.
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
        found = file_version_name(shape.major, shape.minor)
        wrong = (
            f"{shape.rows} rows, but its description has {fragment.physical_rows}"
            if shape.rows != fragment.physical_rows
            else f"{shape.columns} columns, and the table stores {columns}"
            if shape.columns < columns
            else f"the format version {found}, and the table has {version}"
            if found != version
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
    """
    # Refuses a branch that does not exist, or whose creation or deletion has not finished.
    head = context.head(branch)

    def check() -> None:
        check_transaction(context, head, transaction)

    return commit_transaction(context.versions, branch, transaction, check=check)


def check_transaction(context: TableContext, head: State, transaction: Transaction) -> None:
    """Check the files that a transaction adds to a version, by the rules of `check_staged`.

    Files that the version names already are not checked again.

    Raises:
        InvalidInputError: A name cannot be that of a data file, or a file has other rows or columns.
        CorruptFileError: A file is missing, has another size, or is damaged.
        BasePathRefusedError: A file lies outside of the table, where it is not allowed.
        StoreError: The storage failed.
    """
    operation = transaction.operation
    if isinstance(operation, Overwrite) and operation.initial_bases:
        bases = (*head.manifest.base_paths, *operation.initial_bases)
        head = replace(head, manifest=replace(head.manifest, base_paths=bases))
    added = list(_added_files(context, head, operation))
    # Files of the first format have another layout; of these only the place was checked.
    shaped = [each for each in added if each[1].version != LEGACY_FILE_VERSION]
    for (expected, file, rows), shape in zip(shaped, read_shapes([each[0] for each in shaped]), strict=True):
        if shape.rows != rows:
            raise InvalidInputError(f"the file {expected.path} has {shape.rows} rows, but the transaction has {rows}")
        last = max(file.column_indices, default=-1)
        if shape.columns <= last:
            raise InvalidInputError(f"the file {expected.path} has {shape.columns} columns, so there is none at {last}")


def _added_files(
    context: TableContext, head: State, operation: Operation
) -> Iterator[tuple[ExpectedFile, DataFile, int]]:
    """Return the data files that a version does not name yet, with the rows of their fragments."""
    known = {(file.path, file.base_id) for fragment in head.manifest.fragments for file in fragment.files}
    for fragment in _named_fragments(operation):
        for file in fragment.files:
            if (file.path, file.base_id) not in known:
                _check_name(file.path)
                yield expected_file(context.versions, head, file), file, fragment.physical_rows
        before = head.manifest.fragments.find(fragment.id)
        if fragment.deletion is not None and (before is None or before.deletion != fragment.deletion):
            # Decoding it compares it with the fragment.
            deleted_offsets(context.versions, head, fragment)


def _named_fragments(operation: Operation) -> Iterator[Fragment]:
    """Return the fragments that an operation describes."""
    if isinstance(operation, Rewrite):
        for group in operation.groups:
            yield from group.new
        return
    for name in ("fragments", "updated_fragments", "new_fragments"):
        yield from getattr(operation, name, ())


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
    known = _base_of(head, base)
    return base_store(context, known), layout.DATA if known.is_dataset_root else ""


def _base_of(head: State, place: str) -> BasePath:
    known = next((own for own in head.manifest.base_paths if spelled(own.path) == place), None)
    if known is None:
        raise InvalidInputError(f"{head} has no base path at {place}, where files were staged; add_base adds it")
    return known
