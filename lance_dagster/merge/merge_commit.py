"""Carry out the plan of a merge: files under the table's root, deletion vectors stored, the operation that says so.

Merge one version into a branch: gather what both sides did since their merge base, carry out the plan.

The rules are in `changes.merge`; here is what they need from the store, and what is written.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TypeVar

from pyroaring import BitMap

from lance_dagster.datafiles import matching_offsets
from lance_dagster.errors import CorruptFileError, InvalidInputError, MergeConflictError
from lance_dagster.format.file_versions import data_file_version
from lance_dagster.format.layout import DATA, MAIN
from lance_dagster.format.model import DataFile, Flag, Fragment, Manifest
from lance_dagster.format.transaction import (
    CLAIMS,
    COLUMNS_MOVED,
    COMMIT_MESSAGE,
    MERGE,
    MERGED_BRANCH,
    SQUASHED_PREFIX,
    Append,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Transaction,
    Update,
)
from lance_dagster.format.validation import validate_commit_info
from lance_dagster.history.commit import WRITER, Proposal, commit, now_ns
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import (
    Lineage,
    base_and_changes,
    changes_since,
    field_ids,
    is_criss_cross,
    last_common,
    lineage_of,
    merge_base,
    records_for_aliases,
    records_for_merge,
    row_space,
    version_that_merged,
)
from lance_dagster.history.rebase import deleted_offsets, with_deleted
from lance_dagster.history.versions import State
from lance_dagster.merge.merge_records import claiming, kept_records, picked_across
from lance_dagster.merge.rules import (
    Conflict,
    MergedFragment,
    MergeInput,
    MergePlan,
    MergeRefusal,
    ParsedStrategy,
    Strategy,
    plan_merge,
)
from lance_dagster.merge.rules.merge_input import Lookups, SideHistory
from lance_dagster.store import copy_file, copy_folder
from lance_dagster.transactions.apply import drop_unused_files, next_version
from lance_dagster.transactions.base_paths import base_path_of, data_folder, shared_base_ids, with_root_base
from lance_dagster.transactions.claims import Change, Claim, decode_claims, encode_claims

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FEW, _WRITERS, _PARTS_EACH = 4, 16, 2


def materialize(
    context: TableContext, plan: MergePlan, source: State, head: State, *, changes: Iterable[Change]
) -> tuple[Operation, Manifest]:
    """Store what the plan needs; returns the operation to record, and the state that follows the head.

    Args:
        context: The table.
        plan: What is to be done.
        source: The version that is merged.
        head: The version it is merged into.
        changes: What the source did since the merge base.

    Raises:
        InvalidInputError: A fragment would be left without a file, since all columns it has values of are dropped.
    """
    materializer = _Materializer(context, source, head)
    finished = materializer.all_finished([*plan.changed.values(), *plan.added])
    changed = dict(zip(plan.changed, finished[: len(plan.changed)], strict=True))
    added = finished[len(plan.changed) :]
    fragments = plan.manifest.fragments
    if plan.removed or changed:
        fragments = fragments.changed(plan.removed, changed)
    fragments = fragments.added(added)
    last = max((fragment.id for fragment in added), default=head.manifest.max_fragment_id)
    manifest = replace(plan.manifest, fragments=fragments, max_fragment_id=last)
    manifest = drop_unused_files(manifest, head.manifest.fields)
    if added and len(plan.removed) == len(head.manifest.fragments):
        manifest = replace(manifest, file_version=source.manifest.file_version)
    manifest = _open_to_file_versions(manifest, [*changed.values(), *added])
    overwrites = len(plan.removed) == len(head.manifest.fragments) and any(
        isinstance(change.operation, Overwrite) for change in changes
    )
    return _recorded(plan, manifest, changed, added, overwrites=overwrites), manifest


def _open_to_file_versions(manifest: Manifest, merged_fragment: Iterable[Fragment]) -> Manifest:
    """Say so where files come that are of another version than those of the table: nobody could read it otherwise."""
    versions = {data_file_version(file) for fragment in merged_fragment for file in fragment.files}
    if manifest.file_version == "" or versions <= {manifest.file_version}:
        return manifest
    mixed = int(Flag.MIXED_FILE_VERSIONS)
    return replace(manifest, reader_flags=manifest.reader_flags | mixed, writer_flags=manifest.writer_flags | mixed)


def _recorded(
    plan: MergePlan, manifest: Manifest, changed: Mapping[int, Fragment], added: Sequence[Fragment], *, overwrites: bool
) -> Operation:
    """Choose the operation to record: the one that lets most commits that are in flight be rebased onto the merge."""
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


class _Materializer:
    def __init__(self, context: TableContext, source: State, head: State) -> None:
        self._context, self._source, self._head = context, source, head
        self._shared = shared_base_ids(source.manifest, head.manifest, context.uri)
        self._own: dict[int | None, bool] = {}

    def all_finished(self, merged_fragment: Sequence[MergedFragment]) -> list[Fragment]:
        """Return fragments as the result names them, in the same order."""
        stores = [one.deleted is not None or any(map(self._is_elsewhere, one.files)) for one in merged_fragment]
        # Most fragments that come as a whole only get other numbers: nothing is stored for them.
        stored = iter(_in_parallel(self.finished, list(compress(merged_fragment, stores)), _WRITERS))
        return [next(stored) if wait else self.finished(one) for one, wait in zip(merged_fragment, stores, strict=True)]

    def finished(self, merged_fragment: MergedFragment) -> Fragment:
        """Return a fragment as the result names it, its files placed and its deletion vector stored."""
        for file in merged_fragment.files:
            if self._is_elsewhere(file):
                self._bring(file)
        materializer = Fragment(id=0, files=merged_fragment.files, physical_rows=0)
        files: tuple[DataFile, ...] = ()
        if merged_fragment.files:
            files = with_root_base([materializer], self._head.manifest, self._context.uri, self._shared)[0].files
        fragment = replace(merged_fragment.fragment, files=(*merged_fragment.fragment.files, *files))
        if merged_fragment.deleted is None:
            return fragment
        return with_deleted(self._context.versions, self._head, fragment, merged_fragment.deleted)

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
        blobs = file.path.removesuffix(".lance")
        copy_folder(store, key.removesuffix(".lance"), context.store, f"{DATA}/{blobs}")


MERGE_COMMIT, FAST_FORWARD, SQUASH = "merge", "ff-only", "squash"
_MODES = (MERGE_COMMIT, FAST_FORWARD, SQUASH)
_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """How to merge: who wins conflicts, whether the merge is recorded, what is kept with the transaction."""

    strategy: Strategy = None
    mode: str = MERGE_COMMIT
    message: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a message or properties that are no text, and an unknown strategy.

        Raises:
            InvalidInputError: Names it.
        """
        validate_commit_info(self.message, self.properties)
        # Checked here, because a merge that finds nothing to do never asks the strategy.
        ParsedStrategy.parse(self.strategy)


