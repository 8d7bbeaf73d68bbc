"""Compact a branch: rewrite neighbouring small fragments, and fragments with many deleted rows, to larger ones.

Each fragment costs readers at least one opened file, and deleted rows are read only to be skipped. Adjacent fragments
are rewritten as one group, so rows of a group keep their order. Fragments that were written for different partitions
are not in one group, since a partition is searched, replaced and deleted by its files; those of one partition need not
be adjacent. A group never mixes fragments that different indices
cover, because an index covers a fragment as a whole or not at all; nor fragments of different base paths, because the
choice of a base path is the user's.

Rows keep their row ids and the versions at which they were created and updated. A manifest lists fragments in the order
of their ids, so rewritten rows move behind all other rows.

The groups of a plan are independent of each other. `CompactionPlan` passes them to other processes, which write the
files, and one commit adds the files of all groups.

Indices hold row addresses even on tables with stable row ids, and only pylance can rewrite an index. pylance therefore
compacts tables with indices or blobs. On a branch that inherited an index pylance would break it: the rewritten index
keeps the base path of the parent, while its files are in the branch folder. There this package moves the rows itself,
and the index no longer covers the new fragments, which queries then scan.
"""

import reprlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypedDict

from pyroaring import BitMap

from lance_dagster.datafiles import compact_with_pylance, has_narrow_dictionaries, scan_fragments
from lance_dagster.datafiles.writing import StagedFile, StagedFiles, write_files
from lance_dagster.edit.compaction_plan import (
    CompactionGroup,
    CompactionPlan,
    Group,
    plan_compaction,
    scope_of_fragment,
)
from lance_dagster.edit.write import CommitInfo, fragments_of, scoped, target
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.codec import decode_row_runs, decode_version_runs, encode_row_runs, encode_version_runs
from lance_dagster.format.model import LEGACY_BLOB, Fragment, IndexMetadata
from lance_dagster.format.row_runs import RowRuns, VersionRuns
from lance_dagster.format.schema import legacy_blob
from lance_dagster.format.transaction import (
    COMMIT_MESSAGE,
    Operation,
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    Transaction,
)
from lance_dagster.format.validation import whole_number
from lance_dagster.gc.collect import Progress
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.store.retries import is_retryable_conflict, repeated
from lance_dagster.transactions.fragment_reuse import defers_indices
from lance_dagster.transactions.index_updates import indices_of

_ATTEMPTS = 5


