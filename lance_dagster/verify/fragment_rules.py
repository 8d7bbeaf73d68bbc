"""The rules that a fragment keeps with the schema, its files, its deletion file, the base paths and its row ids. Pure.

The sequences of row ids and row versions of a fragment have to agree with its number of rows and with each other.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import decode_row_runs, decode_version_runs
from lance_dagster.format.model import (
    TOMBSTONE_FIELD,
    BasePath,
    DataFile,
    Field,
    Flag,
    Fragment,
    Manifest,
)
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.schema import stored_field_ids
from lance_dagster.verify.manifest_rules import WARNING, Problem

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentContext:
    """The parts of a version that the rules of fragments depend on; a fragment is checked once for each equal context.

    `base_ids` and `required` are derived: the ids of the base paths, and the fields that every fragment has to store.
    """

    fields: Sequence[Field]
    base_paths: Sequence[BasePath]
    file_version: str
    flags: int
    base_ids: frozenset[int]
    required: tuple[Field, ...]

    def fits(self, manifest: Manifest) -> bool:
        """Tell whether a version has this context."""
        return (self.fields, self.base_paths, self.file_version, self.flags) == (
            manifest.fields,
            manifest.base_paths,
            manifest.file_version,
            manifest.reader_flags | manifest.writer_flags,
        )


def fragment_context(manifest: Manifest) -> FragmentContext:
    """Return the context of a version's fragments."""
    return FragmentContext(
        fields=manifest.fields,
        base_paths=manifest.base_paths,
        file_version=manifest.file_version,
        flags=manifest.reader_flags | manifest.writer_flags,
        base_ids=frozenset(base.id for base in manifest.base_paths),
        required=tuple(_required(manifest)),
    )


def _required(manifest: Manifest) -> Iterator[Field]:
    """Yield the stored fields that are not nullable and have only non-nullable ancestors."""
    version = _VERSION.fullmatch(manifest.file_version)
    stored = stored_field_ids(manifest.fields, (int(version[1]), int(version[2])) if version else (2, 2))
    # A null ancestor makes the field null, so a file may lack the field if one of its ancestors is nullable.
    by_id = {field.id: field for field in manifest.fields}
    for number in stored:
        place = number
        # A damaged schema may have a cycle of parents.
        passed: set[int] = set()
        while place in by_id and not by_id[place].nullable and place not in passed:
            passed.add(place)
            place = by_id[place].parent_id
        if place not in by_id:
            yield by_id[number]


def check_fragment(fragment: Fragment, context: FragmentContext) -> Iterator[Problem]:
    """Check the statements of a fragment; its files are not read."""
    if fragment.physical_rows == 0:
        # A warning: such a fragment can be read, and pylance counts or drops it at its next commit.
        yield Problem(
            what="it has no rows, or does not say how many",
            right="a fragment has at least one row",
            severity=WARNING,
            fragment=fragment.id,
        )
    for file in fragment.files:
        yield from _check_file(file, fragment.id, context)
    yield from _check_columns(fragment, context)
    yield from _check_deletion(fragment, context)


def _check_file(file: DataFile, fragment: int, context: FragmentContext) -> Iterator[Problem]:
    if file.base_id is not None and file.base_id not in context.base_ids:
        yield _no_base(file.base_id, file.path, fragment)
    # Negative columns mark fields without values of their own, such as structs.
    columns = Counter(column for column in file.column_indices if column >= 0)
    for column in sorted(column for column, count in columns.items() if count > 1):
        # A reader would decode the values of one field as the values of the other field.
        yield Problem(
            what=f"two fields are said to be in column {column} of the file",
            right="each field has a column of its own",
            path=file.path,
            fragment=fragment,
        )
    version = file.version
    # Old tables do not record a file version.
    if version != context.file_version != "" and not context.flags & Flag.MIXED_FILE_VERSIONS:
        # Without the flag, one such file makes pylance refuse the whole table.
        yield Problem(
            what=f"the data file is of version {version}",
            right=f"all are of {context.file_version}, unless feature flag {int(Flag.MIXED_FILE_VERSIONS)} is set",
            path=file.path,
            fragment=fragment,
        )


def _no_base(base_id: int, path: str, fragment: int) -> Problem:
    return Problem(
        what=f"the file lies under base path {base_id}, which the version does not have",
        right="every base id is one of the version's base paths",
        path=path,
        fragment=fragment,
    )


