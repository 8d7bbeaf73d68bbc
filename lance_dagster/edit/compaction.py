"""Which fragments are worth rewriting together.

Many small fragments cost a file to open each, and deleted rows are read only to be left out. Neighbours are put
together, so that rows keep their order. Fragments that different indices speak for are never put together: an index
that knows half of a fragment's rows knows nothing it could use. Nor are fragments of different base paths, which lie
where they lie for a reason.

Compact a branch: write neighbouring small or worn fragments anew as one.

Rows keep their ids and the versions they were created and updated at. Fragments stand in the order of their ids, so
rewritten rows move behind the others.

Indices hold row addresses, stable row ids or not, and changing those is pylance's work. It does it rightly unless a
branch inherited the index; there the rows are moved without it, and the index speaks for the new fragments no more:
queries search them row by row.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pyroaring import BitMap

from lance_dagster.datafiles import StagedFiles, compact_with_pylance, scan_fragments, staged_fragments, write_files
from lance_dagster.edit.write import CommitInfo, target
from lance_dagster.errors import CommitConflictError, InvalidInputError
from lance_dagster.format.codec import decode_row_runs, decode_version_runs, encode_row_runs, encode_version_runs
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Fragment, IndexMetadata, Manifest
from lance_dagster.format.row_runs import RowRuns, VersionRuns
from lance_dagster.format.transaction import (
    COMMIT_MESSAGE,
    Operation,
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    Transaction,
)
from lance_dagster.gc.collect import Progress
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.context import TableContext, schema_of
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.versions import State
from lance_dagster.placement.base_stores import placed
from lance_dagster.transactions.index_updates import covered_fragments, indices_of

Group = tuple[Fragment, ...]


def plan_compaction(manifest: Manifest, target_rows: int, deleted_share: float) -> tuple[Group, ...]:
    """Return groups of neighbouring fragments that are better rewritten as one each, in their order.

    Args:
        manifest: The version to be compacted.
        target_rows: Rows a fragment should have; those with fewer are put together.
        deleted_share: The share of deleted rows, from 0 to 1, above which a fragment is rewritten even alone.
    """
    bitmaps = [covered_fragments(index) for index in indices_of(manifest)]

    def kind(fragment: Fragment) -> tuple[bool, tuple[bool, ...], frozenset[int | None]]:
        worn = _worn(fragment, deleted_share)
        known = tuple(bitmap is not None and fragment.id in bitmap for bitmap in bitmaps)
        return worn or fragment.rows < target_rows, known, frozenset(file.base_id for file in fragment.files)

    groups: list[Group] = []
    for (candidate, *_), run in groupby(manifest.fragments, kind):
        if candidate:
            groups += _bins(tuple(run), target_rows)
    return tuple(group for group in groups if len(group) > 1 or _worn(group[0], deleted_share))


def _worn(fragment: Fragment, deleted_share: float) -> bool:
    return fragment.physical_rows - fragment.rows > deleted_share * fragment.physical_rows


def _bins(run: Sequence[Fragment], target_rows: int) -> Iterator[Group]:
    """Cut a run of neighbours wherever the target is reached."""
    bins: list[list[Fragment]] = [[]]
    rows = 0
    for fragment in run:
        if rows >= target_rows:
            bins.append([])
            rows = 0
        bins[-1].append(fragment)
        rows += fragment.rows
    yield from map(tuple, bins)


_ATTEMPTS = 5
_BLOBS = ("lance-encoding:blob", "lance.blob")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What compaction aims at: rows for each fragment, and the share of deleted rows it does not put up with."""

    target_rows: int
    deleted_share: float

    def __post_init__(self) -> None:
        """Refuse goals that cannot be reached."""
        if self.target_rows < 1:
            raise InvalidInputError(f"a fragment cannot have {self.target_rows} rows; the target has to be 1 or more")
        if not 0 <= self.deleted_share <= 1:
            raise InvalidInputError(f"a share of {self.deleted_share} deleted rows is not one between 0 and 1")


def compact(context: TableContext, goal: Goal, info: CommitInfo, progress: Progress | None = None) -> State:
    """Rewrite what is worth it, as one version; the head as it is when nothing is.

    Raises:
        InvalidInputError: The branch has an index that only pylance could take along, and would break.
        CommitConflictError: Other writers changed the same fragments again and again.
    """
    for attempt in range(_ATTEMPTS):
        head = context.head(info.branch)
        if not _is_ours(head):
            return _by_pylance(context, head, goal)
        groups = plan_compaction(head.manifest, goal.target_rows, goal.deleted_share)
        if not groups:
            return head
        try:
            return _rewrite(context, head, groups, goal=goal, info=info, progress=progress)
        except CommitConflictError as error:
            if not error.retryable or attempt == _ATTEMPTS - 1:
                raise
    raise InvalidInputError("unreachable: the last attempt returns or raises")


def _is_ours(head: State) -> bool:
    """Tell whether rows can be moved without pylance: no index can be taken along, and no blob lies beside a file."""
    return not _has_blobs(head.manifest) and all(_inherited(head, index) for index in indices_of(head.manifest))


def _inherited(head: State, index: IndexMetadata) -> bool:
    return head.branch != MAIN and index.base_id is not None


