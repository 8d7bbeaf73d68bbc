"""Carry out the plan of a merge: copy files under the table's root, store deletion vectors, choose the operation.

Rows that get cells of both sides are the only ones that are written: to a data file of their own, with their row ids.

Files are copied and written before the version is committed. A crash in between leaves files that no version names,
which garbage collection removes; the next attempt copies them again, or gives copies that are in place the present time
so that a collection beside it keeps them, and writes new deletion vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import batch_size, take_column, take_rows
from lance_dagster.datafiles.writing import StagedFiles, write_files
from lance_dagster.edit.write import moved_in, target
from lance_dagster.errors import CorruptFileError
from lance_dagster.format import transaction as ops
from lance_dagster.format.codec import encoded
from lance_dagster.format.layout import DATA, INDICES, branch_root, join
from lance_dagster.format.model import DataFile, Flag, Fragment, Fragments, IndexMetadata, Manifest
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import with_deleted
from lance_dagster.history.versions import State
from lance_dagster.merge.gather_input import in_parallel
from lance_dagster.merge.rules import CombinedUpdates, MergedFragment, MergePlan
from lance_dagster.store import copy_file, copy_folder, is_durable
from lance_dagster.transactions.apply import drop_unused_files
from lance_dagster.transactions.base_paths import (
    base_path_of,
    data_folder,
    root_base_id,
    shared_base_ids,
    with_root_base,
)
from lance_dagster.transactions.claims import Change
from lance_dagster.transactions.index_updates import with_indices
from lance_dagster.transactions.row_lineage import with_new_values

_WRITERS = 16


def materialize(
    context: TableContext, plan: MergePlan, source: State, head: State, *, changes: Iterable[Change]
) -> tuple[ops.Operation, Manifest]:
    """Store the files that the plan needs; return the operation to record and the manifest that follows the head.

    Args:
        context: The table.
        plan: The plan of the merge.
        source: The version that is merged.
        head: The version it is merged into.
        changes: What the source did since the merge base.
    """
    materializer = _Materializer(context, source, head)
    finished = materializer.all_finished([*plan.changed.values(), *plan.added])
    finished += materializer.combined(plan)
    # Fragments are encoded once, for the manifest and for its transaction, which is written twice.
    changed, added = (
        encoded(part, f"a merge into {head}") for part in (finished[: len(plan.changed)], finished[len(plan.changed) :])
    )
    fragments = plan.manifest.fragments
    if plan.removed or changed:
        fragments = fragments.changed(plan.removed, changed)
    fragments = fragments.added(added)
    known_ids = [] if plan.manifest.max_fragment_id is None else [plan.manifest.max_fragment_id]
    max_fragment_id = max([*added.ids, *known_ids], default=None)
    manifest = replace(plan.manifest, fragments=fragments, max_fragment_id=max_fragment_id)
    manifest = with_indices(manifest, [materializer.placed_index(index) for index in plan.indices])
    manifest = drop_unused_files(manifest, head.manifest.fields)
    # No file of the dest is left, so the table takes the file version of the files that replace them.
    if added and len(plan.removed) == len(head.manifest.fragments):
        manifest = replace(manifest, file_version=source.manifest.file_version)
    manifest = _open_to_file_versions(manifest, finished)
    # Other writers treat the table as replaced after an `Overwrite`, so it is recorded only where that is true: the
    # source did overwrite, and no fragment of the dest is left.
    overwrites = len(plan.removed) == len(head.manifest.fragments) and any(
        isinstance(change.operation, ops.Overwrite) for change in changes
    )
    return _recorded(plan, manifest, changed, added, overwrites=overwrites), manifest


def _open_to_file_versions(manifest: Manifest, merged_fragments: Iterable[Fragment]) -> Manifest:
    """Set the flag for mixed file versions where the merge adds some: readers refuse such a table without the flag."""
    versions = {file.version for fragment in merged_fragments for file in fragment.files}
    if manifest.file_version == "" or versions <= {manifest.file_version}:
        return manifest
    mixed = int(Flag.MIXED_FILE_VERSIONS)
    return replace(manifest, reader_flags=manifest.reader_flags | mixed, writer_flags=manifest.writer_flags | mixed)


def _recorded(
    plan: MergePlan, manifest: Manifest, changed: Fragments, added: Fragments, *, overwrites: bool
) -> ops.Operation:
    """Choose the operation to record, so that most commits in flight can be rebased onto the merge."""
    fields, metadata, keeps_nulls = manifest.fields, manifest.schema_metadata, plan.tally.keeps_nulls
    if overwrites:
        return ops.Overwrite(fragments=added, fields=fields, schema_metadata=metadata)
    if plan.tally.schema_changed:
        # An append in flight is rebased over it only if that preserves nullability, so the flag must be true.
        return ops.Merge(
            fragments=manifest.fragments, fields=fields, schema_metadata=metadata, preserves_nullability=keeps_nulls
        )
    # An index in flight lacks rows that came back and values that are new. Writers leave their fragments out of it only
    # after an update that names the fields.
    fields_modified = tuple(sorted(plan.rewritten)) if changed else ()
    if not changed and not plan.removed:
        return ops.Append(fragments=added)
    if not added and not fields_modified:
        return ops.Delete(updated_fragments=changed, deleted_fragment_ids=plan.removed)
    return ops.Update(
        removed_fragment_ids=plan.removed,
        updated_fragments=changed,
        new_fragments=added,
        fields_modified=fields_modified,
        mode=ops.REWRITE_COLUMNS if fields_modified and not added else ops.REWRITE_ROWS,
    )


class _Materializer:
    def __init__(self, context: TableContext, source: State, head: State) -> None:
        self._context, self._source, self._head = context, source, head
        self._shared = shared_base_ids(source.manifest, head.manifest, context.uri)
        self._own: dict[int | None, bool] = {}

    def all_finished(self, merged_fragments: Sequence[MergedFragment]) -> list[Fragment]:
        """Return fragments as the result names them, in the same order."""
        stores = [
            fragment.deleted is not None or any(map(self._is_elsewhere, fragment.files))
            for fragment in merged_fragments
        ]
        # Most fragments that come as a whole only get other numbers: nothing is stored for them.
        stored = iter(in_parallel(self.finished, list(compress(merged_fragments, stores)), self._writers()))
        return [
            next(stored) if wait else self.finished(fragment)
            for fragment, wait in zip(merged_fragments, stores, strict=True)
        ]

    def finished(self, merged_fragment: MergedFragment) -> Fragment:
        """Return a fragment as the result names it, its files placed and its deletion vector stored."""
        # The result must not name files in the branch's own folder: they disappear when the branch is deleted.
        for file in merged_fragment.files:
            if self._is_elsewhere(file):
                self._bring(file)
        # `with_root_base` takes fragments; of this one only the files are used.
        holder = Fragment(id=0, files=merged_fragment.files, physical_rows=0)
        files: tuple[DataFile, ...] = ()
        if merged_fragment.files:
            files = with_root_base([holder], self._head.manifest, self._context.uri, self._shared)[0].files
        fragment = replace(merged_fragment.fragment, files=(*merged_fragment.fragment.files, *files))
        if merged_fragment.deleted is None:
            return fragment
        return with_deleted(self._context.versions, self._head, fragment, merged_fragment.deleted)

    def combined(self, plan: MergePlan) -> list[Fragment]:
        """Write the rows that get cells of both sides, and return their fragments as the result names them."""
        rows, head = plan.combined, self._head
        if not len(rows.dest):
            return []
        schema = head.schema
        place = target(self._context, schema, head)
        # The rows keep the ids and the creation versions that they have on the dest.
        staged = StagedFiles(schema, write_files(place, self._combined_batches(rows, schema)), place.base)
        fragments = moved_in(self._context, head, staged, rows.dest)
        version = head.number + 1
        return [
            with_new_values(replace(fragment, id=number), version)
            for number, fragment in enumerate(fragments, plan.first_combined)
        ]

    def _combined_batches(self, rows: CombinedUpdates, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        of_source, of_dest = (self._context.dataset(state) for state in (self._source, self._head))
        size = batch_size(schema)
        for start in range(0, len(rows.dest), size):
            part = slice(start, start + size)
            source = take_rows(of_source, rows.source[part], rows.columns)
            sides = pa.concat_tables([take_rows(of_dest, rows.dest[part], rows.columns), source])
            place = np.arange(source.num_rows)
            # The dest's copies come first, so the source's copy of a row is as many rows further on.
            cells = rows.from_source[part] * source.num_rows + place[:, np.newaxis]
            columns = [take_column(sides.column(name), cells[:, at]) for at, name in enumerate(rows.columns)]
            yield from pa.table(columns, schema=sides.schema).select(schema.names).to_batches()

    def placed_index(self, index: IndexMetadata) -> IndexMetadata:
        """Return an index of the source as the result names it, its files in a place that the result has."""
        context, head = self._context, self._head
        if index.base_id in self._shared:
            return replace(index, base_id=self._shared[index.base_id])
        source_uri, own_uri = (context.versions.branch_uri(branch) for branch in (self._source.branch, head.branch))
        base = base_path_of(self._source.manifest, index.base_id, source_uri)
        if base.path == own_uri:
            return replace(index, base_id=None)
        # A branch finds the table's own folder through a base path. Any other folder may go before the result does.
        if base.path == context.uri:
            return replace(index, base_id=root_base_id(head.manifest, context.uri))
        store, folder = context.versions.locate(base.path, join(INDICES if base.is_dataset_root else "", index.uuid))
        key = join(branch_root(head.branch), INDICES, index.uuid)
        # An index that has everything in its metadata, or is not trained yet, has no files.
        if not copy_folder(store, folder, context.store, key) and index.files:
            raise CorruptFileError(f"{store.uri}/{folder}", "it is missing")
        return replace(index, base_id=None)

    def _writers(self) -> int:
        """Return how many threads write files."""
        # Threads help where a write waits: for an object store, or for a disk to sync. A file that is not synced takes
        # less time than handing the interpreter's lock over, and threads make a thousand of them take three times as
        # long.
        waits = "://" in self._context.uri or is_durable(self._context.storage_options)
        return _WRITERS if waits else 1

    def _is_elsewhere(self, file: DataFile) -> bool:
        """Tell whether a data file has to be copied: the dest has neither its folder nor the base path it is under."""
        if file.base_id in self._shared:
            return False
        if file.base_id not in self._own:
            base_id, here = file.base_id, f"{self._context.uri}/{DATA}"
            own_folder = self._context.versions.branch_uri(self._source.branch)
            self._own[base_id] = data_folder(base_path_of(self._source.manifest, base_id, own_folder)) == here
        return not self._own[file.base_id]

    def _bring(self, file: DataFile) -> None:
        """Copy a data file that another program put into the branch's own folder, with its blobs."""
        context = self._context
        base = base_path_of(self._source.manifest, file.base_id, context.versions.branch_uri(self._source.branch))
        store, key = context.versions.locate(data_folder(base), file.path, base.id)
        if not copy_file(store, key, context.store, f"{DATA}/{file.path}"):
            raise CorruptFileError(f"{store.uri}/{key}", "it is missing")
        # Blobs lie in a folder called like the file; most files have none.
        copy_folder(store, key.removesuffix(".lance"), context.store, f"{DATA}/{file.path.removesuffix('.lance')}")
