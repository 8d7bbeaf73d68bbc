"""Base paths of a table: further roots under which its files may be stored.

New fragments can be written to a named base path, such as cheaper storage for old data, or a bucket in the region of
the readers. A reader follows the base ids in the manifest and needs no configuration beyond storage options. New
deletion files, indices and manifests are always written to the table's own folder.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lance_dagster.errors import (
    AlreadyExistsError,
    CorruptFileError,
    InvalidInputError,
    LanceDagsterError,
    PermissionRefusedError,
    StoreError,
    counted,
)
from lance_dagster.format import layout
from lance_dagster.format.model import BasePath, Fragment
from lance_dagster.format.transaction import COMMIT_MESSAGE, Transaction, UpdateBases
from lance_dagster.format.validation import check_flag, check_string, validate_commit_info
from lance_dagster.history.base_access import refuse_place_of_table
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.context import TableContext
from lance_dagster.history.refs.protection import refuse_protected_branch
from lance_dagster.history.refs.ref_files import DELETING
from lance_dagster.history.versions import State
from lance_dagster.store import Store, base_options, canonical_uri, open_store
from lance_dagster.store.retries import repeated
from lance_dagster.transactions.base_paths import (
    ROOT_BASE,
    FileReferences,
    file_references,
    find_base_path,
    with_base,
)

_SHOWN = 3
# The number of attempts to write an allowance where requests fail.
_ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBase:
    """A base path to add, and the message and properties of the commit."""

    name: str
    uri: str
    is_dataset_root: bool = False
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the message and the properties.

        Raises:
            InvalidInputError: The message or a property is not a string.
        """
        validate_commit_info(self.message, self.properties)


def add_base(context: TableContext, branch: str, new_base: NewBase) -> BasePath:
    """Add a base path to a branch, with the id that other branches use for the same path where possible.

    Raises:
        AlreadyExistsError: The branch has another base path with the same name or path.
        InvalidInputError: The name is reserved, or the path is inside this or another table or cannot be opened.
    """
    base = _checked(context, new_base)
    refuse_protected_branch("add a base path to", branch, context.store)
    # The id is chosen from the heads of all branches, so it is read once and not for each proposal.
    number = _free_id(context, branch, base)
    # The allowance is written before the commit, so that no reader finds a base path that is not allowed.
    allow(context, base.path, number)
    # All proposals share one uuid, so a commit whose response was lost is recognised as this commit.
    transaction_id = str(uuid.uuid4())
    properties = dict(new_base.properties) | ({} if new_base.message is None else {COMMIT_MESSAGE: new_base.message})

    def propose(head: State) -> Proposal | State:
        if _is_there(head, base):
            return head
        # A concurrent commit may have used the id; then the commit takes the next free one of this branch.
        ids = {present.id for present in head.manifest.base_paths}
        new = replace(base, id=max(ids) + 1 if number in ids else number)
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=UpdateBases(new_bases=(new,)),
            properties=properties,
        )
        return Proposal(transaction, next_manifest(context.versions, head, transaction))

    # Raises the error that names the known branches when this one does not exist.
    context.head(branch)
    state = commit(context.versions, branch, propose)
    return find_base_path(state.manifest, base.name or "", context.uri)


def allow(context: TableContext, path: str, base_id: int) -> None:
    """Let every reader of a table follow a base path that the caller named, where the place can be written."""

    def may_be_repeated(error: LanceDagsterError) -> bool:
        # A single failed request must not leave a table that other readers refuse.
        return isinstance(error, StoreError) and not isinstance(error, PermissionRefusedError)

    try:
        repeated(lambda: context.versions.bases.allow(path, base_id), may_be_repeated, times=_ATTEMPTS)
    except StoreError as problem:
        # The place may be readable only, or its options may not be known here. Readers can allow it by themselves.
        _log.warning("readers of %s have to allow the base path %s: %s", context.uri, path, problem)


def _checked(context: TableContext, new_base: NewBase) -> BasePath:
    uri = canonical_uri(new_base.uri)
    check_string("the name of a base path", new_base.name)
    check_flag("is_dataset_root", new_base.is_dataset_root)
    if not new_base.name or new_base.name == ROOT_BASE:
        raise InvalidInputError(f"a base path cannot be called {new_base.name!r}; {ROOT_BASE!r} is the table itself")
    inside = uri.startswith(f"{context.uri}/")
    below = uri.removeprefix(f"{context.uri}/").partition("/")[0] if inside else ""
    if uri == context.uri or below.startswith("_") or below in {layout.DATA, "tree"}:
        raise InvalidInputError(f"{uri} is a folder of the table itself; a base path is another place")
    # Opening the store checks the storage options before the base path is committed. The base has no id yet, so the
    # options of id 0 are used.
    options = base_options(context.storage_options, 0, uri)
    open_store(uri, options)
    refuse_place_of_table(uri, options)
    return BasePath(id=0, name=new_base.name, path=uri, is_dataset_root=new_base.is_dataset_root)


def _is_there(head: State, base: BasePath) -> bool:
    """Return whether a version has an equal base path, whatever its id.

    Raises:
        AlreadyExistsError: The version has another base path with the same name or path.
    """
    for present in head.manifest.base_paths:
        if replace(present, id=0) == base:
            return True
        if present.name == base.name or present.path == base.path:
            kind = "a dataset root" if present.is_dataset_root else "a folder of data files"
            raise AlreadyExistsError(
                f"{head} has the base path {present.name!r} at {present.path} ({kind}); "
                "give the new base path another name and another place"
            )
    return False


