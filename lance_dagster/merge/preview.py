"""Say what a merge would do without doing it, or make a branch that has its result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_dagster.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    LanceDagsterError,
    NotFoundError,
    Remedy,
    counted,
)
from lance_dagster.format.model import Fragment
from lance_dagster.format.transaction import MERGE
from lance_dagster.history.ancestry import RecordedVersion
from lance_dagster.history.context import TableContext, open_context
from lance_dagster.history.lineage import Lineage
from lance_dagster.history.merge_base import merge_bases, version_that_merged
from lance_dagster.history.refs.branch_operations import create_branch, retire_branch
from lance_dagster.history.refs.ref_files import Branch, with_metadata
from lance_dagster.history.versions import State
from lance_dagster.merge.conflict_keys import with_keys
from lance_dagster.merge.conflict_rows import ConflictRows
from lance_dagster.merge.gather_input import gather_merge_input, lineage_at
from lance_dagster.merge.merge_commit import (
    MERGE_COMMIT,
    MergeMode,
    MergeOptions,
    check_mode,
    immediate_conflicts,
    merge,
)
from lance_dagster.merge.propose_merge import (
    call_with,
    check_unused_strategy,
    naming_damaged_manifests,
    read_anew,
    remedy_for,
)
from lance_dagster.merge.rules import MergePlan, MergeRefusal, Tally, parsed_strategy, plan_merge
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.transactions.index_updates import incomplete_indices, indices_of, with_indices

PREVIEW_OF = "preview_of"
"""Branch metadata that names the version whose merge a branch shows."""
PREVIEWING = "lance_dagster.previewing"
"""Branch metadata that exists until the merge is committed: the commit id of the version that is merged."""
_Three = tuple[RecordedVersion, RecordedVersion, RecordedVersion]
"""The merge base, the source and the dest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePreview:
    """The effect that a merge would have, without doing it. With conflicts it would do nothing.

    `remedy` has the call of `merge` that settles all conflicts, where strategies can, or else advice; it is None where
    there is neither. `base` is the newest version that both contain. `fast_forward` says that the dest did nothing
    since; `already_merged` says that there is nothing to do. `rows_combined` counts the updated rows that get changes
    of both sides, in different cells, and are written anew. `needs_backfill` gives, by the path of a column that one
    side added, how many rows only the other side has: they are null there. `reindex_needed` names the indices that
    would not cover every fragment, or that are on the source and would not be taken over.

    A pickled copy holds no storage options and reads rows with the credentials of the environment it is in. It finds
    branches that were renamed since.
    """

    source: str
    dest: str
    base: str
    conflicts: tuple[Conflict, ...] = ()
    rows_added: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_combined: int = 0
    schema_changed: bool = False
    fast_forward: bool = False
    already_merged: bool = False
    needs_backfill: Mapping[str, int] = field(default_factory=dict)
    reindex_needed: tuple[str, ...] = ()
    remedy: Remedy | None = None
    _rows: "_RowsOnDemand" = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the merge can be made: there are no conflicts."""
        return not self.conflicts

    @property
    def hint(self) -> str | None:
        """The sentence that says how to settle all conflicts, or None."""
        return None if self.remedy is None else str(self.remedy)

    def __str__(self) -> str:
        """Say on a few lines what the merge would do, or why it would be refused and what would settle that."""
        return "\n".join([f"{self.source} into {self.dest}; merge base {self.base}", *self._facts()])

    def _facts(self) -> Iterator[str]:
        if self.already_merged:
            yield "nothing to do: it was merged before"
        elif self.conflicts:
            yield from (f"{conflict.kind} conflict: {conflict}" for conflict in self.conflicts)
            yield "nothing would be written" + ("" if self.hint is None else f"; {self.hint}")
        else:
            yield f"rows: {self.rows_added:,} added, {self.rows_updated:,} updated, {self.rows_deleted:,} deleted"
            if self.rows_combined:
                yield f"rows with changes of both sides, written anew: {self.rows_combined:,}"
            yield f"columns: {'changed' if self.schema_changed else 'as they are'}"
            lacking = ((path, counted(rows, "row")) for path, rows in self.needs_backfill.items())
            yield from (f"needs backfill: {path}, null in {rows}" for path, rows in lacking)
            yield from (f"needs to be indexed again: {name}" for name in self.reindex_needed)
            yield f"fast-forward: {'yes' if self.fast_forward else f'no, {self.dest} has changes of its own'}"

    def conflicting_rows(
        self,
        conflict: Conflict | None = None,
        *,
        columns: Sequence[str] | None = None,
        on: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Read the rows that the conflicts are about, as both sides and the merge base have them.

        Each row of each conflict has a line: `_conflict_kind` and `_conflict_unit` name the conflict. `_row_id` is the
        row id, or the row address without stable row ids, in the first of the three versions that has the row.
        `_source_change` and `_dest_change` say what each side did to it: "changed", "removed", "added", "unchanged",
        null where the side never had it, or "rewritten": changed or removed, which cannot be told apart without stable
        row ids. Then come the row's images, the structs `base`, `source` and `dest`, null where a version does not have
        the row. They have the columns of their version, under the names that the dest has for them.

        There are lines for conflicts of the kinds "rows" and "column", as far as the rows are known, and for
        "partition" where its condition is known: the rows in it that either side inserted, changed or removed. Where
        both wrote a column anew for all rows of a fragment, rows in which its value did not change have no line.

        Args:
            conflict: One of the conflicts; None for all, one after the other.
            columns: The columns to read; None for all.
            on: The columns that identify rows, such as `["id"]`; they stand in a struct `key` before the images.
                With a key, a row that a side removed and a row that it inserted with the same key are one changed row.
            limit: The maximum number of lines.

        Raises:
            InvalidInputError: There is no such conflict or column, or two rows that are read have the same key.
        """
        return self._rows.find().stream(conflict, columns=columns, on=on, limit=limit)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle without the storage options, which may hold secrets."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "_rows"}
        return _copied, (values, *self._rows.request)


