"""The rules that a manifest keeps within itself, and `Problem`, which reports a broken rule. Pure.

A fragment has to agree with the schema, its row count, its sequences of row ids and versions, and the base paths. A
manifest has to agree with itself in numbers, schema, base paths, feature flags and indices.

What cannot be decoded at all was refused before. Here each rule reports every place where it is broken, so that a
damaged version is described completely.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lance_dagster.errors import CorruptFileError, FormatError
from lance_dagster.format.codec import decode_row_runs, decode_version_runs
from lance_dagster.format.model import (
    TOMBSTONE_FIELD,
    BasePath,
    DataFile,
    Field,
    Flag,
    Fragment,
    Fragments,
    IndexMetadata,
    Manifest,
)
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.format.schema import arrow_from_fields, stored_field_ids
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.transactions.index_updates import covered_fragments, indices_of

ERROR: Literal["error"] = "error"
WARNING: Literal["warning"] = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a table: where it is, what is wrong, and what would be right.

    An error makes rows wrong, missing or unreadable, in this program or another one, or lets a later clean-up or
    commit do so. A warning does not, in the present state of the table.

    Attributes:
        what: What is wrong.
        right: What would be right, or what to do about it.
        severity: "error" or "warning".
        path: The path of the file, relative to the table, or its URI.
        fragment: The id of the fragment.
        field: The id of the field.
        versions: The versions that have the problem, such as `main@3`, in the order they were checked; empty when it
            is not about versions.
    """

    what: str
    right: str
    severity: Literal["error", "warning"] = ERROR
    path: str | None = None
    fragment: int | None = None
    field: int | None = None
    versions: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The location, for people: versions, fragment, field and file, as far as they are known."""
        parts = [
            _span(self.versions),
            "" if self.fragment is None else f"fragment {self.fragment}",
            "" if self.field is None else f"field {self.field}",
            self.path or "",
        ]
        return ", ".join(part for part in parts if part) or "the table"

    def __str__(self) -> str:
        """Return the problem as one line."""
        return f"{self.severity}: {self.where}: {self.what}; {self.right}"


def _span(versions: tuple[str, ...]) -> str:
    if len(versions) > 1:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return "".join(versions)


_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The lowest and highest row id of a fragment, and the newest version that one of its rows was changed at."""

    low: int
    high: int
    newest: int


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
        # A reader would decode the values of one field as those of the other.
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
    """Check that each field is in at most one file of the fragment, and each required field in one."""
    # With two files for a field, programs may read different ones of them.
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
            # Files may hold dropped fields; only fields of the schema have to be in one file.
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


def check_rows(fragment: Fragment, context: FragmentContext) -> tuple[RowSpan | None, list[Problem]]:
    """Check the sequences of row ids and row versions; return the span of the ids, None where there are none."""
    problems: list[Problem] = []
    stable = bool(context.flags & Flag.STABLE_ROW_IDS)
    # The flag and the sequences have to agree, since programs go by either of them.
    if stable != (fragment.row_ids is not None) and fragment.physical_rows:
        problems.append(
            Problem(
                what="its rows have no ids" if stable else "its rows have ids",
                right=f"feature flag {int(Flag.STABLE_ROW_IDS)} says that they {'have' if stable else 'have none'}",
                fragment=fragment.id,
            )
        )
    newest = 0
    # Each sequence is checked separately, so that one damaged sequence does not hide the problems of the others.
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


# A program that only reads, and one that also writes, have to interpret the table alike.
_PAIRED = (
    Flag.DELETION_FILES,
    Flag.STABLE_ROW_IDS,
    Flag.BASE_PATHS,
    Flag.COVERED_INDEX,
    Flag.MIXED_FILE_VERSIONS,
)


def check_manifest(manifest: Manifest, path: str) -> Iterator[Problem]:
    """Check the statements of a manifest; `check_fragment` checks its fragments.

    Args:
        manifest: The manifest of the version.
        path: Its path, for messages.
    """
    yield from _check_fragment_ids(manifest, path)
    yield from _check_fields(manifest.fields, path)
    yield from _check_bases(manifest.base_paths, path)
    yield from _check_flags(manifest, path)


def check_transaction(transaction: Transaction | None, manifest: Manifest, path: str) -> Iterator[Problem]:
    """Check that a version has a transaction, and that this transaction can have made it.

    Args:
        transaction: The transaction that the manifest holds or names; None when it has neither.
        manifest: The manifest of the version.
        path: Its path, for messages.
    """
    if transaction is None:
        named = f"names {manifest.transaction_file}, which is not there" if manifest.transaction_file else "names none"
        yield Problem(
            what=f"the manifest holds no transaction and {named}",
            right="without it nobody can tell whether commits that were begun earlier contradict this version",
            # The rows are intact; only concurrent commits fail until their writers read the table again.
            severity=WARNING,
            path=path,
        )
        return
    # After a lost response, a writer recognises its own commit by the uuid; otherwise it would report a conflict.
    if not transaction.uuid:
        yield Problem(what="the transaction has no uuid", right="a commit is recognised by its uuid", path=path)
    # The first version of a branch has the number of its fork point.
    newest = manifest.version if isinstance(transaction.operation, Clone) else manifest.version - 1
    if transaction.read_version > newest:
        yield Problem(
            what=f"the transaction was made from version {transaction.read_version}",
            right=f"version {manifest.version} can have been made from {newest} or an older one",
            path=path,
        )
    # The name of the file holds the uuid, so the file of another transaction is recognised by its name.
    if manifest.transaction_file and transaction.uuid not in manifest.transaction_file:
        yield Problem(
            what=f"the transaction is {transaction.uuid}",
            right=f"the manifest names the file {manifest.transaction_file}, which is of another transaction",
            path=path,
        )


