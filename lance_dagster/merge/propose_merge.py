"""Plan a merge against the head of a branch, carry it out and commit it; plan it again when the head moved.

Merges, syncs, picks, reverts and restores to before a fork all go through `commit_merge`: each only says what is to be
merged into a given head, and what is recorded with it.

Invariants: nothing is written before there is a plan without conflicts; and one transaction id serves all attempts, so
that an attempt whose response was lost is recognised as landed.

To carry a plan out (`materialize`), files are copied under the table's root, deletion vectors are stored, and rows that
get cells of both sides are written to a data file of their own, with their row ids. A crash before the commit leaves
files that no version names, which garbage collection removes; the next attempt copies them again, or gives copies that
are in place the present time so that a collection beside it keeps them.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lance_dagster.datafiles import batch_size, take_column, take_rows
from lance_dagster.datafiles.writing import StagedFiles, write_files
from lance_dagster.edit.write import moved_in, target
from lance_dagster.edit.write_result import Written
from lance_dagster.errors import Call, CorruptFileError, MergeConflictError, Remedy, VersionNotFoundError
from lance_dagster.format import transaction as ops
from lance_dagster.format.codec import encoded
from lance_dagster.format.layout import DATA, INDICES, branch_root, join
from lance_dagster.format.model import DataFile, Field, Flag, Fragment, Fragments, IndexMetadata, Manifest
from lance_dagster.format.transaction import (
    CASTS,
    CASTS_OF_SOURCE,
    COLUMNS_MOVED,
    MERGE_STRATEGY,
    NEEDS_BACKFILL,
    UPDATED_IN_PLACE,
    Transaction,
)
from lance_dagster.format.validation import parsed_json
from lance_dagster.format.value_ranges import united
from lance_dagster.history.commit import WRITER, Proposal, commit, now_ns
from lance_dagster.history.context import TableContext
from lance_dagster.history.rebase import with_deleted
from lance_dagster.history.refs.protection import refuse_direct_commit
from lance_dagster.history.versions import State
from lance_dagster.merge.conflict_keys import with_keys
from lance_dagster.merge.gather_input import state_of
from lance_dagster.merge.rules import (
    CombinedUpdates,
    MergedFragment,
    MergeInput,
    MergePlan,
    MergeRefusal,
    ParsedStrategy,
    Tally,
    claim_units,
    parsed_strategy,
    plan_merge,
)
from lance_dagster.merge.rules.strategy import Conflict, Strategy
from lance_dagster.store import concurrently, copy_file, copy_folder, is_durable
from lance_dagster.transactions.apply import drop_unused_files, next_version
from lance_dagster.transactions.base_paths import (
    base_path_of,
    data_folder,
    root_base_id,
    shared_base_ids,
    with_root_base,
)
from lance_dagster.transactions.claims import Change, decode_claims
from lance_dagster.transactions.index_updates import with_indices
from lance_dagster.transactions.row_lineage import with_new_values

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMerge:
    """The input of a merge into a head, and what the commit records with it.

    `attempt` says what is done, in the words that follow "cannot" in an error. `call` is the call that asked for the
    merge, without its strategy, and None for a call that takes no strategy. `table_metadata` makes the table metadata
    of the result. `refused` are conflicts that are known before anything is compared. Where `is_merge`, a protected
    branch accepts the commit, and the commit is made even if it changes nothing.
    """

    merge_input: MergeInput
    source: State
    attempt: str
    call: Call | None
    properties: Mapping[str, str]
    table_metadata: Callable[[MergePlan, Mapping[str, str]], dict[str, str]]
    refused: tuple[Conflict, ...] = ()
    is_merge: bool = True


def commit_merge(
    context: TableContext, branch: str, prepare: Callable[[State], ProposedMerge | State], *, head: State | None = None
) -> Written:
    """Make a merge the next version of a branch; return it with the number of rows that it changed there.

    Args:
        context: The table.
        branch: The branch.
        prepare: Returns what to merge into a head, or the version that contains the merge already. It is called again
            for the new head whenever another writer commits first.
        head: The newest version of the branch, if it was read before; an outdated head only costs an attempt.

    Raises:
        MergeConflictError: The error names every conflict; nothing was written.
    """
    # All attempts share one id: a commit whose response was lost is recognised by it and not made a second time.
    transaction_id = str(uuid.uuid4())
    # By the head: a plan is also made ahead of the turn to commit, for a head that may not be the last one.
    tallies: dict[int, tuple[Tally, Sequence[Field]]] = {}

    def planned(head: State) -> tuple[ProposedMerge, MergePlan] | State:
        proposed = prepare(head)
        return proposed if isinstance(proposed, State) else (proposed, plan_proposed(context, proposed, head))

    def propose(head: State) -> Proposal | State:
        planned_merge = read_anew(partial(planned, head))
        if isinstance(planned_merge, State):
            return planned_merge
        proposed, plan = planned_merge
        operation, result = materialize(
            context, plan, proposed.source, head, changes=proposed.merge_input.source.changes
        )
        result = replace(
            result,
            table_metadata=proposed.table_metadata(plan, result.table_metadata),
            # They hold for the same data files on either side.
            ranges=united(result.ranges, proposed.source.manifest.ranges),
        )
        # A pick or revert without effect makes no version. A merge makes one even then: its record is needed.
        if not proposed.is_merge and result == head.manifest:
            return head
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=operation,
            properties={**proposed.properties, **_strategy_used(proposed.merge_input), **_noted(plan)},
        )
        # A protected branch takes merges and maintenance; a pick, a revert or a restore counts as a direct commit.
        if not proposed.is_merge:
            refuse_direct_commit(context.store, branch, transaction)
        tallies[head.number] = plan.tally, head.manifest.fields
        return Proposal(transaction, next_version(head.manifest, result, timestamp=now_ns(), writer=WRITER))

    state = commit(context.versions, branch, propose, head or context.head(branch))
    # A version that had the change already was made by another transaction, and counts no row.
    if state.transaction is None or state.transaction.uuid != transaction_id:
        return Written(state=state)
    tally, before = tallies[state.number - 1]
    return Written(
        state=state,
        added=tally.rows_added,
        deleted=tally.rows_removed,
        updated=tally.rows_updated,
        columns=_columns_changed(before, state.manifest.fields),
    )


def _columns_changed(before: Sequence[Field], after: Sequence[Field]) -> tuple[str, ...]:
    """Return the columns that are new, renamed, retyped or gone; a nested column by its own name."""
    old, new = ({field.id: (field.name, field.logical_type) for field in fields} for fields in (before, after))
    changed = [field.name for field in after if old.get(field.id) != new[field.id]]
    return (*changed, *(field.name for field in before if field.id not in new and field.name not in changed))


def read_anew(make: Callable[[], _Result]) -> _Result:
    """Plan a merge, and plan it once more where it built on a version that was read before it was cleaned up.

    The second time the version is not answered from memory, so the plan goes by the versions that are left.
    """
    try:
        return make()
    except VersionNotFoundError:
        return make()


def plan_proposed(context: TableContext, proposed: ProposedMerge, head: State) -> MergePlan:
    """Plan a merge; nothing is written.

    Raises:
        MergeConflictError: The error names every conflict.
    """
    # Where a conflict does not depend on the changes of the sides, no plan is made: a plan may read deletion files and
    # rows.
    with naming_damaged_manifests(context, proposed.source, head):
        plan = MergeRefusal(conflicts=proposed.refused) if proposed.refused else plan_merge(proposed.merge_input)
    if isinstance(plan, MergePlan):
        return plan
    headline = f"cannot {proposed.attempt} of {context.uri}; nothing was written:"
    states = state_of(proposed.merge_input.base), proposed.source, head
    # Key columns are read only for a merge that is refused: a merge that succeeds does not pay for them.
    refusal = with_keys(context, states, plan, context.uri)
    raise MergeConflictError(headline, refusal.conflicts, remedy=remedy_for(refusal, proposed.call))


def call_with(method: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> Call:
    """Return the call of a method with the options that were given."""
    return Call(method, arguments, {name: value for name, value in options.items() if value})


def remedy_for(refusal: MergeRefusal, call: Call | None) -> Remedy | None:
    """Return the call that settles all conflicts at once, and keeps the strategies and everything else that was given.

    Args:
        refusal: Why there is no merge.
        call: The call that asked for the merge, without its strategy; None for a call that takes no strategy.
    """
    if call is None:
        return None
    if not refusal.settling:
        return Remedy(refusal.advice) if refusal.advice else None
    offered = refusal.settling[0]
    # The strategy is written out by unit: a hint of "source-wins" alone would settle conflicts that come up later too.
    named = {"strategy": dict(offered), **call.named}
    if not refusal.either:
        alternative = ""
    elif set(refusal.offered) == set(refusal.either):
        alternative = ", or choose the other winner for each"
    else:
        # A unit may contain braces, which would be taken for the placeholder of the call.
        alternative = f", or choose the other winner for {', '.join(map(repr, refusal.either))}"
        alternative = alternative.replace("{", "{{").replace("}", "}}")
    return Remedy(f"settle all conflicts with {{}}{alternative}", replace(call, named=named))


@contextmanager
def naming_damaged_manifests(context: TableContext, source: State, head: State) -> Iterator[None]:
    """Name the manifests in an error about damage that rules found, since the rules do not know the files."""
    try:
        yield
    except CorruptFileError as error:
        # The error of a reader has the path of the file already.
        if context.uri in error.path:
            raise
        raise CorruptFileError(f"{source} or {head} of {context.uri}", f"{error.path}: {error.problem}") from error


def check_unused_strategy(strategy: Strategy, merged: State, *versions: State) -> None:
    """Check a strategy for a merge that finds nothing to do, so that no plan looks at it.

    Args:
        strategy: The strategy.
        merged: The version that has the change already. A repeated call has the strategy of the call that made it, so
            everything that strategy names is accepted.
        versions: The versions whose columns a strategy may name.

    Raises:
        InvalidInputError: It names a column, a partition or a condition that neither side has.
    """
    if strategy is None:
        return
    properties = merged.transaction.properties if merged.transaction is not None else {}
    parsed = ParsedStrategy.parse(strategy).without(_strategy_recorded(properties))
    parsed_strategy(parsed.winners, *(version.manifest for version in (merged, *versions)))
    parsed.check_scopes(lambda: claim_units(decode_claims(properties)))


def _strategy_recorded(properties: Mapping[str, str]) -> Collection[str]:
    """Return the units and kinds for which a merge recorded a strategy."""
    try:
        winners = parsed_json(properties.get(MERGE_STRATEGY, "{}"))
    except ValueError:
        # Any program can set the property. An invalid value must not make a repeated merge fail.
        return ()
    return tuple(winners) if isinstance(winners, dict) else ()


def _strategy_used(merge_input: MergeInput) -> dict[str, str]:
    """Return the property that records the given strategy, whether it had to settle anything or not."""
    if merge_input.strategy is None:
        return {}
    winners = ParsedStrategy.parse(merge_input.strategy).winners
    return {MERGE_STRATEGY: json.dumps(dict(winners), sort_keys=True)} if winners else {}


def _noted(plan: MergePlan) -> dict[str, str]:
    """Return the properties that describe the result: columns that moved or were cast, and new or missing values."""
    noted = {COLUMNS_MOVED: ",".join(map(str, sorted(plan.columns)))} if plan.columns else {}
    # An empty record is written too: a squash has no other sign that its columns came as a whole.
    if plan.updated_in_place is not None:
        noted[UPDATED_IN_PLACE] = ",".join(map(str, sorted(plan.updated_in_place)))
    for key, casts in ((CASTS, plan.casts), (CASTS_OF_SOURCE, plan.casts_of_source)):
        # An empty record is written too: it distinguishes a cast from a column dropped beside a new column.
        if plan.tally.schema_changed or casts:
            noted[key] = ",".join(f"{old}:{new}" for old, new in sorted(casts.items()))
    lacking = plan.tally.needs_backfill
    return noted | ({NEEDS_BACKFILL: json.dumps(dict(lacking), sort_keys=True)} if lacking else {})


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
        stored = iter(concurrently(self.finished, compress(merged_fragments, stores), at_once=self._writers()))
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
