"""Where the files of a manifest lie, and how that changes when a branch is forked or merged.

A branch is a shallow clone in a folder of its own (branch and tag specification): what it inherits it names through a
base path. Data files that this package writes for a branch lie under the table's root from the start, named through
the base path "root", so that `main` can take them over by dropping the base id.

Base ids start at 1: pylance takes 0 for "not given" when it writes to a named base.
"""

from collections.abc import Sequence
from dataclasses import replace

from lance_dagster.errors import CorruptFileError, InvalidInputError
from lance_dagster.format.codec import rebase_index_section
from lance_dagster.format.layout import DATA, join
from lance_dagster.format.model import BasePath, DataFile, Fragment, Manifest

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
    section = parent.index_section
    return replace(
        parent,
        branch=branch,
        base_paths=tuple(bases),
        fragments=tuple(_rebased(fragment, own.id) for fragment in parent.fragments),
        index_section=None if section is None else rebase_index_section(section, own.id),
    )


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


def placed_under_root(fragments: Sequence[Fragment], manifest: Manifest, root_uri: str) -> tuple[Fragment, ...]:
    """Return fragments whose data files lie in the root's `data/`, named as `manifest` has to name them.

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
                f"branch {manifest.branch!r} was forked by a program that calls the table something else than "
                f"{root_uri}; fork it again from there"
            )
    return tuple(
        replace(fragment, files=tuple(replace(file, base_id=base_id) for file in fragment.files))
        for fragment in fragments
    )


def folder_of(manifest: Manifest, base_id: int | None, line_uri: str) -> BasePath:
    """Return the base a file lies under; a file without base id lies under the branch's own folder.

    Raises:
        CorruptFileError: The base id is not in the manifest.
    """
    if base_id is None:
        return BasePath(id=0, path=line_uri, is_dataset_root=True)
    for base in manifest.base_paths:
        if base.id == base_id:
            return base
    raise CorruptFileError(f"version {manifest.version} of {line_uri}", f"it names no base path {base_id}")


def data_uri(manifest: Manifest, file: DataFile, line_uri: str) -> str:
    """Return where a data file lies (storage layout specification, two-step path resolution)."""
    base = folder_of(manifest, file.base_id, line_uri)
    return join(base.path, DATA if base.is_dataset_root else "", file.path)