def _check_columns(fragment: Fragment, context: FragmentContext) -> Iterator[Problem]:
    """Check that each field is in at most one file of the fragment, and that no required field is missing."""
    # Where two files hold a field, one program may read the first file and another program the second.
    homes: dict[int, str] = {}
    field_ids = {field.id for field in context.fields}
    for file in fragment.files:
        for number in file.fields:
            if number == TOMBSTONE_FIELD:
                continue
            if number < 0:
                yield Problem(
                    what=f"the file is said to hold field {number}",
                    right=f"ids count from 0, and {TOMBSTONE_FIELD} stands for a column that is gone",
                    path=file.path,
                    fragment=fragment.id,
                    field=number,
                )
            # Files may hold dropped fields; only fields of the schema have to be in one file.
            elif number in homes and number in field_ids:
                yield Problem(
                    what=f"the field is in {homes[number]} and in {file.path}",
                    right="one file of a fragment holds it",
                    fragment=fragment.id,
                    field=number,
                )
            homes[number] = file.path
    yield from _check_stored(fragment, context, homes.keys())


def _check_stored(fragment: Fragment, context: FragmentContext, stored: Collection[int]) -> Iterator[Problem]:
    """Check that files of a fragment hold a field of the schema, and all that are required."""
    if context.fields and not any(field.id in stored for field in context.fields):
        # pylance compares the number of rows with such a file, and finds the table damaged where there is none.
        yield Problem(
            what="no file of it holds a column of the schema",
            right="a fragment has a file with values of at least one column",
            fragment=fragment.id,
        )
    for required in context.required:
        if required.id not in stored:
            yield Problem(
                what=f"no file holds {required.name!r}",
                right="a column that cannot be null is in one of the files",
                fragment=fragment.id,
                field=required.id,
            )


def _check_deletion(fragment: Fragment, context: FragmentContext) -> Iterator[Problem]:
    deletion = fragment.deletion
    if deletion is None:
        return
    if deletion.base_id is not None and deletion.base_id not in context.base_ids:
        yield _no_base(deletion.base_id, "its deletion file", fragment.id)
    # Row counts are computed from this number without reading the deletion file, so they would be negative.
    if fragment.has_row_count and deletion.deleted_rows > fragment.physical_rows:
        yield Problem(
            what=f"{deletion.deleted_rows} rows of {fragment.physical_rows} are said to be deleted",
            right="at most all rows of the fragment are deleted",
            fragment=fragment.id,
        )


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The lowest and highest row id of a fragment, and the newest version that one of its rows was changed at."""

    low: int
    high: int
    newest: int


def check_rows(fragment: Fragment, context: FragmentContext) -> tuple[RowSpan | None, list[Problem]]:
    """Check the sequences of row ids and row versions; return the span of the ids, None where there are none."""
    problems: list[Problem] = []
    stable = bool(context.flags & Flag.STABLE_ROW_IDS)
    # The flag and the sequences have to agree, since some programs read the flag and others the sequences.
    if stable != (fragment.row_ids is not None) and fragment.physical_rows:
        problems.append(
            Problem(
                what="its rows have no ids" if stable else "its rows have ids",
                right=f"feature flag {int(Flag.STABLE_ROW_IDS)} says that they {'have' if stable else 'have none'}",
                fragment=fragment.id,
            )
        )
    newest = 0
    # Each sequence is checked separately, so that one damaged sequence does not hide the problems of the other
    # sequences.
    for name, sequence in (("created", fragment.created_at), ("last updated", fragment.updated_at)):
        try:
            versions = decode_version_runs(sequence, fragment.physical_rows, name)
            newest = max(newest, int(versions.version.max(initial=0)))
        except CorruptFileError as error:
            problems.append(_sequence(f"the versions its rows were {name} at", error, fragment))
    ids = row_ids(fragment)
    if isinstance(ids, Problem):
        return None, [*problems, ids]
    if ids is None or ids.smallest is None or ids.largest is None:
        return None, problems
    return RowSpan(ids.smallest, ids.largest, newest), problems


def row_ids(fragment: Fragment) -> RowRuns | Problem | None:
    """Return the row ids of a fragment, or their problem; None where there are none."""
    if fragment.row_ids is None:
        return None
    try:
        # As runs, a damaged sequence takes as much memory as its bytes, whatever number of rows it claims.
        return decode_row_runs(fragment.row_ids, fragment.physical_rows, "the fragment")
    except CorruptFileError as error:
        return _sequence("the ids of its rows", error, fragment)


def _sequence(what: str, error: CorruptFileError, fragment: Fragment) -> Problem:
    return Problem(
        what=f"{what} cannot be right: {error.problem}",
        right=f"one for each of its {fragment.physical_rows} rows",
        fragment=fragment.id,
    )