class CompactionGoal(TypedDict, total=False):
    """The goal of a compaction: the arguments of `LanceTable.maintenance.compact`."""

    target_rows: int
    deleted_share: float
    mix_partitions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The targets of a compaction: rows per fragment, and the largest accepted share of deleted rows.

    `mix_partitions` allows rows of different partitions in one fragment.
    """

    target_rows: int = 1024 * 1024
    deleted_share: float = 0.1
    mix_partitions: bool = False

    def __post_init__(self) -> None:
        """Validate the targets.

        Raises:
            InvalidInputError: `target_rows` is below 1, or `deleted_share` is not a number from 0 to 1.
        """
        whole_number("target_rows", self.target_rows, 1)
        if not _is_share(self.deleted_share):
            raise InvalidInputError(
                f"deleted_share has to be a number between 0 and 1, not {reprlib.repr(self.deleted_share)}"
            )


def compact(context: TableContext, goal: Goal, info: CommitInfo, progress: Progress | None = None) -> State:
    """Compact a branch by one commit after one that reserves fragment ids; return the head when nothing needs it.

    Raises:
        InvalidInputError: Only pylance can move the rows, and it would break an index the branch inherited, or blobs.
        CommitConflictError: Concurrent commits changed the same fragments at each attempt.
    """

    # Few attempts, unlike the other edits: each one rewrites all data of its groups.
    def attempt() -> State:
        head = context.head(info.branch)
        if not _can_move_rows(head):
            return _by_pylance(context, head, goal)
        groups = _planned(context, head, goal)
        if not groups:
            return head
        staged_files = []
        for group in groups:
            batches = scan_fragments(context.dataset(head, group.fragments), group.fragments)
            staged_files.append(write_files(group.target, batches))
            if progress is not None:
                progress(len(staged_files), len(groups))
        return _commit_groups(context, head, groups, staged_files, info=info)

    return repeated(attempt, is_retryable_conflict, times=_ATTEMPTS)


def plan_of(context: TableContext, branch: str, goal: Goal) -> CompactionPlan:
    """Return the plan of a compaction of the head of a branch."""
    head = context.head(branch)
    movable = _can_move_rows(head)
    groups = _planned(context, head, goal) if movable else ()
    return CompactionPlan(version=context.versions.describe(head), groups=groups, only_pylance=not movable)


def commit_plan(
    context: TableContext, plan: CompactionPlan, staged_files: Sequence[Sequence[StagedFile]], info: CommitInfo
) -> State:
    """Commit the files that were written for the groups of a plan, in their order.

    Raises:
        InvalidInputError: A group has no files, or the files have not as many rows as the group.
        CommitConflictError: Another commit since the version changed one of the fragments.
    """
    if not plan.groups:
        return context.head(info.branch)
    rows = [sum(file.rows for file in files) for files in staged_files]
    if rows != [group.rows for group in plan.groups]:
        raise InvalidInputError(
            f"the files have {rows} rows and the groups of the plan {[group.rows for group in plan.groups]}; give the "
            "files of each group, in the order of the groups"
        )
    return _commit_groups(context, context.at(plan.version, fresh=True), plan.groups, staged_files, info=info)


def _is_share(share: object) -> bool:
    # The numbers of NumPy are `Real` too; so is True, which would mean that no fragment has too many deleted rows.
    return type(share) is not bool and isinstance(share, Real) and 0 <= float(share) <= 1


def _can_move_rows(head: State) -> bool:
    """Return whether this package can move the rows: there are no blobs, and every index is inherited.

    Rows with narrow dictionaries are moved here even if there is an index, which then does not cover the new fragments.
    """
    manifest = head.manifest
    # pylance 14 would put more values into one file than such a dictionary numbers, and nobody could read the file.
    return not manifest.holds_blobs and (
        has_narrow_dictionaries(head.schema) or all(_inherited(index) for index in indices_of(manifest))
    )


def _inherited(index: IndexMetadata) -> bool:
    # The files of such an index lie under another root: on a branch, and on `main` of a shallow clone. pylance would
    # look for them under this one once it has moved the rows.
    return index.base_id is not None


def _by_pylance(context: TableContext, head: State, goal: Goal) -> State:
    _refuse_legacy_blobs(context, head)
    inherited = [index.name for index in indices_of(head.manifest) if _inherited(index)]
    if inherited:
        what = "blobs" if head.manifest.holds_blobs else "an index of its own"
        raise InvalidInputError(
            f"cannot compact branch {head.branch!r} of {context.uri}: it has {what}, which only pylance can move, and "
            f"the index {inherited[0]!r}, which it inherited and pylance would break; drop the index, or compact the "
            "branch or table that made it"
        )
    if has_narrow_dictionaries(head.schema):
        raise InvalidInputError(
            f"cannot compact branch {head.branch!r} of {context.uri}: it has blobs, which only pylance can move, and a "
            "dictionary with indices of less than 32 bits, in which pylance loses count of the values; use the type of "
            "the values in a column of its own"
        )
    # After a compaction that left the indices as they were, pylance would break them if it stored them anew now.
    defer = defers_indices(indices_of(head.manifest))
    compact_with_pylance(context.dataset(head), goal.target_rows, goal.deleted_share, defer_indices=defer)
    return context.head(head.branch)


def _refuse_legacy_blobs(context: TableContext, head: State) -> None:
    # pylance would change the encoding of the rows that it moves and of the column, but not of the other rows.
    column = legacy_blob(head.manifest.fields, head.manifest.file_version)
    if column is not None:
        raise InvalidInputError(
            f"cannot compact branch {head.branch!r} of {context.uri}: {column!r} holds blobs marked {LEGACY_BLOB}, in "
            "files of version 2.2 or newer, where pylance could not read other blobs beside those that it moved; make "
            f"a new table with lance.blob_field({column!r}), and give it the rows that "
            '`table.to_lance().to_table(blob_handling="all_binary")` returns'
        )


def _planned(context: TableContext, head: State, goal: Goal) -> tuple[CompactionGroup, ...]:
    groups = plan_compaction(head.manifest, goal.target_rows, goal.deleted_share, mix_partitions=goal.mix_partitions)
    return tuple(_group(context, head, group, goal) for group in groups)


def _group(context: TableContext, head: State, group: Group, goal: Goal) -> CompactionGroup:
    rows = sum(fragment.rows for fragment in group)
    # Rows are divided evenly, so no file is below the target: a small last file would be compacted again next time.
    most = -(-rows // max(1, rows // goal.target_rows))
    # By rows alone: the plan has divided the fragments by size already, and a file that is closed early leaves a small
    # last file.
    place = target(context, head.schema, head, _base_of(context, head, group))
    place = replace(place, max_rows=max(1, most), max_bytes=None)
    return CompactionGroup(fragments=tuple(fragment.id for fragment in group), target=place, rows=rows)


def _commit_groups(
    context: TableContext,
    head: State,
    groups: Sequence[CompactionGroup],
    files: Sequence[Sequence[StagedFile]],
    *,
    info: CommitInfo,
) -> State:
    fragments_by_group = [tuple(_fragment_of(head, number) for number in group.fragments) for group in groups]
    # Dictionaries may need as many files as there were. Without this rule each compaction would rewrite them again.
    useful = [
        (fragments, group, new_files)
        for fragments, group, new_files in zip(fragments_by_group, groups, files, strict=True)
        if len(new_files) < len(fragments) or any(fragment.deletion is not None for fragment in fragments)
    ]
    if not useful:
        return head
    old = [fragments for fragments, _, _ in useful]
    new_fragments = [
        _described(context, head, fragments, StagedFiles(head.schema, tuple(staged), group.target.base))
        for fragments, group, staged in useful
    ]
    # A Rewrite operation names its new fragments by id. As in pylance, a separate commit reserves the ids first, so
    # that a concurrent append is not assigned the same ids.
    count = sum(len(new) for new in new_fragments)
    reserved = _commit(context, head, ReserveFragments(count=count), {})
    # A commit between `head` and `reserved` may have used ids, so they are counted back from the reserving version.
    first = (reserved.manifest.max_fragment_id or 0) - count + 1
    numbered = []
    for new in new_fragments:
        numbered.append(tuple(replace(fragment, id=first + place) for place, fragment in enumerate(new)))
        first += len(new)
    pairs = zip(old, numbered, strict=True)
    # The transaction still reads `head`: deletions committed since then must conflict, or the rewrite would undo them.
    rewrite = Rewrite(groups=tuple(RewriteGroup(old=replaced, new=replacing) for replaced, replacing in pairs))
    properties = {**info.properties, **({COMMIT_MESSAGE: info.message} if info.message is not None else {})}
    return _commit(context, head, rewrite, properties)


def _commit(context: TableContext, head: State, operation: Operation, properties: dict[str, str]) -> State:
    transaction = Transaction(
        read_version=head.number, uuid=str(uuid.uuid4()), operation=operation, properties=properties
    )
    return commit_transaction(context.versions, head.branch, transaction, base=head)


def _described(context: TableContext, head: State, group: Group, staged: StagedFiles) -> tuple[Fragment, ...]:
    """Return the fragments that describe the files with the live rows of a group."""
    scopes = {scope_of_fragment(head.manifest, fragment) for fragment in group}
    scope = scopes.pop() if len(scopes) == 1 else None
    fragments = scoped(fragments_of(context, staged, head.manifest.fields, head), scope)
    return _with_lineage(context, head, group, fragments) if head.manifest.stable_row_ids else fragments


def _fragment_of(head: State, number: int) -> Fragment:
    fragment = head.manifest.fragments.find(number)
    if fragment is None:
        raise InvalidInputError(f"{head} has no fragment {number}; plan the compaction of this table again")
    return fragment


def _base_of(context: TableContext, head: State, group: Group) -> str | None:
    """Return the name of the base path that holds all files of a group; None for the table's own data folder."""
    ids = {file.base_id for fragment in group for file in fragment.files}
    bases = [base for base in head.manifest.base_paths if base.id in ids]
    # Base paths inside the table exist only because a branch names inherited files; new files go to the root.
    foreign = [base for base in bases if base.path != context.uri and not base.path.startswith(f"{context.uri}/tree/")]
    return foreign[0].name if len(foreign) == len(ids) == 1 else None


