"""Base paths: the locations of the files of a manifest, and how they change with fork, clone, merge and relocation.

A branch is a shallow clone in a folder of its own (branch and tag specification) and references inherited files through
a base path. Data files that this package writes for a branch are stored under the root of the table from the start, and
are referenced through the base path "root". A merge into `main` therefore only drops the base id.

Base ids start at 1: when pylance writes to a named base path, it treats the id 0 as "not set" and omits it, which makes
the branch unreadable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_dagster.errors import Call, CorruptFileError, InvalidInputError, Remedy
from lance_dagster.format.codec import encode_indices, rebase_index_section
from lance_dagster.format.layout import DATA, DELETIONS, VERSIONS, deletion_path, join, manifest_name
from lance_dagster.format.model import BasePath, Fragment, Fragments, Manifest
from lance_dagster.format.transaction import without_merge_records
from lance_dagster.transactions.index_updates import indices_of

ROOT_BASE = "root"


def fork(parent: Manifest, branch: str, *, root_uri: str, parent_uri: str) -> Manifest:
    """Return the first manifest of a branch: the state of the parent, with a base path for every inherited file.

    Args:
        parent: The version forked from.
        branch: The new branch's name.
        root_uri: The table's canonical URI.
        parent_uri: The URI of the folder of the parent branch; equal to `root_uri` for `main`.
    """
    bases = list(parent.base_paths)
    root = _base_for(bases, root_uri, ROOT_BASE)
    # A branch of a branch needs two base paths: one for the files of its parent, one for the files of the root.
    own = root if parent_uri == root_uri else _base_for(bases, parent_uri, parent.branch or ROOT_BASE)
    return _named_through(replace(parent, branch=branch, base_paths=tuple(bases)), own.id, parent_uri)


def shallow_clone(source: Manifest, *, source_uri: str, name: str) -> Manifest:
    """Return the first manifest of a new table that references the files of another table through a base path.

    Args:
        source: The version to clone.
        source_uri: The URI of the folder of its branch.
        name: The name of the new base path; a number is appended when it is taken.
    """
    # The base path "root" of the source is the root of another table.
    bases = [replace(base, name=f"{name}-root") if base.name == ROOT_BASE else base for base in source.base_paths]
    used = {base.name for base in bases}
    names = (name if count == 1 else f"{name}-{count}" for count in range(1, len(bases) + 2))
    own = _base_for(bases, source_uri, next(free for free in names if free not in used))
    return _named_through(replace(_as_new_table(source), base_paths=tuple(bases)), own.id, source_uri)


def deep_clone(source: Manifest) -> Manifest:
    """Return the first manifest of a new table that has all files in its own folder."""
    # A base id would be undefined, since the new table has no base paths.
    indices = [replace(index, base_id=None) for index in indices_of(source)]
    return replace(
        _as_new_table(source),
        base_paths=(),
        fragments=Fragments(_in_own_folder(fragment) for fragment in source.fragments),
        index_section=encode_indices(indices),
    )


def _as_new_table(source: Manifest) -> Manifest:
    # Merge records refer to branches of the source table; the new table has none of them.
    return replace(source, branch=None, table_metadata=without_merge_records(source.table_metadata))


def _named_through(manifest: Manifest, base_id: int, uri: str) -> Manifest:
    """Set a base id on every file without one."""
    # The section is edited in its encoded form, so that fields which this package does not know are kept.
    section = manifest.index_section
    if section is not None:
        section = rebase_index_section(section, base_id, f"version {manifest.version} of {uri}")
    return replace(
        manifest,
        fragments=Fragments(_rebased(fragment, base_id) for fragment in manifest.fragments),
        index_section=section,
    )


def add_base_paths(existing: Sequence[BasePath], new: Sequence[BasePath]) -> tuple[BasePath, ...]:
    """Return base paths followed by new base paths; a new base path with the id 0 gets the next free id.

    Raises:
        InvalidInputError: An id, a name or a path is taken.
    """
    bases = list(existing)
    for base in new:
        # In a transaction, the id 0 means that an id has to be assigned.
        number = base.id or max((present.id for present in bases), default=0) + 1
        for present in bases:
            if (
                present.id == number
                or present.path == base.path
                or (present.name is not None and present.name == base.name)
            ):
                raise InvalidInputError(
                    f"cannot add base path {number} named {base.name!r} at {base.path}: base path {present.id} named "
                    f"{present.name!r} at {present.path} is there already; choose another id, name and path"
                )
        bases.append(replace(base, id=number))
    return tuple(bases)


def _base_for(bases: list[BasePath], uri: str, name: str) -> BasePath:
    for base in bases:
        # An existing base path is reused, except id 0, which pylance cannot write to.
        if base.path == uri and base.is_dataset_root and base.id:
            return base
    base = BasePath(id=max((base.id for base in bases), default=0) + 1, path=uri, name=name, is_dataset_root=True)
    bases.append(base)
    return base


def _rebased(fragment: Fragment, base_id: int) -> Fragment:
    deletion = fragment.deletion
    if deletion is not None and deletion.base_id is None:
        deletion = replace(deletion, base_id=base_id)
    files = (replace(file, base_id=base_id) if file.base_id is None else file for file in fragment.files)
    return replace(fragment, files=tuple(files), deletion=deletion)


def _in_own_folder(fragment: Fragment) -> Fragment:
    deletion = None if fragment.deletion is None else replace(fragment.deletion, base_id=None)
    return replace(fragment, files=tuple(replace(file, base_id=None) for file in fragment.files), deletion=deletion)


def find_base_path(manifest: Manifest, name: str, branch_uri: str) -> BasePath:
    """Return the base path with a name.

    Raises:
        InvalidInputError: It does not exist; the message lists the existing names.
    """
    for base in manifest.base_paths:
        if base.name == name:
            return base
    # Base paths without a name cannot be addressed by callers.
    names = ", ".join(repr(base.name) for base in manifest.base_paths if base.name) or "none"
    raise InvalidInputError(f"{branch_uri} has no base path named {name!r}; it has {names}; add_base adds one")


def with_base(fragments: Iterable[Fragment], base: BasePath) -> tuple[Fragment, ...]:
    """Return fragments with the id of a base path set on their data files."""
    return tuple(
        replace(fragment, files=tuple(replace(file, base_id=base.id) for file in fragment.files))
        for fragment in fragments
    )


def shared_base_ids(source: Manifest, dest: Manifest, root_uri: str) -> dict[int | None, int]:
    """Map base ids of `source` to base ids of `dest`, for locations outside of the table that both reference.

    {3: 5} says that base path 3 of `source` is at the same place as base path 5 of `dest`. A merge can keep files in
    such a location as they are, under the base id of `dest`.
    """
    ids = {(base.path, base.is_dataset_root): base.id for base in dest.base_paths}
    outside = (base for base in source.base_paths if not _is_at(base.path, root_uri))
    return {
        base.id: ids[base.path, base.is_dataset_root] for base in outside if (base.path, base.is_dataset_root) in ids
    }


def with_root_base(
    fragments: Sequence[Fragment], manifest: Manifest, root_uri: str, elsewhere: Mapping[int | None, int] | None = None
) -> tuple[Fragment, ...]:
    """Return fragments in the root's `data/` with the base id under which `manifest` references the root.

    Args:
        fragments: The fragments.
        manifest: A manifest of the branch that will reference them.
        root_uri: The canonical URI of the table.
        elsewhere: For files in other locations: their base id, and the base id of the same location in `manifest`.

    Raises:
        InvalidInputError: The branch references the root under another URI.
    """
    base_id, base_ids = root_base_id(manifest, root_uri), elsewhere or {}
    return tuple(
        replace(
            fragment,
            files=tuple(replace(file, base_id=base_ids.get(file.base_id, base_id)) for file in fragment.files),
        )
        for fragment in fragments
    )


def root_base_id(manifest: Manifest, root_uri: str) -> int | None:
    """Return the base id under which a manifest references the table's own folder; None on `main`.

    Raises:
        InvalidInputError: The branch references the root under another URI.
    """
    if manifest.branch is None:
        return None
    for base in manifest.base_paths:
        if base.path == root_uri and base.is_dataset_root:
            return base.id
    # Readers would accept another spelling of the same location, but the cleanup of pylance compares strings.
    raise InvalidInputError(
        f"branch {manifest.branch!r} looks for the table's files elsewhere than {root_uri}: the table was "
        "moved, or the branch was forked under another spelling of this URI",
        remedy=Remedy("{} corrects the branch", Call("maintenance.relocate")),
    )


def base_path_of(manifest: Manifest, base_id: int | None, branch_uri: str) -> BasePath:
    """Return the base path of a base id; None is the folder of the branch itself.

    Raises:
        CorruptFileError: The manifest does not define the base id.
    """
    if base_id is None:
        return BasePath(id=0, path=branch_uri, is_dataset_root=True)
    for base in manifest.base_paths:
        if base.id == base_id:
            return base
    path = join(branch_uri, VERSIONS, manifest_name(manifest.version))
    raise CorruptFileError(path, f"it names a file under a base path {base_id} that it does not have")


def data_folder(base: BasePath) -> str:
    """Return the folder of the data files of a base path (storage layout specification, "path resolution")."""
    return join(base.path, DATA) if base.is_dataset_root else base.path


@dataclass(slots=True)
class FileReferences:
    """The files that a version references under one base path.

    `data` maps data files to sizes in bytes (0 where unknown), `deletions` are file names, and `indices` maps index
    uuids to the recorded file paths, relative to the folder of the index.
    """

    base: BasePath
    data: dict[str, int] = field(default_factory=dict)
    deletions: set[str] = field(default_factory=set)
    indices: dict[str, tuple[str, ...]] = field(default_factory=dict)


def file_references(manifest: Manifest, branch_uri: str) -> list[FileReferences]:
    """Return every file that a version references, grouped by base path.

    Raises:
        CorruptFileError: The manifest does not define a base id.
    """
    by_base: dict[int | None, FileReferences] = {}

    def under(base_id: int | None) -> FileReferences:
        if base_id not in by_base:
            by_base[base_id] = FileReferences(base_path_of(manifest, base_id, branch_uri))
        return by_base[base_id]

    for fragment in manifest.fragments:
        for file in fragment.files:
            under(file.base_id).data[file.path] = file.size
        if fragment.deletion is not None:
            path = deletion_path(fragment.id, fragment.deletion)
            under(fragment.deletion.base_id).deletions.add(path.removeprefix(f"{DELETIONS}/"))
    for index in indices_of(manifest):
        under(index.base_id).indices[index.uuid] = tuple(file.path for file in index.files)
    return list(by_base.values())


def moved_base_paths(
    bases: Iterable[BasePath], moves: Mapping[str, str], paths: Mapping[str, str]
) -> tuple[BasePath, ...]:
    """Return the base paths whose location changes, with their new paths.

    Args:
        bases: The base paths of a version.
        moves: Old and new locations of folders; a folder mapped to itself did not move. A base path follows the
            innermost folder that contains it.
        paths: The canonical spelling of each base path.
    """
    changed: list[BasePath] = []
    for base in bases:
        path = paths[base.path]
        around = [old for old in moves if _is_at(path, old)]
        if around:
            # The innermost folder wins: a table inside a moved folder may have been moved itself.
            old = max(around, key=len)
            path = moves[old] + path[len(old) :]
            if path != base.path:
                changed.append(replace(base, path=path))
    return tuple(changed)


def replace_base_paths(manifest: Manifest, changed: Iterable[BasePath]) -> Manifest:
    """Return a manifest with base paths replaced by the changed base paths with the same ids."""
    new = {base.id: base for base in changed}
    return replace(manifest, base_paths=tuple(new.get(base.id, base) for base in manifest.base_paths))


def restored_base_paths(bases: Iterable[BasePath], newer: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """Return the base paths of an older version, at their newer locations where a newer version defines them."""
    # The id alone is not enough: an older version may have given it to another base path.
    relocated = {(base.id, base.name, base.is_dataset_root): base for base in newer}
    return tuple(relocated.get((base.id, base.name, base.is_dataset_root), base) for base in bases)


def _is_at(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
