"""Merge one branch into another: gather what both sides did since their merge base, commit the plan.

The rules are in `changes.merge`; here is what they need from the store.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lance_dagster.changes.apply import with_flags
from lance_dagster.changes.claims import Claim, claims_of, encode_claims
from lance_dagster.changes.merge import MergePlan, plan_merge
from lance_dagster.changes.places import data_folder, folder_of, placed_under_root, shared_places
from lance_dagster.changes.sides import Change, Conflict, Side
from lance_dagster.datafiles import count_in_fragments
from lance_dagster.errors import CorruptFileError, MergeConflictError
from lance_dagster.format.layout import DATA, MAIN
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import (
    CLAIMS,
    MERGE,
    MERGED_BRANCH,
    MERGED_PREFIX,
    MESSAGE,
    Append,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.history.commit import Proposal, commit, next_manifest
from lance_dagster.history.lineage import (
    Lineage,
    Stretch,
    changes_since,
    fork_point,
    lineage_of,
    merge_base,
    merged_as,
    new_records,
)
from lance_dagster.history.vectors import read_deletion, store_deletion
from lance_dagster.history.versions import State
from lance_dagster.store import copy_file, copy_folder
from lance_dagster.table.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePreview:
    """What a merge would do, without doing it. With conflicts it would do nothing."""

    source: str
    dest: str
    conflicts: tuple[Conflict, ...]
    rows_added: int = 0
    rows_removed: int = 0


def merge(parts: Parts, source: State, into: str, *, message: str | None, properties: Mapping[str, str]) -> State:
    """Merge a version into a branch; returns the version that has it, which is not new when it was merged before.

    Raises:
        MergeConflictError: With every reason; nothing was written.
    """
    ours = lineage_of(source, parts.refs)
    transaction_id = str(uuid.uuid4())
    parts.head(into)

    def propose(head: State) -> Proposal | State:
        theirs = lineage_of(head, parts.refs)
        merged = merged_as(ours, theirs, parts.versions)
        if merged is not None:
            return merged
        plan, claims = _plan(parts, ours, theirs)
        if not isinstance(plan, MergePlan):
            raise MergeConflictError(f"cannot merge {source} into {head} of {parts.uri}; nothing was written:", plan)
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=_realised(parts, plan, source, head),
            properties={
                **properties,
                MESSAGE: message or f"merge {source} into {into}",
                MERGE: str(source),
                MERGED_BRANCH: ours.id,
                CLAIMS: encode_claims(claims),
            },
        )
        manifest = next_manifest(parts.versions, head, transaction)
        metadata = _live_records(parts, {**plan.table_metadata, **new_records(ours, theirs)})
        return Proposal(transaction, with_flags(replace(manifest, table_metadata=metadata, config=dict(plan.config))))

    return commit(parts.versions, into, propose)


def preview(parts: Parts, source: State, into: str) -> MergePreview:
    """Say what merging a version into a branch would do now."""
    head = parts.head(into)
    ours, theirs = lineage_of(source, parts.refs), lineage_of(head, parts.refs)
    if merged_as(ours, theirs, parts.versions) is not None:
        return MergePreview(source=str(source), dest=str(head), conflicts=())
    plan, _ = _plan(parts, ours, theirs)
    if not isinstance(plan, MergePlan):
        return MergePreview(source=str(source), dest=str(head), conflicts=plan)
    operation = plan.operation
    gone = head.manifest.rows if isinstance(operation, Overwrite) else 0
    if isinstance(operation, Update):
        updated = {fragment.id: fragment for fragment in operation.updated_fragments}
        gone = head.manifest.rows - head.manifest.fragments.changed(operation.removed_fragment_ids, updated).rows
    added = sum(fragment.rows for fragment in _added(operation))
    return MergePreview(source=str(source), dest=str(head), conflicts=(), rows_added=added, rows_removed=gone)


def find_merged(parts: Parts, source: State, into: str) -> State | None:
    """Return the version of `into` that contains everything `source` has, or None when it has something new."""
    ours, theirs = lineage_of(source, parts.refs), lineage_of(parts.head(into), parts.refs)
    return merged_as(ours, theirs, parts.versions)


def _plan(parts: Parts, source: Lineage, dest: Lineage) -> tuple[MergePlan | tuple[Conflict, ...], list[Claim]]:
    """Plan a merge into one particular head; returns what the source claims beside it."""
    base = merge_base(source, dest, parts.refs, parts.versions).manifest
    # Rows that are older than the source's own branches have smaller row ids than this.
    forked = fork_point(source, dest, parts.versions).manifest
    ours, theirs = changes_since(source, dest, parts.versions), changes_since(dest, source, parts.versions)
    plan = plan_merge(
        replace(base, next_row_id=forked.next_row_id),
        _side(parts, source.state, ours),
        _side(parts, dest.state, theirs),
    )
    return plan, _all_claims(ours.changes)


def _side(parts: Parts, state: State, stretch: Stretch) -> Side:
    def rows_matching(fragment_ids: Iterable[int], predicate: str) -> int:
        return count_in_fragments(parts.dataset(state), fragment_ids, predicate)

    return Side(
        name=str(state),
        manifest=state.manifest,
        changes=stretch.changes,
        fragments=stretch.fragments,
        rows_matching=rows_matching,
    )


def _all_claims(changes: Iterable[Change]) -> list[Claim]:
    return list(
        dict.fromkeys(
            claim
            for change in changes
            if change.transaction is not None
            for claim in claims_of(change.transaction.properties) or change.claims
        )
    )


def _live_records(parts: Parts, metadata: Mapping[str, str]) -> dict[str, str]:
    """Drop the records of merges whose branch is gone: nobody can merge it again."""
    live = {f"{MERGED_PREFIX}{name}" for name in (MAIN, *(branch.id for branch in parts.refs.branches().values()))}
    return {key: value for key, value in metadata.items() if not key.startswith(MERGED_PREFIX) or key in live}


def _realised(parts: Parts, plan: MergePlan, source: State, head: State) -> Append | Update | Overwrite:
    """Put every file the plan needs under the dest's root, and return the operation that names them there."""
    for carried in plan.deletions:
        data = read_deletion(parts.versions, source, carried.source)
        store_deletion(parts.versions, head.branch, carried.dest, data)
    operation = plan.operation
    shared = shared_places(source.manifest, head.manifest, parts.uri)
    for fragment in _added(operation):
        _bring_files(parts, fragment, source, shared)
    placed = placed_under_root(_added(operation), head.manifest, parts.uri, shared)
    if isinstance(operation, Update):
        return replace(operation, new_fragments=placed)
    return replace(operation, fragments=placed)


def _added(operation: Append | Update | Overwrite) -> Sequence[Fragment]:
    return operation.new_fragments if isinstance(operation, Update) else operation.fragments


def _bring_files(parts: Parts, fragment: Fragment, source: State, shared: Mapping[int | None, int]) -> None:
    """Copy data files that another program put into the branch's own folder, with their blobs.

    Files under a base path that the dest has as well stay where they are.
    """
    for file in fragment.files:
        if file.base_id in shared:
            continue
        base = folder_of(source.manifest, file.base_id, parts.versions.line_uri(source.branch))
        if data_folder(base) == f"{parts.uri}/{DATA}":
            continue
        store, key = parts.versions.located(data_folder(base), file.path, base.id)
        if not copy_file(store, key, parts.store, f"{DATA}/{file.path}"):
            raise CorruptFileError(f"{store.uri}/{key}", "it is missing")
        # Blobs lie in a folder called like the file; most files have none.
        blobs = file.path.removesuffix(".lance")
        copy_folder(store, key.removesuffix(".lance"), parts.store, f"{DATA}/{blobs}")
