"""What a fragment has to be true to: the schema, its row count, its sequences, the base paths that are there."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_dagster.changes.problems import WARNING, Problem
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.codec import U64Array, count_row_ids, decode_row_ids, decode_versions
from lance_dagster.format.codec.rows import count_versions
from lance_dagster.format.file_versions import version_of_file
from lance_dagster.format.model import TOMBSTONE_FIELD, BasePath, DataFile, Field, Flag, Fragment, Manifest
from lance_dagster.format.schema import stored_field_ids

_MOST_ROWS = 2**27
"""A few damaged bytes can claim any number of rows; more than this are counted, and not looked at one by one."""
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The row ids of a fragment, from the lowest to the highest, and the newest version one of its rows is of."""

    low: int
    high: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a version says about all of its fragments. A fragment that is sound in one is so in every equal one.

    `base_ids` and `required` follow from the rest: the ids of the base paths, and the fields a fragment cannot lack.
    """

    fields: Sequence[Field]
    base_paths: Sequence[BasePath]
    file_version: str
    flags: int
    base_ids: frozenset[int]
    required: tuple[Field, ...]

    def fits(self, manifest: Manifest) -> bool:
        """Tell whether another version says the same."""
        return (self.fields, self.base_paths, self.file_version, self.flags) == (
            manifest.fields,
            manifest.base_paths,
            manifest.file_version,
            manifest.reader_flags | manifest.writer_flags,
        )


def context_of(manifest: Manifest) -> Context:
    """Return what a version says about all of its fragments."""
    return Context(
        fields=manifest.fields,
        base_paths=manifest.base_paths,
        file_version=manifest.file_version,
        flags=manifest.reader_flags | manifest.writer_flags,
        base_ids=frozenset(base.id for base in manifest.base_paths),
        required=tuple(_required(manifest)),
    )


def _required(manifest: Manifest) -> Iterator[Field]:
    """Yield the stored fields that cannot be null, nor anything around them."""
    version = _VERSION.fullmatch(manifest.file_version)
    stored = stored_field_ids(manifest.fields, (int(version[1]), int(version[2])) if version else (2, 2))
    by_id = {field.id: field for field in manifest.fields}
    for number in stored:
        place = number
        passed: set[int] = set()
        while place in by_id and not by_id[place].nullable and place not in passed:
            passed.add(place)
            place = by_id[place].parent_id
        if place not in by_id:
            yield by_id[number]


def check_fragment(fragment: Fragment, context: Context) -> Iterator[Problem]:
    """Check what a fragment says about itself; no file of it is looked at."""
    if fragment.physical_rows == 0:
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


def _check_file(file: DataFile, fragment: int, context: Context) -> Iterator[Problem]:
    if file.base_id is not None and file.base_id not in context.base_ids:
        yield _no_base(file.base_id, file.path, fragment)
    columns = Counter(column for column in file.column_indices if column >= 0)
    for column in sorted(column for column, count in columns.items() if count > 1):
        yield Problem(
            what=f"two fields are said to be in column {column} of the file",
            right="each field has a column of its own",
            path=file.path,
            fragment=fragment,
        )
    version = version_of_file(file)
    # Old tables do not say what their files are.
    if version != context.file_version != "" and not context.flags & Flag.MIXED_FILE_VERSIONS:
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


def _check_columns(fragment: Fragment, context: Context) -> Iterator[Problem]:
    """Check which field of the schema is in which file: each in one at most, and in one if it cannot be null."""
    homes: dict[int, str] = {}
    known = {field.id for field in context.fields}
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
            elif number in homes and number in known:
                yield Problem(
                    what=f"the field is in {homes[number]} and in {file.path}",
                    right="one file of a fragment holds it",
                    fragment=fragment.id,
                    field=number,
                )
            homes[number] = file.path
    for required in context.required:
        if required.id not in homes:
            yield Problem(
                what=f"no file holds {required.name!r}",
                right="a column that cannot be null is in one of the files",
                fragment=fragment.id,
                field=required.id,
            )


def _check_deletion(fragment: Fragment, context: Context) -> Iterator[Problem]:
    deletion = fragment.deletion
    if deletion is None:
        return
    if deletion.base_id is not None and deletion.base_id not in context.base_ids:
        yield _no_base(deletion.base_id, "its deletion file", fragment.id)
    if fragment.counted and deletion.deleted_rows > fragment.physical_rows:
        yield Problem(
            what=f"{deletion.deleted_rows} rows of {fragment.physical_rows} are said to be deleted",
            right="at most as many as there are",
            fragment=fragment.id,
        )


def check_rows(fragment: Fragment, context: Context) -> tuple[RowSpan | None, list[Problem]]:
    """Check the sequences of row ids and row versions; returns their span, None where there are no ids."""
    problems: list[Problem] = []
    stable = bool(context.flags & Flag.STABLE_ROW_IDS)
    if stable != (fragment.row_ids is not None) and fragment.physical_rows:
        problems.append(
            Problem(
                what="its rows have no ids" if stable else "its rows have ids",
                right=f"feature flag {int(Flag.STABLE_ROW_IDS)} says that they {'have' if stable else 'have none'}",
                fragment=fragment.id,
            )
        )
    newest = 0
    for name, sequence in (("created", fragment.created_at), ("last updated", fragment.updated_at)):
        try:
            if sequence is not None and count_versions(sequence, name) > _MOST_ROWS:
                continue
            versions = decode_versions(sequence, fragment.physical_rows, name)
            newest = max(newest, int(versions.max(initial=0)))
        except CorruptFileError as error:
            problems.append(_sequence(f"the versions its rows were {name} at", error, fragment))
    ids = row_ids(fragment)
    if isinstance(ids, Problem):
        return None, [*problems, ids]
    if ids is None or not len(ids):
        return None, problems
    return RowSpan(int(ids.min()), int(ids.max()), newest), problems


def row_ids(fragment: Fragment) -> U64Array | Problem | None:
    """Return the id of each row of a fragment, what is wrong with them, or None where there are none, or too many."""
    if fragment.row_ids is None:
        return None
    try:
        if count_row_ids(fragment.row_ids, "the fragment") > _MOST_ROWS:
            return None
        return decode_row_ids(fragment.row_ids, fragment.physical_rows, "the fragment")
    except CorruptFileError as error:
        return _sequence("the ids of its rows", error, fragment)


def _sequence(what: str, error: CorruptFileError, fragment: Fragment) -> Problem:
    return Problem(
        what=f"{what} cannot be right: {error.problem}",
        right=f"one for each of its {fragment.physical_rows} rows",
        fragment=fragment.id,
    )
