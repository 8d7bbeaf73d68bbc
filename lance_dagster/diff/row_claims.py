"""Check the number of rows that a manifest claims against the files, before one value per row is kept in memory.

A manifest of a kilobyte can claim billions of rows. Most of this package works on runs of rows, whose size follows the
manifest. Where rows become single elements, the claims are checked first, unless they are small: the number of rows is
at the end of each data file, which costs one read.
"""

from collections.abc import Iterable

from lance_dagster.datafiles import ExpectedFile, read_shapes
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.model import LEGACY_FILE_VERSION, Fragment
from lance_dagster.history.context import expected_file
from lance_dagster.history.versions import State, Versions

_TRUSTED_ROWS = 1 << 24
"""The number of claimed rows that is trusted without a check: one address for each takes 128 MiB."""
_BITS = 8


def check_row_claims(versions: Versions, state: State, fragment_ids: Iterable[int]) -> None:
    """Check that fragments have as many rows as a version claims, unless it claims few for all of them together.

    Raises:
        CorruptFileError: A data file has another number of rows, or is missing or damaged.
    """
    found = [own for number in fragment_ids if (own := state.manifest.fragments.find(number)) is not None]
    if sum(fragment.physical_rows for fragment in found) <= _TRUSTED_ROWS:
        return
    # Every file of a fragment has all its rows, so one file is enough.
    files = [(fragment, expected_file(versions, state, fragment.files[0])) for fragment in found if fragment.files]
    for fragment, file in files:
        # Files of the first format have another footer; each row takes a bit at least.
        if fragment.files[0].version == LEGACY_FILE_VERSION:
            _check_count(file, fragment, min(fragment.physical_rows, _BITS * file.size))
    readable = [pair for pair in files if pair[0].files[0].version != LEGACY_FILE_VERSION]
    for (fragment, file), shape in zip(readable, read_shapes([file for _, file in readable]), strict=True):
        _check_count(file, fragment, shape.rows)


def _check_count(file: ExpectedFile, fragment: Fragment, rows: int) -> None:
    if rows != fragment.physical_rows:
        raise CorruptFileError(file.path, f"it has {rows} rows, but its version records {fragment.physical_rows}")