def _free_id(context: TableContext, branch: str, base: BasePath) -> int:
    """Return the id that another branch uses for the same path, or else one that no branch uses."""
    of_branches = [present for head in heads(context) if head.branch != branch for present in head.manifest.base_paths]
    own = context.head(branch).manifest.base_paths
    same = next((present.id for present in of_branches if present.path == base.path and present.id), None)
    if same is not None and same not in {present.id for present in own}:
        return same
    # Storage options are given per id (`base_<id>.region`) for all branches, so one id should mean one path.
    return max((present.id for present in (*of_branches, *own)), default=0) + 1


def heads(context: TableContext) -> list[State]:
    """Load the newest version of main and of every branch, including branches whose creation was interrupted."""
    branches = [branch.name for branch in context.refs.branches.all().values() if branch.state != DELETING]
    lines = [layout.MAIN, *sorted(branches)]
    return [context.versions.head(line) for line in lines if context.versions.newest(line) is not None]


def base_store(context: TableContext, base: BasePath) -> Store:
    """Open the store of a base path; folders of the table itself are opened with the table's own options."""
    store, folder = context.versions.bases.locate(base.path, base.id)
    # A branch names a folder below the table's root, such as `tree/<branch>`, as a base path.
    return store if not folder else open_store(f"{context.uri}/{folder}", context.storage_options)


def destination(context: TableContext, head: State, name: str) -> BasePath | None:
    """Return the base path for new data files; None for "root", the table's own data folder.

    Raises:
        InvalidInputError: The branch has no base path of that name, or it is not allowed.
    """
    if name == ROOT_BASE:
        return None
    base = find_base_path(head.manifest, name, str(head))
    context.versions.bases.locate(base.path, base.id)
    return replace(base, path=spelled(base.path))


def spelled(path: str) -> str:
    """Return the canonical spelling of a base path; pylance stores the URI exactly as a caller wrote it."""
    try:
        return canonical_uri(path)
    except InvalidInputError:
        # This package cannot open the scheme, but the path can still be compared with others.
        return path.rstrip("/")


def options_of(context: TableContext, base: BasePath) -> Mapping[str, str]:
    """Return the storage options for a base path."""
    return base_options(context.storage_options, base.id, base.path)


def placed(context: TableContext, fragments: tuple[Fragment, ...], head: State, path: str) -> tuple[Fragment, ...]:
    """Return new fragments with the base id that a branch uses for the place of their data files.

    Args:
        context: The table.
        fragments: Fragments that describe new data files, without base ids.
        head: The version the fragments are committed on.
        path: The base path the files were written to.

    Raises:
        InvalidInputError: The branch has no base path at `path`.
    """
    base = next((base for base in head.manifest.base_paths if spelled(base.path) == path), None)
    if base is None:
        raise InvalidInputError(f"{head} has no base path at {path}, where files were staged; add_base adds it")
    # A commit syncs the data folder of the table to disk, but not the folders of base paths. Without this call a power
    # failure could lose directory entries of files that the new version names.
    base_store(context, base).sync_folder(layout.DATA if base.is_dataset_root else "")
    return with_base(fragments, base)


def check_files(context: TableContext, state: State, base_ids: Iterable[int]) -> int:
    """Check the files that a version references through some base paths; return their number, each index as one.

    Data files have to exist with their recorded size. Deletion files and the files directly in the folder of an index
    have to exist; files in its subfolders are not checked.

    Raises:
        CorruptFileError: Files are missing or have another size.
    """
    checked_ids = frozenset(base_ids)
    branch_uri = context.versions.branch_uri(state.branch)
    count = 0
    for place in file_references(state.manifest, branch_uri):
        if place.base.id in checked_ids and place.base in state.manifest.base_paths:
            store = base_store(context, place.base)
            missing = _missing(store, place)
            if missing:
                shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
                files = counted(len(missing), "file")
                raise CorruptFileError(place.base.path, f"it lacks {files} of {state}, or has them incomplete: {shown}")
            count += len(place.data) + len(place.deletions) + len(place.indices)
    return count


def _missing(store: Store, place: FileReferences) -> list[str]:
    """Return the names of the referenced files that a store lacks or has with another size."""

    # Only a dataset root has the subfolders `data`, `_deletions` and `_indices`; another base holds files directly.
    def folder(name: str) -> str:
        return name if place.base.is_dataset_root else ""

    # One listing per folder instead of one request per file. A recorded size of 0 means that the size is unknown.
    data_files = store.sizes(folder(layout.DATA)) if place.data else {}
    missing = [name for name, size in place.data.items() if name not in data_files or size not in (0, data_files[name])]
    deletions = store.sizes(folder(layout.DELETIONS)) if place.deletions else {}
    missing += [name for name in sorted(place.deletions) if name not in deletions]
    for index, files in place.indices.items():
        there = store.sizes(layout.join(folder(layout.INDICES), index)) if files else {}
        # The listing is not recursive, so files in subfolders of an index are not checked.
        missing += [f"{index}/{name}" for name in files if "/" not in name and name not in there]
    return missing
