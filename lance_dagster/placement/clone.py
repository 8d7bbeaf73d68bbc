"""Make a table of its own out of a version of another one.

A shallow clone is one manifest that names the files of the source through a base path. It lives as long as those
files do, and a clean-up of the source does not see it: so a tag is left on the version that was cloned, called
`clone-` and a digest, with the clone's place in its metadata. Delete it when the clone is gone. A deep clone has
copies of the files of that one version and needs nothing of the source any more. Either way the clone is there whole
when its manifest is, and a clone that was interrupted is made by the same call again.

The first version of a clone has the number of the version cloned, so that the versions its rows came with stay
smaller. Branches, tags and older versions stay with the source.
"""

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from lance_dagster.errors import AlreadyExistsError, CorruptFileError, StoreError
from lance_dagster.format import layout
from lance_dagster.format.model import BasePath, Manifest
from lance_dagster.format.transaction import Clone, Transaction
from lance_dagster.gc.collect import Progress
from lance_dagster.history.commit import WRITER, Proposal, create_first, now_ns
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.refs.ref_store import Tag
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import base_store
from lance_dagster.store import Store, canonical_uri, copy_file, copy_folder, table_options
from lance_dagster.transactions.apply import with_feature_flags
from lance_dagster.transactions.base_paths import FileReferences, deep_clone, file_references, shallow_clone

CLONE = "lance_dagster.clone"
"""The metadata key of a tag that keeps a version for a shallow clone: where the clone lies."""
_log = logging.getLogger(__name__)
_WORKERS = 8
_CLAIM = ".clone"
_BLOB = "lance.blob"
_LEGACY_BLOB = "lance-encoding:blob"


def clone(
    context: TableContext,
    source: State,
    uri: str,
    *,
    shallow: bool,
    storage_options: Mapping[str, str] | None,
    progress: Progress | None = None,
) -> TableContext:
    """Clone a version to a new table and return its parts.

    Args:
        context: The table that is cloned.
        source: Its version.
        uri: Where the clone shall lie.
        shallow: Whether it names the source's files, or has copies of them.
        storage_options: For the clone; None for those of the source, where they fit.
        progress: Told how many files were copied.

    Raises:
        AlreadyExistsError: There is a table already; nothing was written.
        CorruptFileError: A file of the source is missing.
    """
    source_uri = context.versions.branch_uri(source.branch)
    if shallow:
        manifest = shallow_clone(source.manifest, source_uri=source_uri, name=str(source))
    else:
        manifest = deep_clone(source.manifest)
    made = open_context(uri, _options(context, manifest, uri, storage_options))
    write_clone(context, source, made, manifest, progress=progress)
    return made


def write_clone(
    context: TableContext, source: State, made: TableContext, manifest: Manifest, *, progress: Progress | None = None
) -> None:
    """Make a manifest the first version of a table, once the files it has of its own are there.

    Raises:
        AlreadyExistsError: There is a table already.
        CorruptFileError: A file of the source is missing.
    """
    shallow = bool(manifest.base_paths)
    with _claimed(made, f"{context.uri} {source} {'shallow' if shallow else 'deep'}"):
        if made.versions.newest(layout.MAIN) is not None:
            raise AlreadyExistsError(f"there is a Lance table at {made.uri} already")
        if shallow:
            _pin(context, source, made.uri)
        else:
            _copy_files(context, source, made.store, progress)
        _commit_first(context, source, made, manifest)


def _pin(context: TableContext, source: State, uri: str) -> None:
    """Leave a tag on a version whose files a clone names, before the clone is there."""
    digest = hashlib.sha256(f"{source} {source.id} {uri}".encode()).hexdigest()[:16]
    size = context.versions.manifest_size(source)
    tag = Tag(
        name=f"clone-{digest}",
        branch=source.branch,
        version=source.number,
        metadata={CLONE: uri},
        manifest_size=size,
    )
    try:
        context.refs.add_tag(tag)
    except AlreadyExistsError:
        # The same clone was begun before.
        return
    except StoreError as error:
        # A table may be cloned by somebody who can only read it.
        _log.warning("nothing keeps the files of %s for its clone: no tag can be left there: %s", source, error)