@dataclass(frozen=True, slots=True)
class _RowsOnDemand:
    """Finds the rows of conflicts; `request` lets a process that has only a pickled preview plan the merge again."""

    request: tuple[str, Strategy, _Three]
    find: Callable[[], ConflictRows]


def preview_on_branch(context: TableContext, name: str, source: State, head: State, *, options: MergeOptions) -> Branch:
    """Make a branch with the result of merging a version into the head of a branch; continue an interrupted call.

    Raises:
        AlreadyExistsError: A tag or another branch has the name.
        MergeConflictError: The error names every conflict.
    """
    # After a crash, this metadata lets the next call recognise and finish its own branch, and refuse any other branch
    # of the name.
    begun = {PREVIEWING: source.id}
    try:
        branch = create_branch(name, head, context.refs, context.versions, exist_ok=False, metadata=begun)
    except AlreadyExistsError:
        existing = context.refs.branches.find(name)
        if existing is None or not _is_begun(context, existing, source, head):
            raise
        branch = existing
    try:
        # A merge that landed before a crash is found again here and not repeated. The file of the source's branch is
        # read again: the branch may have been deleted since.
        merge(context, replace(source, of=None), name, options)
    except (InvalidInputError, ConflictError, NotFoundError, FormatError):
        # Nothing was merged, for example because the source was deleted meanwhile. A branch without a result would only
        # be in the way.
        with suppress(LanceDagsterError):
            if (newest := context.head(name)).number == branch.first:
                retire_branch(newest, context.refs, context.versions)
        raise
    # The metadata is set last: after a crash before the merge, checks must not take the unmerged dest for the result.
    markers: dict[str, str | None] = {PREVIEWING: None, PREVIEW_OF: str(source)}
    return context.refs.branches.change(branch, lambda current: with_metadata(current, markers))


def remedy_of_branch(refused: MergePreview, name: str | None) -> Remedy | None:
    """Return the call that makes the branch, for a merge that was refused.

    Args:
        refused: The merge.
        name: The name that was given to the branch.
    """
    remedy = refused.remedy
    if remedy is None or remedy.call is None:
        return remedy
    options = {"name": name, "strategy": remedy.call.named["strategy"]}
    return replace(remedy, call=call_with("branches.preview", remedy.call.given, options))


def _is_begun(context: TableContext, branch: Branch, source: State, head: State) -> bool:
    """Tell whether a branch was made to show the same merge, and has no other commit."""
    if branch.parent != str(head) or branch.metadata.get(PREVIEWING) != source.id:
        return False
    # The merge may have landed before the crash, so that only the metadata is missing. Any other commit means that the
    # branch is used for something else.
    newest = context.head(branch.name)
    merged = newest.transaction is not None and newest.transaction.properties.get(MERGE) == str(source)
    return merged or newest.number == branch.first


def preview(
    context: TableContext, source: State, into: str, *, strategy: Strategy = None, mode: MergeMode = MERGE_COMMIT
) -> MergePreview:
    """Say what merging a version into a branch would do now."""
    check_mode(mode)
    options = MergeOptions(strategy=strategy, mode=mode)
    return read_anew(lambda: _previewed(context, source, context.head(into), options))