def _has_blobs(manifest: Manifest) -> bool:
    return any(
        field.extension_name.startswith(_BLOBS) or not field.metadata.keys().isdisjoint(_BLOBS)
        for field in manifest.fields
    )


def _by_pylance(context: TableContext, head: State, goal: Goal) -> State:
    inherited = [index.name for index in indices_of(head.manifest) if _inherited(head, index)]
    if inherited:
        what = "blobs" if _has_blobs(head.manifest) else "an index of its own"
        raise InvalidInputError(
            f"cannot compact branch {head.branch!r} of {context.uri}: it has {what}, which only pylance can move, and "
            f"the index {inherited[0]!r}, which it inherited and pylance would break; compact main, or drop the index"
        )
    compact_with_pylance(context.dataset(head), goal.target_rows, goal.deleted_share)
    return context.head(head.branch)


def _rewrite(
    context: TableContext,
    head: State,
    groups: Sequence[Group],
    *,
    goal: Goal,
    info: CommitInfo,
    progress: Progress | None,
) -> State:
    written = []
    for group in groups:
        written.append(_written(context, head, group, goal))
        if progress is not None:
            progress(len(written), len(groups))
    # As other writers do: ids of rewritten fragments are reserved first, so that no append is given the same.
    count = sum(len(new) for new in written)
    reserved = _commit(context, head, ReserveFragments(count=count), {})
    first = (reserved.manifest.max_fragment_id or 0) - count + 1
    numbered = []
    for new in written:
        numbered.append(tuple(replace(fragment, id=first + place) for place, fragment in enumerate(new)))
        first += len(new)
    pairs = zip(groups, numbered, strict=True)
    rewrite = Rewrite(groups=tuple(RewriteGroup(old=old, new=new) for old, new in pairs))
    properties = {**info.properties, **({COMMIT_MESSAGE: info.message} if info.message is not None else {})}
    return _commit(context, head, rewrite, properties)


def _commit(context: TableContext, head: State, operation: Operation, properties: dict[str, str]) -> State:
    transaction = Transaction(
        read_version=head.number, uuid=str(uuid.uuid4()), operation=operation, properties=properties
    )
    return commit_transaction(context.versions, head.branch, transaction)


def _written(context: TableContext, head: State, group: Group, goal: Goal) -> tuple[Fragment, ...]:
    """Write the live rows of some fragments to new files, and describe these as fragments."""
    schema, manifest = schema_of(head), head.manifest
    rows = sum(fragment.rows for fragment in group)
    # Files of equal size, none below the target: a rest would have to be rewritten the next time.
    most = -(-rows // max(1, rows // goal.target_rows))
    place = replace(target(context, schema, head, _base_of(context, head, group)), max_rows=max(1, most))
    batches = scan_fragments(context.dataset(head), [fragment.id for fragment in group])
    staged = StagedFiles(schema, write_files(place, batches), place.base)
    made = placed(context, staged_fragments(staged, manifest.fields, manifest.file_version), head, staged.base)
    return _with_lineage(context, head, group, made) if manifest.stable_row_ids else made


def _base_of(context: TableContext, head: State, group: Group) -> str | None:
    """Return the name of the base path the files of a group lie under; None for the table itself."""
    ids = {file.base_id for fragment in group for file in fragment.files}
    bases = [base for base in head.manifest.base_paths if base.id in ids]
    elsewhere = [
        base for base in bases if base.path != context.uri and not base.path.startswith(f"{context.uri}/tree/")
    ]
    return elsewhere[0].name if len(elsewhere) == len(ids) == 1 else None


def _with_lineage(context: TableContext, head: State, group: Group, made: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """Give new fragments the row ids and versions of the rows they hold."""
    live = [_live(context, head, fragment) for fragment in group]
    where = f"version {head}"

    def gathered(decode: Callable[[Fragment], VersionRuns]) -> VersionRuns:
        return VersionRuns.concatenated([decode(own).restricted(kept).packed() for own, kept in pairs])

    pairs = list(zip(group, live, strict=True))
    sequences = [decode_row_runs(own.row_ids, own.physical_rows, where).restricted(kept) for own, kept in pairs]
    ids = RowRuns.concatenated(sequences).packed()
    created = gathered(lambda own: decode_version_runs(own.created_at, own.physical_rows, where))
    updated = gathered(lambda own: decode_version_runs(own.updated_at, own.physical_rows, where))
    found = []
    start = 0
    for fragment in made:
        part = RowRuns.of([(0, fragment.physical_rows, start)])
        start += fragment.physical_rows
        found.append(
            replace(
                fragment,
                row_ids=encode_row_runs(part.through(ids)),
                created_at=encode_version_runs(part.versions(created)),
                updated_at=encode_version_runs(part.versions(updated)),
            )
        )
    if start != ids.rows:
        raise InvalidInputError(f"{start} rows were read of {ids.rows} in {where}; nothing was committed")
    return tuple(found)


def _live(context: TableContext, head: State, fragment: Fragment) -> BitMap:
    return BitMap(range(fragment.physical_rows)) - deleted_offsets(context.versions, head, fragment)