@contextmanager
def _claimed(made: TableContext, what: str) -> Iterator[None]:
    """Keep others from making another clone at the same place: first versions of different numbers do not collide.

    A claim that a crash left behind is that of whoever makes the same clone again.
    """
    if made.versions.newest(layout.MAIN) is not None:
        raise AlreadyExistsError(f"there is a Lance table at {made.uri} already")
    claim = what.encode()
    while not made.store.put_if_absent(_CLAIM, claim):
        found = made.store.get(_CLAIM)
        if found == claim:
            break
        if found is not None:
            raise AlreadyExistsError(
                f"another clone is being made at {made.uri}, of {found.decode(errors='replace')}; "
                f"when that was given up, remove {made.uri}/{_CLAIM}"
            )
    try:
        yield
    finally:
        made.store.delete(_CLAIM)


def _commit_first(context: TableContext, source: State, made: TableContext, manifest: Manifest) -> None:
    transaction = Transaction(
        read_version=source.number,
        uuid=str(uuid.uuid4()),
        operation=Clone(
            is_shallow=bool(manifest.base_paths),
            ref_name=None if source.branch == layout.MAIN else source.branch,
            ref_version=source.number,
            ref_path=context.versions.branch_uri(source.branch),
        ),
    )
    manifest = replace(manifest, transaction_file=transaction.file_name, writer=WRITER, timestamp=now_ns())
    if create_first(made.versions, Proposal(transaction, with_feature_flags(manifest))) is None:
        raise AlreadyExistsError(f"somebody else made a Lance table at {made.uri} meanwhile")


def _options(context: TableContext, manifest: Manifest, uri: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options the clone is opened with: its own, and for its base paths those of the source."""
    source = context.storage_options
    result = dict(given or {})
    if given is None and "://" in canonical_uri(uri):
        result = table_options(source)
    kept = {base.id for base in manifest.base_paths}
    for key, value in source.items():
        if key not in table_options(source) and any(key.startswith(f"base_{number}.") for number in kept):
            result.setdefault(key, value)
    for base in manifest.base_paths:
        # A base that was reached with the source's options is reached with the clone's only if they are the same.
        if "://" in base.path and table_options(source) != table_options(result):
            for key, value in table_options(source).items():
                result.setdefault(f"base_{base.id}.{key}", value)
    return result


def _copy_files(context: TableContext, source: State, dest: Store, progress: Progress | None) -> None:
    """Copy every file a version names to a table's own folder, those that are there by now excepted."""
    there = dest.sizes(layout.DATA)
    blobs = _has_blobs(source.manifest)
    jobs: list[Callable[[], None]] = []
    for place in file_references(source.manifest, context.versions.branch_uri(source.branch)):
        store = base_store(context, place.base)
        jobs += _data_jobs(place, store, dest, there, blobs=blobs)
        jobs += _other_jobs(place, store, dest)
    with ThreadPoolExecutor(_WORKERS) as pool:
        # The first failure is raised here; what was copied stays, and is not copied again.
        for done, result in enumerate([pool.submit(job) for job in jobs], 1):
            result.result()
            if progress is not None:
                progress(done, len(jobs))
    dest.sync_folder(layout.DATA)


def _data_jobs(
    place: FileReferences, store: Store, dest: Store, there: Mapping[str, int], *, blobs: bool
) -> list[Callable[[], None]]:
    def job(name: str) -> Callable[[], None]:
        def copy() -> None:
            key = _key(place.base, layout.DATA, name)
            if blobs:
                # Blobs lie in a folder called like the file; most files have none. They come first: the file being
                # there says that they are.
                stem = name.removesuffix(".lance")
                copy_folder(store, key.removesuffix(".lance"), dest, f"{layout.DATA}/{stem}")
            if name in there:
                # What this call writes is there whole; this one somebody else began to copy.
                dest.delete(f"{layout.DATA}/{name}")
            if not copy_file(store, key, dest, f"{layout.DATA}/{name}"):
                raise CorruptFileError(f"{store.uri}/{key}", "it is missing")

        return copy

    return [job(name) for name, size in place.data.items() if name not in there or size not in (0, there[name])]


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
            found = copy_folder(store, key, dest, f"{layout.INDICES}/{name}")
            if files and not found:
                raise CorruptFileError(f"{store.uri}/{key}", "it is missing")

        return copy

    return [deletion(name) for name in sorted(place.deletions)] + [
        index(name, files) for name, files in place.indices.items()
    ]


def _key(base: BasePath, folder: str, name: str) -> str:
    return layout.join(folder if base.is_dataset_root else "", name)


def _has_blobs(manifest: Manifest) -> bool:
    return any(field.extension_name.startswith(_BLOB) or _LEGACY_BLOB in field.metadata for field in manifest.fields)
