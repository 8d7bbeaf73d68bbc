"""Describe the indices of a version and the rows they cover, and drop indices."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from pyroaring import BitMap

from lance_dagster.edit.write import CommitInfo, retried, submit
from lance_dagster.errors import NotFoundError
from lance_dagster.format.model import Field, IndexMetadata, Manifest
from lance_dagster.format.transaction import CreateIndex
from lance_dagster.history.context import TableContext
from lance_dagster.history.versions import State
from lance_dagster.transactions.index_updates import covered_by_readers, index_type, indices_of


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
    # An index without fields is a system index, which answers no query.
    indices = sorted((pair for pair in covered_by_readers(manifest) if pair[0].fields), key=lambda pair: pair[0].name)
    return tuple(
        _status(name, tuple(segments), fields, rows) for name, segments in groupby(indices, lambda pair: pair[0].name)
    )


def drop_index(context: TableContext, name: str, info: CommitInfo) -> State:
    """Remove an index with all its segments from a branch.

    Raises:
        NotFoundError: The branch has no index of that name.
    """

    def attempt() -> State:
        head = context.head(info.branch)
        # The segments are looked up for each attempt: a concurrent `optimize_indices` replaces them.
        indices = indices_of(head.manifest)
        segments = tuple(index for index in indices if index.name == name)
        if not segments:
            names = ", ".join(sorted({repr(index.name) for index in indices})) or "none"
            raise NotFoundError(f"{head} of {context.uri} has no index {name!r}; it has {names}")
        return submit(context, head, CreateIndex(removed_indices=segments), info.as_properties())

    return retried(attempt)


def _status(
    name: str, covered: tuple[tuple[IndexMetadata, BitMap], ...], fields: Mapping[int, Field], rows: Mapping[int, int]
) -> IndexStatus:
    segments = [index for index, _ in covered]
    covered_ids = {number for _, bitmap in covered for number in bitmap}
    # A bitmap may name fragments that were compacted or deleted since the index was built.
    indexed = sum(rows[number] for number in covered_ids & rows.keys())
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