def merge(context: TableContext, source: State, into: str, options: MergeOptions) -> State:
    """Merge a version into a branch; returns the version that has it, which is not new when it was merged before.

    Raises:
        MergeConflictError: With every reason; nothing was written.
    """
    check_mode(options.mode)
    source_lineage = lineage_at(context, source)
    transaction_id = str(uuid.uuid4())

    def propose(head: State) -> Proposal | State:
        dest_lineage = lineage_at(context, head)
        merged = version_that_merged(source_lineage, dest_lineage, context.versions)
        if merged is not None:
            return merged
        base = merge_base(source_lineage, dest_lineage, context.refs, context.versions)
        merge_input = gather_merge_input(context, source_lineage, dest_lineage, base, strategy=options.strategy)
        with naming_damaged_manifests(context, source, head):
            refused = immediate_conflicts(options, source_lineage, dest_lineage, base)
            plan = MergeRefusal(conflicts=refused) if refused else plan_merge(merge_input)
        if isinstance(plan, MergeRefusal):
            headline = f"cannot merge {source} into {head} of {context.uri}; nothing was written:"
            raise MergeConflictError(headline, conflicts_of_table(plan.conflicts, context.uri))
        operation, changed = materialize(context, plan, source, head, changes=merge_input.source.changes)
        transaction = Transaction(
            read_version=head.number,
            uuid=transaction_id,
            operation=operation,
            properties=_properties(options, source_lineage, head, merge_input.source.changes) | columns_moved(plan),
        )
        kept = kept_records(dest_lineage, changed.table_metadata, context.refs, context.versions)
        metadata = kept | _records(options, source_lineage, dest_lineage, base=base, plan=plan)
        changed = replace(changed, table_metadata=metadata)
        return Proposal(
            transaction, next_version(head.manifest, changed, transaction, timestamp=now_ns(), writer=WRITER)
        )

    return commit(context.versions, into, propose, context.head(into))


