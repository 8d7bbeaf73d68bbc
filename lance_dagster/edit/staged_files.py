"""Check staged files before a commit names them.

A description of staged files may come from another process, an older run or a configuration. A version that names a
file which is missing, cut, or of other rows makes every reader of the table fail. So the files are looked at first: one
ranged read of each, in parallel. Files that the same call wrote are not looked at again.
"""

from collections import Counter

from lance_dagster.datafiles import ExpectedFile, StagedFile, StagedFiles, read_shapes, staged_fragments
from lance_dagster.errors import InvalidInputError
from lance_dagster.format import layout
from lance_dagster.format.file_versions import data_file_version, file_version_name
from lance_dagster.format.schema import fields_from_arrow
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import base_store, spelled
from lance_dagster.store import Store


def check_staged(context: TableContext, head: State, staged: StagedFiles) -> None:
    """Check that staged files exist where they should, with the size, rows and columns that their description says.

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
        columns, version = len(described.column_indices), data_file_version(described)
        found = file_version_name(shape.major, shape.minor)
        wrong = (
            f"{shape.rows} rows, and {fragment.physical_rows} were announced"
            if shape.rows != fragment.physical_rows
            else f"{shape.columns} columns, and the table stores {columns}"
            if shape.columns < columns
            else f"the format version {found}, and the table has {version}"
            if found != version
            else None
        )
        if wrong is not None:
            raise InvalidInputError(f"the staged file {file.path} has {wrong}")


def _check_descriptions(files: tuple[StagedFile, ...]) -> None:
    for file in files:
        if not layout.is_file_name(file.name):
            raise InvalidInputError(f"{file.name!r} is not the name of a file in the data folder of a table")
        if file.size <= 0:
            raise InvalidInputError(f"the staged file {file.name} has a size of {file.size} bytes; its writer knows it")
    repeated = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if repeated:
        raise InvalidInputError(f"the staged file {repeated[0]} is given twice, so its rows would be there twice")


def _place(context: TableContext, head: State, base: str | None) -> tuple[Store, str]:
    """Return the store and the folder of staged files."""
    if base is None:
        return context.store, layout.DATA
    known = next((own for own in head.manifest.base_paths if spelled(own.path) == base), None)
    if known is None:
        raise InvalidInputError(f"{head} has no base path at {base}, where files were staged; add_base adds it")
    return base_store(context, known), layout.DATA if known.is_dataset_root else ""
