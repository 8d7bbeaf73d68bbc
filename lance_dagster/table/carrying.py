"""Carry out the plan of a merge: files under the table's root, deletion vectors stored, the operation that says so."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lance_dagster.changes.apply import without_dropped
from lance_dagster.changes.merge import Brought, MergePlan
from lance_dagster.changes.places import data_folder, folder_of, placed_under_root, shared_places
from lance_dagster.changes.sides import Change
from lance_dagster.errors import CorruptFileError
from lance_dagster.format.file_versions import version_of_file
from lance_dagster.format.layout import DATA
from lance_dagster.format.model import DataFile, Flag, Fragment, Manifest
from lance_dagster.format.transaction import Append, Delete, Merge, Operation, Overwrite, Update
from lance_dagster.history.vectors import with_deleted
from lance_dagster.history.versions import State
from lance_dagster.store import copy_file, copy_folder
from lance_dagster.table.parts import Parts

_FEW, _WRITERS = 4, 16


def carried_out(
    parts: Parts, plan: MergePlan, source: State, head: State, *, changes: Iterable[Change]
) -> tuple[Operation, Manifest]:
    """Store what the plan needs; returns the operation to record, and the state that follows the head.

    Args:
        parts: The table.
        plan: What is to be done.
        source: The version that is merged.
        head: The version it is merged into.
        changes: What the source did since the merge base.

    Raises:
        InvalidInputError: A fragment would be left without a file, since all columns it has values of are dropped.
    """
    carrier = _Carrier(parts, source, head)
    finished = carrier.all_finished([*plan.changed.values(), *plan.added])
    changed = dict(zip(plan.changed, finished[: len(plan.changed)], strict=True))
    added = finished[len(plan.changed) :]
    fragments = plan.manifest.fragments
    if plan.removed or changed:
        fragments = fragments.changed(plan.removed, changed)
    fragments = fragments.added(added)
    last = max((fragment.id for fragment in added), default=head.manifest.max_fragment_id)
    manifest = replace(plan.manifest, fragments=fragments, max_fragment_id=last)
    manifest = without_dropped(manifest, head.manifest.fields)
    if added and len(plan.removed) == len(head.manifest.fragments):
        manifest = replace(manifest, file_version=source.manifest.file_version)
    manifest = _open_to_file_versions(manifest, [*changed.values(), *added])
    overwrites = len(plan.removed) == len(head.manifest.fragments) and any(
        isinstance(change.operation, Overwrite) for change in changes
    )
    return _recorded(plan, manifest, changed, added, overwrites=overwrites), manifest


def _open_to_file_versions(manifest: Manifest, brought: Iterable[Fragment]) -> Manifest:
    """Say so where files come that are of another version than those of the table: nobody could read it otherwise."""
    versions = {version_of_file(file) for fragment in brought for file in fragment.files}
    if manifest.file_version == "" or versions <= {manifest.file_version}:
        return manifest
    mixed = int(Flag.MIXED_FILE_VERSIONS)
    return replace(manifest, reader_flags=manifest.reader_flags | mixed, writer_flags=manifest.writer_flags | mixed)


def _recorded(
    plan: MergePlan, manifest: Manifest, changed: Mapping[int, Fragment], added: Sequence[Fragment], *, overwrites: bool
) -> Operation:
    """Return the operation that lets the changes others have in flight follow wherever they still mean the same."""
    if overwrites:
        return Overwrite(fragments=added, fields=manifest.fields, schema_metadata=manifest.schema_metadata)
    if plan.changes_columns:
        return Merge(
            fragments=manifest.fragments,
            fields=manifest.fields,
            schema_metadata=manifest.schema_metadata,
            preserves_nullability=plan.tally.keeps_nulls,
        )
    if not changed and not plan.removed:
        return Append(fragments=added)
    if not added:
        return Delete(updated_fragments=tuple(changed.values()), deleted_fragment_ids=plan.removed)
    return Update(
        removed_fragment_ids=plan.removed, updated_fragments=tuple(changed.values()), new_fragments=tuple(added)
    )


class _Carrier:
    def __init__(self, parts: Parts, source: State, head: State) -> None:
        self._parts, self._source, self._head = parts, source, head
        self._shared = shared_places(source.manifest, head.manifest, parts.uri)

    def all_finished(self, brought: Sequence[Brought]) -> list[Fragment]:
        """Return fragments as the result names them, in the same order."""
        if sum(one.deleted is not None or bool(one.files) for one in brought) <= _FEW:
            return [self.finished(one) for one in brought]
        # Each may be a request or more: one after the other, a thousand fragments would take a minute.
        with ThreadPoolExecutor(_WRITERS) as writers:
            return list(writers.map(self.finished, brought))

    def finished(self, brought: Brought) -> Fragment:
        """Return a fragment as the result names it, its files placed and its deletion vector stored."""
        for file in brought.files:
            self._bring(file)
        carrier = Fragment(id=0, files=brought.files, physical_rows=0)
        files: tuple[DataFile, ...] = ()
        if brought.files:
            files = placed_under_root([carrier], self._head.manifest, self._parts.uri, self._shared)[0].files
        fragment = replace(brought.fragment, files=(*brought.fragment.files, *files))
        if brought.deleted is None:
            return fragment
        return with_deleted(self._parts.versions, self._head, fragment, brought.deleted)

    def _bring(self, file: DataFile) -> None:
        """Copy a data file that another program put into the branch's own folder, with its blobs.

        Files under a base path that the dest has as well stay where they are.
        """
        if file.base_id in self._shared:
            return
        parts = self._parts
        base = folder_of(self._source.manifest, file.base_id, parts.versions.line_uri(self._source.branch))
        if data_folder(base) == f"{parts.uri}/{DATA}":
            return
        store, key = parts.versions.located(data_folder(base), file.path, base.id)
        if not copy_file(store, key, parts.store, f"{DATA}/{file.path}"):
            raise CorruptFileError(f"{store.uri}/{key}", "it is missing")
        # Blobs lie in a folder called like the file; most files have none.
        blobs = file.path.removesuffix(".lance")
        copy_folder(store, key.removesuffix(".lance"), parts.store, f"{DATA}/{blobs}")