def _previewed(context: TableContext, source: State, head: State, options: MergeOptions) -> MergePreview:
    source_lineage, dest_lineage = lineage_at(context, source), lineage_at(context, head)
    bases = merge_bases(source_lineage, dest_lineage, context.refs, context.versions)
    base = bases[0]
    # Versions are kept by the ids of their branches, so that a pickled preview finds them after a renaming.
    request = (
        context.uri,
        options.strategy,
        (_recorded_version(base), _recorded_version(source_lineage), _recorded_version(dest_lineage)),
    )

    def rows(merge_refusal: MergeRefusal) -> _RowsOnDemand:
        states = base.state, source, head
        return _RowsOnDemand(request, lambda: ConflictRows(context, states, merge_refusal))

    merge_preview = MergePreview(
        source=str(source),
        dest=str(head),
        base=str(base.state),
        fast_forward=source_lineage.has_all_of(dest_lineage),
        _rows=rows(MergeRefusal(conflicts=())),
    )
    merged = version_that_merged(source_lineage, dest_lineage, context.versions)
    if merged is not None:
        check_unused_strategy(options.strategy, merged, source, head)
        return replace(merge_preview, already_merged=True)
    # A preview that is refused before it is planned checks its strategy here, as a merge does.
    parsed_strategy(options.strategy, base.state.manifest, source.manifest, head.manifest)
    refused = immediate_conflicts(options, source_lineage, dest_lineage, base)
    with naming_damaged_manifests(context, source, head):
        plan = (
            MergeRefusal(conflicts=refused)
            if refused
            else plan_merge(gather_merge_input(context, source_lineage, dest_lineage, bases, strategy=options.strategy))
        )
        lacking = _not_indexed(plan, source) if isinstance(plan, MergePlan) else ()
    if isinstance(plan, MergeRefusal):
        refusal = with_keys(context, (base.state, source, head), plan, context.uri)
        remedy = remedy_for(refusal, options.call(source, head.branch))
        return replace(merge_preview, conflicts=refusal.conflicts, remedy=remedy, _rows=rows(refusal))
    tally: Tally = plan.tally
    return replace(
        merge_preview,
        rows_added=tally.rows_added,
        rows_updated=tally.rows_updated,
        rows_deleted=tally.rows_removed,
        rows_combined=tally.rows_combined,
        schema_changed=tally.schema_changed,
        needs_backfill=tally.needs_backfill,
        reindex_needed=lacking,
    )


def _not_indexed(plan: MergePlan, source: State) -> tuple[str, ...]:
    """Return the names of indices that do not cover every fragment of the result, or are not taken over."""
    manifest = with_indices(plan.manifest, plan.indices)
    names = {index.name for index in indices_of(manifest)}
    missing = {index.name for index in indices_of(source.manifest)} - names
    # Indices cover fragments by id, so fragments that only changed need no check; the plan's new fragments do.
    new = [merged_fragment.fragment for merged_fragment in plan.added]
    if len(plan.combined.dest):
        new.append(Fragment(id=plan.first_combined, files=(), physical_rows=len(plan.combined.dest)))
    changed = manifest.fragments.changed(plan.removed, {}).added(new)
    return tuple(sorted({*missing, *incomplete_indices(replace(manifest, fragments=changed))}))


def _recorded_version(lineage: Lineage) -> RecordedVersion:
    return RecordedVersion(str(lineage.state), lineage.id)


def _as_reported(plan: MergeRefusal | MergePlan | None, conflicts: tuple[Conflict, ...]) -> MergeRefusal:
    """Return a refusal that was planned again, with the conflicts of the preview: branches may have other names now."""
    if not isinstance(plan, MergeRefusal):
        return MergeRefusal(conflicts=conflicts)
    pairs = zip(conflicts, plan.conflicts, strict=False)
    # A conflict that does not recur is still reported, but without rows.
    same = [(first, again) for first, again in pairs if (first.kind, first.unit) == (again.kind, again.unit)]
    return replace(plan, conflicts=conflicts, rows={first: plan.rows.get(again, ()) for first, again in same})


def _copied(values: Mapping[str, object], uri: str, strategy: Strategy, versions: _Three) -> MergePreview:
    def again() -> ConflictRows:
        # There are no storage options here: they may be secrets and were not pickled.
        context = open_context(uri, None)
        base_at, source, dest = map(context.load_recorded, versions)
        base, source_lineage, dest_lineage = (lineage_at(context, state) for state in (base_at, source, dest))
        bases = [base, *merge_bases(source_lineage, dest_lineage, context.refs, context.versions)[1:]]
        plan = (
            plan_merge(gather_merge_input(context, source_lineage, dest_lineage, bases, strategy=strategy))
            # A merge without conflicts has no rows to show, so it is not planned again.
            if copy.conflicts
            else None
        )
        return ConflictRows(context, (base_at, source, dest), _as_reported(plan, copy.conflicts))

    copy = MergePreview(**values, _rows=_RowsOnDemand((uri, strategy, versions), again))  # type: ignore[arg-type]  # of another one
    return copy
