"""The rules that a manifest keeps within itself: numbers, schema, base paths, feature flags and indices. Pure.

A manifest that cannot be decoded at all was refused before. Here each rule reports every place where it is broken, so
that a damaged version is described completely.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lance_dagster.errors import CorruptFileError, FormatError, StoreError, counted
from lance_dagster.format.model import (
    BasePath,
    Field,
    Flag,
    Fragments,
    IndexMetadata,
    Manifest,
)
from lance_dagster.format.schema import arrow_from_fields
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.transactions.index_updates import covered_fragments, indices_of

ERROR: Literal["error"] = "error"
WARNING: Literal["warning"] = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a table: where it is, what is wrong, and what would be right.

    An error makes rows wrong, missing or unreadable, in this or another program, or lets a later clean-up or
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
    if manifest.file_format and not manifest.file_version:
        yield Problem(
            what="the storage format has no version, so the version cannot be read",
            right="versions of old files have no storage format; the next commit of this package leaves it out",
            path=path,
        )


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
        # The checks of the single fragments report which fragment is damaged.
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
        yield Problem(what=problem_of(error), right="the schema has to be readable", path=path)


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
        return (), [Problem(what=problem_of(error), right="without its section every index is lost", path=path)]
    return indices, list(_check_each_index(indices, manifest, path))


def _check_each_index(indices: Sequence[IndexMetadata], manifest: Manifest, path: str) -> Iterator[Problem]:
    field_ids = {field.id for field in manifest.fields}
    uuids = [index.uuid for index in indices]
    for uuid in sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
        yield Problem(what=f"two indices have the uuid {uuid}", right="uuids are unique", path=path)
    for index in indices:
        for number in (*index.fields, *index.covering_fields):
            if number not in field_ids:
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
            what=f"index {index.name!r} claims to cover {counted(len(never), 'fragment')} that never existed, "
            f"such as {never[0]}",
            right=f"ids go up to {highest}; rows of fragments that get these ids would not be found",
            path=path,
        )


def problem_of(error: FormatError | StoreError) -> str:
    """Return what an error says is wrong, without the path, which a `Problem` has in a field of its own."""
    return error.problem if isinstance(error, CorruptFileError) else str(error)
