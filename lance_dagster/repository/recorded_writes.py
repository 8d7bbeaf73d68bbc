"""Which recorded writes the versions of a table have, and whether `main` has the rows of a write.

A commit with the rows of a recorded write has the mark of the record among its properties. A write that was recorded
after its commit names the commit instead.
"""

from collections.abc import Iterable, Iterator

from lance_dagster.errors import ConflictError
from lance_dagster.format.codec import commit_id, decode_manifest_file
from lance_dagster.format.layout import MAIN
from lance_dagster.format.run_properties import ASSET_KEY
from lance_dagster.format.transaction import Transaction
from lance_dagster.history.context import TableContext
from lance_dagster.history.inventory import newest_expired_copies
from lance_dagster.history.lineage import lineage_of
from lance_dagster.history.versions import Version
from lance_dagster.repository.candidates.writes import WRITE_MARK, RecordedWrite, WriteRequest
from lance_dagster.repository.registry import RepositoryContext


def mark_of(repository: RepositoryContext, uri: str, version: Version) -> str | None:
    """Return the mark of the recorded write that wrote the rows of a version; None if no record exists."""
    mark = version.properties.get(WRITE_MARK)
    # Of the release that kept no record, only a commit with the rows of an output was recorded afterwards.
    if mark is not None or ASSET_KEY not in version.properties:
        return mark
    table_id = repository.registry.id_of(repository.registry.name_at(uri))
    return None if table_id is None else repository.record.mark_of(table_id, version.id)


def writes_of(repository: RepositoryContext, uri: str, versions: Iterable[Version]) -> list[RecordedWrite]:
    """Return the recorded writes that wrote the rows of versions of a table, in the order of the versions.

    Raises:
        ConflictError: The record of a write was collected, so nobody can tell whether its rows are published.
    """
    writes = []
    for version in versions:
        mark = mark_of(repository, uri, version)
        write = None if mark is None else repository.record.write(mark)
        if write is None and WRITE_MARK in version.properties:
            raise ConflictError(
                f"the record of the write in {version} of {uri} was collected, so its rows may have been published, "
                f"discarded or replaced: discard {version.branch}, and start a new run"
            )
        writes += [] if write is None else [write]
    return writes


def is_merged(repository: RepositoryContext, write: RecordedWrite) -> bool:
    """Tell whether somebody merged the rows of an open write into `main` of its table without a publication.

    `main` says by the id of the branch how far it contains the branch. The versions of the branch tell whether the rows
    are among them; of a branch that was deleted since, the copies of its versions. Where some are collected, the rows
    count as merged: to add rows again is worse than to refuse them.
    """
    name, request = repository.registry.name_of(write.table_id), write.request
    context = None if name is None else repository.table(name)
    if context is None or not context.versions.has_versions(MAIN):
        return False
    contained = lineage_of(context.head(MAIN), context.refs).contained.get(request.branch_id, 0)
    if contained <= request.base:
        return False
    remaining = dict(_commits_of(context, request, contained))
    return len(remaining) < contained - request.base or any(
        commit == write.commit_id or (transaction and transaction.properties.get(WRITE_MARK) == write.mark)
        for commit, transaction in remaining.values()
    )


def _commits_of(
    context: TableContext, request: WriteRequest, newest: int
) -> Iterator[tuple[int, tuple[str, Transaction | None]]]:
    """Yield the number, the id and the transaction of the remaining versions of a branch after the base of a write."""
    head = context.find_head(request.branch)
    if head is not None and head.of is not None and head.of.id == request.branch_id:
        for state in context.versions.find_range(request.branch, request.base + 1, newest, request.branch_id):
            yield state.number, (state.id, state.transaction)
        return
    for number, key in newest_expired_copies(context.store, request.branch, request.branch_id).items():
        data = context.store.get(key) if request.base < number <= newest else None
        if data is not None:
            yield number, (commit_id(data), decode_manifest_file(data, f"{context.uri}/{key}")[1])
