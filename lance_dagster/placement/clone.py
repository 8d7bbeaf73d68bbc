"""Clone one version of a table to a new, independent table.

A shallow clone is one manifest that references the files of the source through a base path. It can be read as long as
those files exist. Garbage collection of the source does not know the clone, so the clone leaves a tag on the cloned
version, named `clone-<digest>`, with the URI of the clone in its metadata. Delete the tag when the clone is deleted.
A clone of a shallow clone leaves such a tag in each table whose files it references.

A deep clone copies the files of the version and is independent of the source. In both cases the manifest is written
last, so a table exists at the new place only when it is complete. Idempotent: repeat an interrupted clone by the same
call.

The first version of a clone has the number of the cloned version, because the row versions recorded in its fragments
must not exceed the version of the table. Branches, tags and older versions are not cloned.
"""

import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypedDict, Unpack

from lance_dagster.datafiles import recorded_digests
from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptFileError,
    FormatError,
    InvalidInputError,
    RefMovedError,
    RefNotFoundError,
    StoreError,
    VersionNotFoundError,
)
from lance_dagster.format import layout
from lance_dagster.format.model import BasePath, Manifest
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.format.validation import check_flag, check_options
from lance_dagster.gc.collect import Progress
from lance_dagster.history.base_access import refuse_place_in_table, refuse_place_of_base
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.refs.ref_files import Tag
from lance_dagster.history.refs.ref_store import Refs
from lance_dagster.history.refs.tag_operations import ready_branch_id, refuse_gone
from lance_dagster.history.versions import State, Versions
from lance_dagster.placement.base_stores import allow, base_store, spelled
from lance_dagster.store import Store, canonical_uri, check_mapping, concurrently, copy_file, copy_folder, table_options
from lance_dagster.transactions.apply import with_feature_flags
from lance_dagster.transactions.base_paths import FileReferences, deep_clone, file_references, shallow_clone

CLONE = "lance_dagster.clone"
"""The metadata key of a tag that keeps a version for a shallow clone; its value is the URI of the clone."""
_log = logging.getLogger(__name__)
_PINS = 3
# The name of a file at the new root that excludes concurrent clones to the same place.
_CLAIM = ".clone"


class CloneOptions(TypedDict, total=False):
    """The keyword arguments of `clone` that a caller rarely needs."""

    storage_options: Mapping[str, str] | None
    progress: Progress | None


def clone(
    context: TableContext,
    source: State,
    uri: str,
    *,
    shallow: bool,
    properties: Mapping[str, str],
    **options: Unpack[CloneOptions],
) -> TableContext:
    """Clone a version to a new table and return the context of the new table.

    Args:
        context: The table to clone.
        source: The version to clone.
        uri: The URI of the clone.
        shallow: Reference the files of the source instead of copying them.
        properties: The properties of the first transaction, its message among them.
        **options: `storage_options` are the options of the clone; None for the options of the source, where they apply.
            `progress` is called with the number of copied files and their total.

    Raises:
        AlreadyExistsError: A table exists at `uri`; nothing was written.
        CorruptFileError: A file of the source is missing.
        InvalidInputError: `uri` is inside the source, or the source inside it; or it is a base path of a table.
        RefNotFoundError: The branch of the version was deleted meanwhile.
        ConflictError: The branch of the version is being reset or renamed.
        VersionNotFoundError: The version was collected meanwhile.
    """
    check_options(clone, options, CloneOptions)
    check_flag("shallow", shallow)
    if (clone_options := options.get("storage_options")) is not None:
        check_mapping(clone_options)
    source_uri = context.versions.branch_uri(source.branch)
    if shallow:
        manifest = shallow_clone(source.manifest, source_uri=source_uri, name=str(source))
    else:
        manifest = deep_clone(source.manifest)
    cloned = open_context(uri, _options(context, manifest, uri, clone_options))
    _refuse_nested(context.uri, cloned.uri)
    write_clone(context, source, cloned, manifest, properties=properties, progress=options.get("progress"))
    return cloned