def conflicts_of_table(conflicts: Iterable[Conflict], uri: str) -> tuple[Conflict, ...]:
    """Return conflicts that name their table."""
    return tuple(replace(conflict, table=uri) for conflict in conflicts)


def check_mode(mode: str) -> None:
    """Refuse what is no way to merge.

    Raises:
        InvalidInputError: Says which there are.
    """
    if mode not in _MODES:
        raise InvalidInputError(f"{mode!r} is no way to merge; use {', '.join(map(repr, _MODES))}")


@contextmanager
def naming_damaged_manifests(context: TableContext, source: State, head: State) -> Iterator[None]:
    """Say which manifests damage was found in, where that was found by rules that know no files."""
    try:
        yield
    except CorruptFileError as error:
        if context.uri in error.path:
            raise
        raise CorruptFileError(f"{source} or {head} of {context.uri}", f"{error.path}: {error.problem}") from error


def find_merged(context: TableContext, source: State, into: str) -> State | None:
    """Return the version of `into` that contains everything `source` has, or None when it has something new."""
    source_lineage, dest_lineage = lineage_at(context, source), lineage_at(context, context.head(into))
    return version_that_merged(source_lineage, dest_lineage, context.versions)


def base_of(context: TableContext, one: State, other: State) -> State:
    """Return the newest version that two versions contain."""
    lineages = lineage_at(context, one), lineage_at(context, other)
    return merge_base(*lineages, context.refs, context.versions).state


def lookups(context: TableContext) -> Lookups:
    """Return how to look at what manifests do not hold."""
    known: dict[tuple[int, int, int, int], BitMap] = {}

    def deleted(manifest: Manifest, fragment: Fragment) -> BitMap:
        if fragment.deletion is None:
            return BitMap()
        # Its id is random: the same file, whatever base path a version names it through.
        deletion = fragment.deletion
        file = (fragment.id, deletion.id, deletion.read_version, deletion.deleted_rows)
        if file not in known:
            known[file] = deleted_offsets(context.versions, _state(manifest), fragment)
        return known[file].copy()

    def ahead(fragments: Sequence[tuple[Manifest, Fragment]]) -> None:
        if "://" in context.uri:
            _in_parallel(lambda pair: deleted(*pair), fragments, _READERS)
        # A small local file is read in less time than it takes to hand the work to a thread.

    def matching(manifest: Manifest, fragment_ids: Iterable[int], predicate: str) -> Mapping[int, BitMap]:
        return matching_offsets(context.dataset(_state(manifest)), predicate, list(fragment_ids))

    return Lookups(deleted=deleted, matching=matching, ahead=ahead)


