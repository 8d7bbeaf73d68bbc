"""What a manifest has to be true to in itself: numbers, schema, base paths, flags, indices.

What cannot be read at all was refused when it was decoded. Here each rule says every way in which it is broken, so
that a damaged version is described whole.
"""

from collections.abc import Iterable, Iterator, Sequence

from lance_dagster.changes.indices import covered, indices_of
from lance_dagster.changes.problems import WARNING, Problem
from lance_dagster.errors import CorruptFileError, FormatError
from lance_dagster.format.model import BasePath, Field, Flag, Fragments, IndexMetadata, Manifest
from lance_dagster.format.schema import arrow_from_fields
from lance_dagster.format.transaction import Clone, Transaction

_PAIRED = (
    Flag.DELETION_FILES,
    Flag.STABLE_ROW_IDS,
    Flag.BASE_PATHS,
    Flag.COVERED_INDEX,
    Flag.MIXED_FILE_VERSIONS,
)


def check_manifest(manifest: Manifest, path: str) -> Iterator[Problem]:
    """Check what a manifest says about itself; its fragments are looked at one by one elsewhere.

    Args:
        manifest: Of the version.
        path: Its file, for messages.
    """
    yield from _check_fragment_ids(manifest, path)
    yield from _check_fields(manifest.fields, path)
    yield from _check_bases(manifest.base_paths, path)
    yield from _check_flags(manifest, path)


def check_transaction(transaction: Transaction | None, manifest: Manifest, path: str) -> Iterator[Problem]:
    """Check that a version says which change made it, and that this can be.

    Args:
        transaction: What the manifest holds or names, None when neither is there.
        manifest: Of the version.
        path: Its file, for messages.
    """
    if transaction is None:
        named = f"names {manifest.transaction_file}, which is not there" if manifest.transaction_file else "names none"
        yield Problem(
            what=f"the manifest holds no transaction and {named}",
            right="commits that were begun before this version cannot be told whether they contradict it",
            severity=WARNING,
            path=path,
        )
        return
    if not transaction.uuid:
        yield Problem(what="the transaction has no uuid", right="a uuid is how a commit is recognised", path=path)
    # A fork repeats the number of the version it is forked from.
    newest = manifest.version if isinstance(transaction.operation, Clone) else manifest.version - 1
    if transaction.read_version > newest:
        yield Problem(
            what=f"the transaction was made from version {transaction.read_version}",
            right=f"version {manifest.version} can have been made from {newest} or an older one",
            path=path,
        )
    if manifest.transaction_file and transaction.uuid not in manifest.transaction_file:
        yield Problem(
            what=f"the transaction is {transaction.uuid}",
            right=f"the manifest names the file {manifest.transaction_file}, of another one",
            path=path,
        )


def _check_fragment_ids(manifest: Manifest, path: str) -> Iterator[Problem]:
    ids = _ids(manifest.fragments)
    if ids is None:
        # Looked at one by one, the fragments say what is wrong with which.
        return
    doubled = sorted({number for number in ids if ids.count(number) > 1}) if len(set(ids)) < len(ids) else []
    for number in doubled:
        yield Problem(
            what="two fragments have this id", right="ids are unique in a version", path=path, fragment=number
        )
    highest = max(ids, default=-1)
    if manifest.max_fragment_id is not None and manifest.max_fragment_id < highest:
        yield Problem(
            what=f"max_fragment_id is {manifest.max_fragment_id}",
            right=f"there is a fragment {highest}, so the next commit would give its id again",
            path=path,
        )


def _ids(fragments: Fragments) -> Sequence[int] | None:
    try:
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
        yield Problem(what=_of(error), right="the schema has to be one that can be read", path=path)


def _check_bases(bases: Sequence[BasePath], path: str) -> Iterator[Problem]:
    names = [base.name for base in bases if base.name]
    for name in sorted({name for name in names if names.count(name) > 1}):
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
    """Read the index section; returns what is in it, and what is wrong with it."""
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
                    right="an index goes with its field",
                    path=path,
                    field=number,
                )
        yield from _check_bitmap(index, manifest, path)


def _check_bitmap(index: IndexMetadata, manifest: Manifest, path: str) -> Iterator[Problem]:
    try:
        bitmap: Iterable[int] = covered(index) or ()
    except CorruptFileError as error:
        yield Problem(
            what=f"the bitmap of index {index.name!r} cannot be read: {error.problem}",
            right="a Roaring bitmap of fragment ids",
            path=path,
        )
        return
    # Fragments that are gone stay in a bitmap and do no harm; those that are still to come do.
    highest = manifest.max_fragment_id
    never = [number for number in bitmap if highest is not None and number > highest]
    if never:
        yield Problem(
            what=f"index {index.name!r} claims to know {len(never)} fragments that never were, such as {never[0]}",
            right=f"ids go up to {highest}; rows of fragments that get these ids would not be found",
            path=path,
        )


def _of(error: FormatError) -> str:
    return error.problem if isinstance(error, CorruptFileError) else str(error)
