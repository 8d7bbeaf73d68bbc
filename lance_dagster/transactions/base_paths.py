"""Where the files of a manifest lie, and how that changes when a branch is forked or merged.

A branch is a shallow clone in a folder of its own (branch and tag specification): what it inherits it names through a
base path. Data files that this package writes for a branch lie under the table's root from the start, named through
the base path "root", so that `main` can take them over by dropping the base id.

Base ids start at 1: pylance takes 0 for "not given" when it writes to a named base.
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
    """Return the first manifest of a branch: the parent's state, with every inherited file named through a base.

    Args:
        parent: The version forked from.
        branch: The new branch's name.
        root_uri: The table's canonical URI.
        parent_uri: The URI of the folder the parent's own files lie in; the same as `root_uri` for `main`.
    """
    bases = list(parent.base_paths)
    root = _base_for(bases, root_uri, ROOT_BASE)
    own = root if parent_uri == root_uri else _base_for(bases, parent_uri, parent.branch or ROOT_BASE)
    return _named_through(replace(parent, branch=branch, base_paths=tuple(bases)), own.id, parent_uri)


def shallow_clone(source: Manifest, *, source_uri: str, name: str) -> Manifest:
    """Return the first manifest of a table of its own that names the files of another one through a base.

    Args:
        source: The version that is cloned.
        source_uri: The URI of the folder the version's own files lie in.
        name: What the new base path is called, unless it is taken.
    """
    # The root of another table is not this one's.
    bases = [replace(base, name=f"{name}-root") if base.name == ROOT_BASE else base for base in source.base_paths]
    taken = {base.name for base in bases}
    names = (name if count == 1 else f"{name}-{count}" for count in range(1, len(bases) + 2))
    own = _base_for(bases, source_uri, next(free for free in names if free not in taken))
    return _named_through(replace(_as_new_table(source), base_paths=tuple(bases)), own.id, source_uri)


def deep_clone(source: Manifest) -> Manifest:
    """Return the first manifest of a table of its own that has all its files in its own folder."""
    indices = [replace(index, base_id=None) for index in indices_of(source)]
    return replace(
        _as_new_table(source),
        base_paths=(),
        fragments=Fragments(_in_own_folder(fragment) for fragment in source.fragments),
        index_section=encode_indices(indices),
    )


def _as_new_table(source: Manifest) -> Manifest:
    # What was merged into the source says nothing about the branches of another table, main included.
    return replace(source, branch=None, table_metadata=without_merge_records(source.table_metadata))


def _named_through(manifest: Manifest, base_id: int, uri: str) -> Manifest:
    """Name every file that has no base through one."""
    section = manifest.index_section
    if section is not None:
        section = rebase_index_section(section, base_id, f"version {manifest.version} of {uri}")
    return replace(
        manifest,
        fragments=Fragments(_rebased(fragment, base_id) for fragment in manifest.fragments),
        index_section=section,
    )


def add_base_paths(known: Sequence[BasePath], new: Sequence[BasePath]) -> tuple[BasePath, ...]:
    """Return base paths and more of them; those with the id 0 get the next one.

    Raises:
        InvalidInputError: An id, a name or a path is there already.
    """
    bases = list(known)
    for base in new:
        number = base.id or max((other.id for other in bases), default=0) + 1
        for other in bases:
            if other.id == number or other.path == base.path or (other.name is not None and other.name == base.name):
                raise InvalidInputError(
                    f"there is a base path {other.id} named {other.name!r} at {other.path} already; "
                    f"another one needs another id, name and path than {number}, {base.name!r}, {base.path}"
                )
        bases.append(replace(base, id=number))
    return tuple(bases)


def _base_for(bases: list[BasePath], uri: str, name: str) -> BasePath:
    for base in bases:
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
    """Return the base path of a name.

    Raises:
        InvalidInputError: There is none; says which there are.
    """
    for base in manifest.base_paths:
        if base.name == name:
            return base
    known = ", ".join(repr(base.name) for base in manifest.base_paths if base.name) or "none"
    raise InvalidInputError(f"{branch_uri} has no base path named {name!r}; it has {known}; add_base adds one")


def with_base(fragments: Iterable[Fragment], base: BasePath) -> tuple[Fragment, ...]:
    """Return fragments whose data files lie under a base path, named through it."""
    return tuple(
        replace(fragment, files=tuple(replace(file, base_id=base.id) for file in fragment.files))
        for fragment in fragments
    )


def shared_base_ids(source: Manifest, dest: Manifest, root_uri: str) -> dict[int | None, int]:
    """Return which base ids of a version mean a place outside of the table that another version names as well.

    Files there can be taken over as they are; the other version knows the place under the id given here.
    """
    known = {(base.path, base.is_dataset_root): base.id for base in dest.base_paths}
    outside = (base for base in source.base_paths if not _is_at(base.path, root_uri))
    return {
        base.id: known[base.path, base.is_dataset_root]
        for base in outside
        if (base.path, base.is_dataset_root) in known
    }


def with_root_base(
    fragments: Sequence[Fragment], manifest: Manifest, root_uri: str, kept: Mapping[int | None, int] | None = None
) -> tuple[Fragment, ...]:
    """Return fragments whose data files lie in the root's `data/`, named as `manifest` has to name them.

    Args:
        fragments: What is to be named.
        manifest: Of the branch that shall name it.
        root_uri: The table's canonical URI.
        kept: Base ids of files that lie elsewhere, and the ids `manifest` has for the same places.

    Raises:
        InvalidInputError: The manifest is of a branch that knows the root under another spelling.
    """
    base_id = None
    if manifest.branch is not None:
        base_id = next(
            (base.id for base in manifest.base_paths if base.path == root_uri and base.is_dataset_root), None
        )
        if base_id is None:
            # The same place in other words would do for readers, but not for pylance's clean-up.
            raise InvalidInputError(
                f"branch {manifest.branch!r} looks for the table's files elsewhere than {root_uri}: the table was "
                "moved, or the branch was forked under another spelling of that",
                remedy=Remedy("{} puts it right", Call("maintenance.relocate")),
            )
    known = kept or {}
    return tuple(
        replace(
            fragment,
            files=tuple(replace(file, base_id=known.get(file.base_id, base_id)) for file in fragment.files),
        )
        for fragment in fragments
    )


def base_path_of(manifest: Manifest, base_id: int | None, branch_uri: str) -> BasePath:
    """Return the base a file lies under; a file without base id lies under the branch's own folder.

    Raises:
        CorruptFileError: The base id is not in the manifest.
    """
    if base_id is None:
        return BasePath(id=0, path=branch_uri, is_dataset_root=True)
    for base in manifest.base_paths:
        if base.id == base_id:
            return base
    path = join(branch_uri, VERSIONS, manifest_name(manifest.version))
    raise CorruptFileError(path, f"it names a file under a base path {base_id} that it does not have")


def data_folder(base: BasePath) -> str:
    """Return where data files of a base path lie (storage layout specification, two-step path resolution)."""
    return join(base.path, DATA) if base.is_dataset_root else base.path


@dataclass(slots=True)
class FileReferences:
    """The files a version names in one place: data files with their sizes, 0 where unknown; the rest by name.

    Indices are given by uuid, each with the paths of its files below its folder, where they are recorded.
    """

    base: BasePath
    data: dict[str, int] = field(default_factory=dict)
    deletions: set[str] = field(default_factory=set)
    indices: dict[str, tuple[str, ...]] = field(default_factory=dict)


def file_references(manifest: Manifest, branch_uri: str) -> list[FileReferences]:
    """Return every file a version names, by place.

    Raises:
        CorruptFileError: A base id is not in the manifest.
    """
    places: dict[int | None, FileReferences] = {}

    def place(base_id: int | None) -> FileReferences:
        if base_id not in places:
            places[base_id] = FileReferences(base_path_of(manifest, base_id, branch_uri))
        return places[base_id]

    for fragment in manifest.fragments:
        for file in fragment.files:
            place(file.base_id).data[file.path] = file.size
        if fragment.deletion is not None:
            path = deletion_path(fragment.id, fragment.deletion)
            place(fragment.deletion.base_id).deletions.add(path.removeprefix(f"{DELETIONS}/"))
    for index in indices_of(manifest):
        place(index.base_id).indices[index.uuid] = tuple(file.path for file in index.files)
    return list(places.values())


def moved_base_paths(
    bases: Iterable[BasePath], moves: Mapping[str, str], paths: Mapping[str, str]
) -> tuple[BasePath, ...]:
    """Return the base paths that have to be written differently, as they have to be.

    Args:
        bases: The base paths of a version.
        moves: Folders that are elsewhere by now, and where; a folder mapped to itself is where it was. A base path
            follows the innermost of them it lies in.
        paths: The canonical spelling of each base path.
    """
    changed: list[BasePath] = []
    for base in bases:
        path = paths[base.path]
        around = [old for old in moves if _is_at(path, old)]
        if around:
            old = max(around, key=len)
            path = moves[old] + path[len(old) :]
            if path != base.path:
                changed.append(replace(base, path=path))
    return tuple(changed)


def replace_base_paths(manifest: Manifest, changed: Iterable[BasePath]) -> Manifest:
    """Return a manifest with base paths in the place of those with the same ids."""
    new = {base.id: base for base in changed}
    return replace(manifest, base_paths=tuple(new.get(base.id, base) for base in manifest.base_paths))


def restored_base_paths(bases: Iterable[BasePath], newer: Iterable[BasePath]) -> tuple[BasePath, ...]:
    """Return the base paths of an older version, those that a newer one still has at the places it knows."""
    known = {(base.id, base.name, base.is_dataset_root): base for base in newer}
    return tuple(known.get((base.id, base.name, base.is_dataset_root), base) for base in bases)


def _is_at(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