def _refuse_nested(source: str, target: str) -> None:
    """Refuse a clone in a folder of its source, or around it: garbage collection of one deletes files of the other.

    Raises:
        InvalidInputError: The clone is inside the source, or the source inside the clone.
    """
    # A link on local disk may lead into the other table.
    places = [uri if "://" in uri else os.path.realpath(uri) for uri in (source, target)]
    for inner, outer in (places, places[::-1]):
        if inner.startswith(f"{outer}/"):
            raise InvalidInputError(
                f"a clone cannot be at {target}: {inner} is inside the table {outer}; choose another place"
            )


def write_clone(
    context: TableContext,
    source: State,
    cloned: TableContext,
    manifest: Manifest,
    *,
    properties: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Commit a manifest as the first version of a new table, after its files were copied or its source was tagged.

    Raises:
        AlreadyExistsError: A table exists at the place of the clone.
        CorruptFileError: A file of the source is missing.
    """
    # A deep clone references only its own files, so it has no base path.
    shallow = bool(manifest.base_paths)
    with _claimed(cloned, f"{context.uri} {source} {'shallow' if shallow else 'deep'}"):
        if cloned.versions.newest(layout.MAIN) is not None:
            raise AlreadyExistsError(f"there is a Lance table at {cloned.uri} already")
        refuse_place_of_base(cloned.store)
        refuse_place_in_table(cloned.uri, cloned.storage_options)
        # The manifest is written last: before it, the tag protects the files, or the copies are complete.
        if shallow:
            _pin(context, source, cloned.uri)
            _pin_origins(context, source, cloned.uri)
            _allow(context, source, cloned, manifest)
        else:
            _copy_files(context, source, cloned.store, progress)
        _commit_first(context, source, cloned, manifest, properties=properties or {})


def _pin(context: TableContext, source: State, uri: str) -> None:
    """Tag the cloned version, so that garbage collection keeps the files the clone references.

    Raises:
        RefNotFoundError: Its branch was deleted before the tag was there.
        ConflictError: Its branch is being reset or renamed.
        VersionNotFoundError: The version was collected before the tag was there.
    """
    refs = context.refs
    branch_id = ready_branch_id(source.branch, refs)
    size = context.versions.manifest_size(source)
    first = Tag(name="", branch=source.branch, version=source.number, metadata={CLONE: uri}, manifest_size=size)
    pin = _add_pin(first, f"{source} {source.id} {uri}", refs)
    if pin is None:
        return
    try:
        # A deletion that did not see the tag has marked the branch before; a collection has taken the version away.
        refuse_gone(pin, branch_id, refs)
        _refuse_collected(context, source)
    except (RefNotFoundError, ConflictError, VersionNotFoundError):
        with suppress(RefMovedError):
            refs.tags.remove(pin)
        raise


def _refuse_collected(context: TableContext, source: State) -> None:
    if not context.versions.is_stored(source):
        raise VersionNotFoundError(f"{source} of {context.uri} was collected before its clone was made")


def _pin_origins(context: TableContext, source: State, uri: str) -> None:
    """Where the source is a shallow clone itself, keep the files of the tables that it was cloned from.

    Their tags for the source are repeated for the clone: whoever deletes the source deletes its tags too.
    """
    pinned: list[Tag] = []
    others = 0
    for base in source.manifest.base_paths:
        if context.versions.bases.is_inside(base.path) or not base.is_dataset_root:
            continue
        refs = Refs(base_store(context, base))
        try:
            held = [tag for tag in refs.tags.all().values() if tag.metadata.get(CLONE) == context.uri]
        except (FormatError, StoreError) as error:
            _log.warning("nothing keeps the files of %s for the clone of %s: %s", base.path, source, error)
            continue
        others += 1
        pinned += held
        for tag in held:
            _add_pin(replace(tag, metadata={CLONE: uri}), f"{tag.name} {uri}", refs)
    if others and not pinned:
        _pin_recorded_origin(context, source, uri)


def _pin_recorded_origin(context: TableContext, source: State, uri: str) -> None:
    """Tag the version that the source was cloned from: where the source was moved, the tags have its former URI."""
    numbers = context.versions.numbers(layout.MAIN)
    first = context.versions.find(layout.MAIN, numbers[0]) if numbers else None
    operation = first.transaction.operation if first is not None and first.transaction is not None else None
    if not isinstance(operation, Clone) or not operation.is_shallow:
        return
    branch = operation.ref_name or layout.MAIN
    root = spelled(operation.ref_path).removesuffix(f"/{layout.branch_root(branch)}")
    base = next((base for base in source.manifest.base_paths if spelled(base.path) == root), None)
    try:
        versions = None if base is None else Versions(base_store(context, base))
        state = None if versions is None else versions.find(branch, operation.ref_version)
    except (FormatError, StoreError) as error:
        _log.warning("nothing keeps the files of %s for the clone of %s: %s", root, source, error)
        return
    if versions is None or state is None:
        _log.warning(
            "nothing keeps the files of %s for the clone of %s: %s@%s is not there",
            root,
            source,
            branch,
            operation.ref_version,
        )
        return
    tag = Tag(name="", branch=branch, version=state.number, metadata={CLONE: uri})
    _add_pin(replace(tag, manifest_size=versions.manifest_size(state)), f"{state} {uri}", Refs(versions.store))


def _add_pin(tag: Tag, digested: str, refs: Refs) -> Tag | None:
    """Add a tag that keeps a version for a clone; return None where it exists, or cannot be written."""
    # The name depends on source and target alone, so a repeated call finds the tag of the first call.
    tag = replace(tag, name=f"clone-{hashlib.sha256(digested.encode()).hexdigest()[:16]}")
    problem: AlreadyExistsError | StoreError | None = None
    for _ in range(_PINS):
        try:
            return refs.tags.add(tag)
        except AlreadyExistsError as error:
            # An interrupted call for the same clone has left the tag; a refusal alone does not prove that it is there.
            if refs.tags.find(tag.name) is not None:
                return None
            problem = error
        except StoreError as error:
            # A single failed request must not leave the files of the clone unprotected.
            problem = error
    # A caller with read access only can clone the table, but cannot leave a tag; that deserves only a warning.
    shown = f"{tag.ref} of {refs.store.uri}"
    _log.warning("nothing keeps the files of %s for its clone: no tag can be left there: %s", shown, problem)
    return None


def _allow(context: TableContext, source: State, cloned: TableContext, manifest: Manifest) -> None:
    """Let every reader of the clone follow its base paths: the source, and the places that the source may name."""
    for base in source.manifest.base_paths:
        context.versions.bases.locate(base.path, base.id)
    for base in manifest.base_paths:
        allow(cloned, base.path, base.id)


@contextmanager
def _claimed(cloned: TableContext, what: str) -> Iterator[None]:
    """Hold a claim file at the new root, so that two clones to the same place exclude each other.

    The conditional write of the manifest is not enough: the first versions of two clones may have different numbers and
    thus different names. The claim holds a description of the clone, so a repeated call takes over the claim that a
    crash left behind.
    """
    if cloned.versions.newest(layout.MAIN) is not None:
        raise AlreadyExistsError(f"there is a Lance table at {cloned.uri} already")
    claim = what.encode()
    while not cloned.store.put_if_absent(_CLAIM, claim):
        # Another caller may remove the claim between the two requests; then `found` is None and the loop tries again.
        other_claim = cloned.store.get(_CLAIM)
        if other_claim == claim:
            break
        if other_claim is not None:
            raise AlreadyExistsError(
                f"another clone is being made at {cloned.uri}, of {other_claim.decode(errors='replace')}; "
                f"if that clone was given up, remove {cloned.uri}/{_CLAIM}"
            )
    try:
        yield
    finally:
        cloned.store.delete(_CLAIM)


def _commit_first(
    context: TableContext, source: State, cloned: TableContext, manifest: Manifest, *, properties: Mapping[str, str]
) -> None:
    transaction = Transaction(
        read_version=source.number,
        uuid=str(uuid.uuid4()),
        operation=Clone(
            is_shallow=bool(manifest.base_paths),
            ref_name=None if source.branch == layout.MAIN else source.branch,
            ref_version=source.number,
            ref_path=context.versions.branch_uri(source.branch),
        ),
        properties=properties,
    )
    manifest = replace(manifest, transaction_file="", writer=WRITER, timestamp=now_ns())
    if create_first(cloned.versions, Proposal(transaction, with_feature_flags(manifest))) is None:
        raise AlreadyExistsError(f"somebody else made a Lance table at {cloned.uri} meanwhile")


def _options(
    context: TableContext, manifest: Manifest, uri: str, clone_options: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the storage options of the clone: its own options, and for its base paths the options of the source."""
    source = context.storage_options
    result = dict(clone_options or {})
    # A local clone gets no options of an object store, which its store would not know.
    if clone_options is None and "://" in canonical_uri(uri):
        result = table_options(source)
    base_ids = {base.id for base in manifest.base_paths}
    for key, value in source.items():
        if key not in table_options(source) and any(key.startswith(f"base_{number}.") for number in base_ids):
            result.setdefault(key, value)
    for base in manifest.base_paths:
        # A base path without options of its own was opened with the source's. When the clone has other options, the
        # source's are given to that base path explicitly.
        if "://" in base.path and table_options(source) != table_options(result):
            for key, value in table_options(source).items():
                result.setdefault(f"base_{base.id}.{key}", value)
    return result


def _copy_files(context: TableContext, source: State, dest: Store, progress: Progress | None) -> None:
    """Copy every file a version references to the folder of the clone, except files that were copied before."""
    there = dest.sizes(layout.DATA)
    blobs = source.manifest.holds_blobs
    jobs: list[Callable[[], None]] = []
    for place in file_references(source.manifest, context.versions.branch_uri(source.branch)):
        store = base_store(context, place.base)
        jobs += _data_jobs(place, store, dest, there, blobs=blobs)
        jobs += _digest_jobs(place, store, dest)
        jobs += _other_jobs(place, store, dest)
    # After a failure the copied files stay, and a repeated call skips them.
    concurrently(lambda job: job(), jobs, progress=progress)
    # The names of the copies must be durable before the manifest that references them is written.
    dest.sync_folder(layout.DATA)


def _data_jobs(
    place: FileReferences, store: Store, dest: Store, there: Mapping[str, int], *, blobs: bool
) -> list[Callable[[], None]]:
    """Return a job for each data file that is missing at `dest` or has another size there; 0 is an unknown size."""

    # A function per name binds the name; a closure over the loop variable would see its last value.
    def job(name: str) -> Callable[[], None]:
        def copy() -> None:
            key = _key(place.base, layout.DATA, name)
            if blobs:
                # Blobs are in a folder named like the data file without its suffix. They are copied before the file,
                # because a repeated call takes an existing data file as proof that its blobs exist too.
                stem = name.removesuffix(".lance")
                copy_folder(store, key.removesuffix(".lance"), dest, f"{layout.DATA}/{stem}")
            if name in there:
                # This package writes files atomically, so another program left an incomplete copy.
                dest.delete(f"{layout.DATA}/{name}")
            if not copy_file(store, key, dest, f"{layout.DATA}/{name}"):
                raise CorruptFileError(f"{store.uri}/{key}", "it is missing")

        return copy

    return [job(name) for name, size in place.data.items() if name not in there or size not in (0, there[name])]


def _digest_jobs(place: FileReferences, store: Store, dest: Store) -> list[Callable[[], None]]:
    """Return a job for each recorded digest of a data file, which then tells of an incomplete copy too."""
    folder = layout.DATA if place.base.is_dataset_root else ""
    # A digest is a name; the object is empty.
    return [
        partial(dest.put, f"{layout.DATA}/{layout.digest_file(name, digest)}", b"", durable=False)
        for name, digests in recorded_digests(store.list(_key(place.base, folder, ""))).items()
        if name in place.data
        for digest in digests
    ]


def _other_jobs(place: FileReferences, store: Store, dest: Store) -> list[Callable[[], None]]:
    def deletion(name: str) -> Callable[[], None]:
        def copy() -> None:
            key = _key(place.base, layout.DELETIONS, name)
            if not copy_file(store, key, dest, f"{layout.DELETIONS}/{name}"):
                raise CorruptFileError(f"{store.uri}/{key}", "it is missing")

        return copy

    def index(name: str, files: tuple[str, ...]) -> Callable[[], None]:
        def copy() -> None:
            key = _key(place.base, layout.INDICES, name)
            is_copied = copy_folder(store, key, dest, f"{layout.INDICES}/{name}")
            if files and not is_copied:
                raise CorruptFileError(f"{store.uri}/{key}", "it is missing")

        return copy

    return [deletion(name) for name in sorted(place.deletions)] + [
        index(name, files) for name, files in place.indices.items()
    ]


def _key(base: BasePath, folder: str, name: str) -> str:
    return layout.join(folder if base.is_dataset_root else "", name)