def _check_fragment_ids(manifest: Manifest, path: str) -> Iterator[Problem]:
    ids = _ids(manifest.fragments)
    if ids is None:
        # The checks of the single fragments report which of them is damaged.
        return
    # Ids are counted only when there are duplicates: a table may have very many fragments.
    doubled = sorted({number for number in ids if ids.count(number) > 1}) if len(set(ids)) < len(ids) else []
    for number in doubled:
        yield Problem(
            what="two fragments have this id", right="ids are unique in a version", path=path, fragment=number
        )
    highest = max(ids, default=-1)
    # The next commit counts up from there, so with a lower number it would assign an id twice.
    if manifest.max_fragment_id is not None and manifest.max_fragment_id < highest:
        yield Problem(
            what=f"max_fragment_id is {manifest.max_fragment_id}",
            right=f"there is a fragment {highest}, so the next commit would assign its id again",
            path=path,
        )


def _ids(fragments: Fragments) -> Sequence[int] | None:
    try:
        # Ids alone are decoded where possible, which is far cheaper than whole fragments.
        return fragments.ids
    except CorruptFileError:
        pass
    try:
        return [fragment.id for fragment in fragments]
    except FormatError:
        return None


def _check_fields(fields: Sequence[Field], path: str) -> Iterator[Problem]:
    try:
        arrow_from_fields(fields, None, path)
    except FormatError as error:
        yield Problem(what=_of(error), right="the schema has to be readable", path=path)


def _check_bases(bases: Sequence[BasePath], path: str) -> Iterator[Problem]:
    names = [base.name for base in bases if base.name]
    for name in sorted({name for name in names if names.count(name) > 1}):
        # A warning: files refer to base paths by id, so all rows can be read.
        yield Problem(
            what=f"two base paths are called {name!r}",
            right="names are unique, or files cannot be written to one by name",
            severity=WARNING,
            path=path,
        )
    for base in bases:
        if "://" not in base.path and not base.path.startswith("/"):
            yield Problem(
                what=f"base path {base.id} is {base.path!r}, which is found only from one working directory",
                right="base paths are absolute",
                path=path,
            )


def _check_flags(manifest: Manifest, path: str) -> Iterator[Problem]:
    for flag in _PAIRED:
        reader, writer = bool(manifest.reader_flags & flag), bool(manifest.writer_flags & flag)
        if reader != writer:
            yield Problem(
                what=f"feature flag {int(flag)} is set for {'readers' if reader else 'writers'} alone",
                right="it is set for readers and writers, or for neither",
                path=path,
            )
    flags = manifest.reader_flags | manifest.writer_flags
    contents = (
        (Flag.DELETION_FILES, _has_deletions(manifest.fragments), "deletion files"),
        (Flag.BASE_PATHS, bool(manifest.base_paths), "base paths"),
        (Flag.TABLE_CONFIG, bool(manifest.config), "table settings"),
    )
    for flag, holds, what in contents:
        # None means that the fragments are damaged, which their own checks report.
        if holds is not None and holds != bool(flags & flag):
            yield Problem(
                what=f"feature flag {int(flag)} ({what}) is {'not set' if holds else 'set'}",
                right=f"the version has {what}" if holds else f"the version has no {what}",
                severity=WARNING,
                path=path,
            )


def _has_deletions(fragments: Fragments) -> bool | None:
    try:
        return fragments.deletions
    except CorruptFileError:
        return None


def check_indices(manifest: Manifest, path: str) -> tuple[tuple[IndexMetadata, ...], list[Problem]]:
    """Read the index section; return the indices in it, and the problems with it."""
    try:
        indices = indices_of(manifest)
    except FormatError as error:
        return (), [Problem(what=_of(error), right="without its section every index is lost", path=path)]
    return indices, list(_check_each_index(indices, manifest, path))


def _check_each_index(indices: Sequence[IndexMetadata], manifest: Manifest, path: str) -> Iterator[Problem]:
    known = {field.id for field in manifest.fields}
    uuids = [index.uuid for index in indices]
    for uuid in sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
        yield Problem(what=f"two indices have the uuid {uuid}", right="uuids are unique", path=path)
    for index in indices:
        for number in (*index.fields, *index.covering_fields):
            if number not in known:
                yield Problem(
                    what=f"index {index.name!r} is on a field that the schema does not have",
                    right="an index is dropped with its field",
                    path=path,
                    field=number,
                )
        yield from _check_bitmap(index, manifest, path)


def _check_bitmap(index: IndexMetadata, manifest: Manifest, path: str) -> Iterator[Problem]:
    try:
        bitmap: Iterable[int] = covered_fragments(index) or ()
    except CorruptFileError as error:
        yield Problem(
            what=f"the bitmap of index {index.name!r} cannot be read: {error.problem}",
            right="a Roaring bitmap of fragment ids",
            path=path,
        )
        return
    # Ids of removed fragments may stay in a bitmap. Ids that will be given to new fragments must not be in it.
    highest = manifest.max_fragment_id
    never = [number for number in bitmap if highest is not None and number > highest]
    if never:
        yield Problem(
            what=f"index {index.name!r} claims to cover {len(never)} fragments that never existed, such as {never[0]}",
            right=f"ids go up to {highest}; rows of fragments that get these ids would not be found",
            path=path,
        )


def _of(error: FormatError) -> str:
    return error.problem if isinstance(error, CorruptFileError) else str(error)
