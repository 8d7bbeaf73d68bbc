"""Describe the indices of a version and the rows they cover, and drop indices."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from lance_dagster.edit.write import CommitInfo, retried, submit
from lance_dagster.errors import NotFoundError
from lance_dagster.format.model import Field, IndexMetadata, Manifest
from lance_dagster.format.transaction import CreateIndex
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.transactions.index_updates import covered_fragments, index_type, indices_of


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """An index and its coverage.

    Queries are correct for every coverage, because Lance scans the rows an index does not cover. `kind` is the name in
    the format, such as "BTree"; `columns` are paths, "a.b" for a field in a struct; deleted rows are not counted.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    uuids: tuple[str, ...]
    indexed_rows: int
    unindexed_rows: int

    @property
    def needs_work(self) -> bool:
        """Whether the index misses rows; pylance's `optimize_indices` adds them."""
        return self.unindexed_rows > 0


def index_statuses(manifest: Manifest) -> tuple[IndexStatus, ...]:
    """Return the status of each index, sorted by name; the segments of one index are one entry."""
    fields = {field.id: field for field in manifest.fields}
    rows = {fragment.id: fragment.rows for fragment in manifest.fragments}
    # An index without fields is a system index, such as the fragment-reuse index, which answers no query.
    indices = sorted((index for index in indices_of(manifest) if index.fields), key=lambda index: index.name)
    return tuple(
        _status(name, tuple(segments), fields, rows) for name, segments in groupby(indices, lambda index: index.name)
    )


def drop_index(context: TableContext, name: str, info: CommitInfo) -> State:
    """Remove an index with all its segments from a branch.

    Raises:
        NotFoundError: The branch has no index of that name.
    """

    def attempt() -> State:
        head = context.head(info.branch)
        # The segments are looked up for each attempt: a concurrent `optimize_indices` replaces them.
        found = indices_of(head.manifest)
        gone = tuple(index for index in found if index.name == name)
        if not gone:
            known = ", ".join(sorted({repr(index.name) for index in found})) or "none"
            raise NotFoundError(f"{head} of {context.uri} has no index {name!r}; it has {known}")
        return submit(context, head, CreateIndex(removed_indices=gone), info.as_properties())

    return retried(attempt)


def _status(
    name: str, segments: tuple[IndexMetadata, ...], fields: Mapping[int, Field], rows: Mapping[int, int]
) -> IndexStatus:
    known: set[int] = set()
    for index in segments:
        bitmap = covered_fragments(index)
        # An old writer may omit the fragment bitmap. Lance then treats the index as covering no fragment.
        known.update(bitmap or ())
    # A bitmap may name fragments that were compacted or deleted since the index was built.
    indexed = sum(rows[number] for number in known & rows.keys())
    return IndexStatus(
        name=name,
        kind=index_type(segments),
        columns=tuple(_path(number, fields) for number in segments[0].fields),
        uuids=tuple(index.uuid for index in segments),
        indexed_rows=indexed,
        unindexed_rows=sum(rows.values()) - indexed,
    )


def _path(number: int, fields: Mapping[int, Field]) -> str:
    names: list[str] = []
    while number in fields:
        names.append(fields[number].name)
        number = fields[number].parent_id
    return ".".join(reversed(names)) or "a field that is gone"