def _in_parallel(run: Callable[[_Item], _Result], items: Sequence[_Item], workers: int) -> list[_Result]:
    """Do the same for many items, each of which may be a request or more; returns the results in order.

    One request after the other, those of a thousand fragments would take a minute. A thread gets many items at a time:
    on a local disk handing one over takes as long as the work.
    """
    if len(items) <= _FEW:
        return [run(item) for item in items]
    size = -(-len(items) // (_PARTS_EACH * workers))
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(workers) as pool:
        return [result for part in pool.map(lambda part: [run(item) for item in part], parts) for result in part]


def lineage_at(context: TableContext, state: State) -> Lineage:
    """Return what a version contains."""
    found = lineage_of(state, context.refs)
    # Looked at again as the newest one of its line.
    context.versions.cache(found.id, state)
    return found


def gather_merge_input(
    context: TableContext, source: Lineage, dest: Lineage, base: Lineage, *, strategy: Strategy
) -> MergeInput:
    """Gather what a merge needs to know."""
    source_side, dest_side = side_history(context, source, dest, base), side_history(context, dest, source, base)
    picked = picked_across(source_side.changes, dest, base) or picked_across(dest_side.changes, source, base)
    source_changes, dest_changes = source_side.changes, dest_side.changes
    source_side = replace(source_side, changes=claiming(source_changes, source, dest_changes, dest))
    dest_side = replace(dest_side, changes=claiming(dest_changes, dest, source_changes, source))
    return MergeInput(
        base=base.state.manifest,
        space=row_space(base, context.versions),
        source=source_side,
        dest=dest_side,
        lookups=lookups(context),
        strategy=strategy,
        crosswise=picked or is_criss_cross(source, dest, base),
    )


def side_history(context: TableContext, of: Lineage, other: Lineage, base: Lineage) -> SideHistory:
    """Gather what a version did that another one does not contain."""
    anchor, since, same_ids = base_and_changes(of, base, context.versions)
    changes = changes_since(of, other, context.versions)
    return SideHistory(
        name=str(of.state),
        manifest=of.state.manifest,
        changes=changes,
        anchor=anchor,
        since=since,
        same_ids=same_ids,
        space=row_space(of, context.versions, since, anchor),
        common=last_common(of, base),
        fields=field_ids(of, base),
    )


def immediate_conflicts(options: MergeOptions, source: Lineage, dest: Lineage, base: Lineage) -> tuple[Conflict, ...]:
    """Return why the merge is refused whatever the sides did."""
    if options.mode == FAST_FORWARD and not source.contains(dest):
        told = f"{dest.state} has changes that {source.state} does not contain"
        return (Conflict(kind="history", unit="history", source="only a fast-forward was asked for", dest=told),)
    source_squashed, dest_squashed, base_squashed = (_squashed(lineage) for lineage in (source, dest, base))
    source_beyond, dest_beyond = _beyond(source_squashed, dest, source), _beyond(dest_squashed, source, dest)
    both = sorted(source_squashed.keys() & dest_squashed.keys() - base_squashed.keys())
    told = "{} has {} by a squash, so nobody can tell which rows both have; reset or delete the branch it is of"
    if source_beyond or dest_beyond or both:
        did = (
            told.format(source.state, source_squashed[both[0]] if both else source_beyond)
            if both or source_beyond
            else str(source.state),
            told.format(dest.state, dest_squashed[both[0]] if both else dest_beyond)
            if both or dest_beyond
            else str(dest.state),
        )
        return (Conflict(kind="history", unit="history", source=did[0], dest=did[1]),)
    return ()


def _squashed(lineage: Lineage) -> dict[str, str]:
    """Return which version of a branch was squashed into one, by the branch's id."""
    metadata = lineage.state.manifest.table_metadata.items()
    return {key.removeprefix(SQUASHED_PREFIX): value for key, value in metadata if key.startswith(SQUASHED_PREFIX)}


def _beyond(squashed: Mapping[str, str], other: Lineage, into: Lineage) -> str | None:
    """Return what was squashed of a branch of which the other side has something that was not merged as well."""
    for branch_id, version in sorted(squashed.items()):
        if other.contained.get(branch_id, -1) > into.contained.get(branch_id, -1):
            return version
    return None


def _properties(options: MergeOptions, source: Lineage, head: State, changes: Iterable[Change]) -> dict[str, str]:
    properties = {
        COMMIT_MESSAGE: options.message
        or f"{'squash' if options.mode == SQUASH else 'merge'} {source.state} into {head.branch}",
        **options.properties,
        CLAIMS: encode_claims(all_claims(changes)),
    }
    if options.mode != SQUASH:
        properties |= {MERGE: str(source.state), MERGED_BRANCH: source.id}
    return properties


def columns_moved(plan: MergePlan) -> dict[str, str]:
    """Return what a transaction says about columns that came with rows which moved."""
    return {COLUMNS_MOVED: ",".join(map(str, sorted(plan.columns)))} if plan.columns else {}


def _records(
    options: MergeOptions, source: Lineage, dest: Lineage, *, base: Lineage, plan: MergePlan
) -> dict[str, str]:
    if options.mode == SQUASH:
        # Nor can the branches be merged any more that were merged into the source.
        new = (one for one, number in source.contained.items() if number > dest.contained.get(one, -1))
        squashed = {f"{SQUASHED_PREFIX}{branch_id}": str(source.state) for branch_id in new}
        return squashed | records_for_aliases(dest.state.manifest, plan.aliases)
    return records_for_merge(source, dest, base, aliases=plan.aliases, fields=plan.fields)


def all_claims(changes: Iterable[Change]) -> list[Claim]:
    """Return what changes claim, each claim once."""
    return list(
        dict.fromkeys(
            claim
            for change in changes
            if change.transaction is not None
            for claim in decode_claims(change.transaction.properties) or change.claims
        )
    )


def _state(manifest: Manifest) -> State:
    return State(manifest.branch or MAIN, manifest, None)