def _with_lineage(
    context: TableContext, head: State, group: Group, fragments: Sequence[Fragment]
) -> tuple[Fragment, ...]:
    """Return the new fragments with the row ids and row versions of the rows they hold."""
    # The sequences are joined as runs and are never expanded, since a group may have millions of rows.
    live = [
        BitMap(range(fragment.physical_rows)) - deleted_offsets(context.versions, head, fragment) for fragment in group
    ]
    where = f"version {head}"

    def gathered(decode: Callable[[Fragment], VersionRuns]) -> VersionRuns:
        return VersionRuns.concatenated([decode(own).restricted(live_offsets).packed() for own, live_offsets in pairs])

    pairs = list(zip(group, live, strict=True))
    sequences = [
        decode_row_runs(own.row_ids, own.physical_rows, where).restricted(live_offsets) for own, live_offsets in pairs
    ]
    ids = RowRuns.concatenated(sequences).packed()
    created = gathered(lambda own: decode_version_runs(own.created_at, own.physical_rows, where))
    updated = gathered(lambda own: decode_version_runs(own.updated_at, own.physical_rows, where))
    with_lineage = []
    start = 0
    for fragment in fragments:
        part = RowRuns.of([(0, fragment.physical_rows, start)])
        start += fragment.physical_rows
        with_lineage.append(
            replace(
                fragment,
                row_ids=encode_row_runs(part.through(ids)),
                created_at=encode_version_runs(part.versions(created)),
                updated_at=encode_version_runs(part.versions(updated)),
            )
        )
    # A mismatch would assign ids to the wrong rows, which no later check could find.
    if start != ids.rows:
        raise InvalidInputError(f"{start} rows were read in {where} instead of {ids.rows}; nothing was committed")
    return tuple(with_lineage)
