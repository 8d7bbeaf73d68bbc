"""Three-way merge of two versions of a table: what the result is, or every reason why there is none.

    base    what both sides have in common
    source  what is merged
    dest    what it is merged into; the result is its next version

Why it is safe. Whatever a side did, a row of the merge base stays where it was, or was moved unchanged, or got new
values, or is deleted (`row_changes`); a row that a side inserted concerns that side alone. One table decides what
becomes of a row that both sides may have changed (`row_decisions`), one what becomes of a column (`schema_merge`);
settings are merged key by key (`settings_merge`). Two sides that both claim the rows of one partition or predicate are
in conflict, even if they changed no row in common (`claim_conflicts`). Where the history does not tell what a side did,
the merge is refused.

Every rule asks the strategy who wins where both sides changed the same row, column or setting, goes on with the winner,
and returns a finding in any case. `plan_merge` collects the findings, and it alone decides whether the strategy leaves
a finding open. Then the merge is refused (`refusal`) with all open conflicts, and with the conflicts that would arise
under strategies that settle the open ones.

A merge writes metadata, and those rows that both sides updated in different cells: the plan says which cells such a row
gets, and the caller writes the row. Fragments of the dest keep their files; rows are deleted from them, and files of
columns are put beside them. Fragments of the source are added under new ids, for the rows that are taken from there.
Their data files lie under the table's root already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Fragment, IndexMetadata, Manifest
from lance_dagster.format.row_runs import RowRuns
from lance_dagster.merge.rules.claim_conflicts import (
    SettledClaims,
    claimed_columns,
    claimed_units,
    settle_claims,
)
from lance_dagster.merge.rules.columns.column_conflicts import lost_columns, unfit_returned_rows
from lance_dagster.merge.rules.columns.column_matching import columns_among
from lance_dagster.merge.rules.columns.schema_merge import MergedSchema, merge_schemas
from lance_dagster.merge.rules.columns.settings_merge import MergedSettings, merge_settings
from lance_dagster.merge.rules.columns.unreadable_results import fragments_without_values, unreadable_columns
from lance_dagster.merge.rules.merge_input import (
    MergeInput,
    blocking_findings,
    incompatible_columns,
    missing_versions,
)
from lance_dagster.merge.rules.merge_side import MergeSide, absent_from_base, sides_of
from lance_dagster.merge.rules.merged_indices import ResultFragments, indices_taken_over
from lance_dagster.merge.rules.refusal import MergeRefusal, refuse, refuse_with_consequences
from lance_dagster.merge.rules.relocated_rows import UntraceableError
from lance_dagster.merge.rules.result import FragmentBuilder, FragmentEdits, MergedFragment, ResultBuilder, Tally
from lance_dagster.merge.rules.row_changes import row_ids_of
from lance_dagster.merge.rules.row_decisions import (
    CombinedUpdates,
    DecidedFragment,
    RowRules,
    combine_updates,
    equally_updated_rows,
    only_moved_rows,
)
from lance_dagster.merge.rules.row_findings import row_findings
from lance_dagster.merge.rules.row_origins import BaseKey, BaseRows, in_order
from lance_dagster.merge.rules.separate_changes import NO_SEPARATE_CHANGES, SeparateChanges, separate_changes
from lance_dagster.merge.rules.several_bases import BaseResult, choose_result
from lance_dagster.merge.rules.strategy import HISTORY, Finding, ParsedStrategy, Strategy, unsettled
from lance_dagster.merge.rules.unnamed_updates import passed_on_in_place
from lance_dagster.transactions.apply import MAX_FRAGMENT_ID, MAX_ROW_ID
from lance_dagster.transactions.index_updates import (
    drop_indices,
    drop_indices_without_fields,
    indices_of,
    uncover_fields,
    uncover_fragments,
)
from lance_dagster.transactions.row_id_spaces import NO_FIELD, Alias, RowSpace, Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge without conflicts, ready to be carried out.

    `manifest` is the dest with the schema, the settings and the next row id of the result; it still has the fragments
    of the dest. Of these, `changed` get other deletions or files and `removed` are dropped; `added` are new fragments.
    The caller places the files and stores the deletion vectors.

    `aliases` are the row ids that rows of the source got, `fields` the ids that fields of the source got, `columns` the
    fields for which rows taken from the source have values. `casts` are columns of the dest that have another type in
    the result, with their ids in the result; `casts_of_source` are such columns of the source. `combined` are rows that
    the caller writes anew, as fragments from the id `first_combined` on. `rewritten` are fields with values in
    `changed` fragments that an index made from the dest does not contain. `updated_in_place` are the fragments that
    `passed_on_in_place` finds. `edits` are the decisions about rows. `indices` are indices of the source that the
    result has, under base ids of the source.
    """

    manifest: Manifest
    changed: Mapping[int, MergedFragment]
    removed: tuple[int, ...]
    added: tuple[MergedFragment, ...]
    aliases: Mapping[str, list[Alias]]
    fields: Mapping[int, int]
    columns: frozenset[int]
    rewritten: frozenset[int]
    casts: Mapping[int, int]
    casts_of_source: Mapping[int, int]
    combined: CombinedUpdates
    first_combined: int
    tally: Tally
    updated_in_place: frozenset[int] | None
    edits: FragmentEdits
    indices: tuple[IndexMetadata, ...]


def plan_merge(merge_input: MergeInput) -> MergePlan | MergeRefusal:
    """Merge the source into the dest, or return every conflict there is.

    Raises:
        InvalidInputError: The strategy is unknown, or there are no more ids.
    """
    strategy = parsed_strategy(
        merge_input.strategy, merge_input.base, merge_input.source.manifest, merge_input.dest.manifest
    )
    merges: list[tuple[MergeInput, tuple[MergeSide, MergeSide]]] = []
    for from_base in (merge_input, *merge_input.other_bases):
        blocking = [*blocking_findings(from_base), *incompatible_columns(from_base)]
        if blocking:
            # Without comparable rows no other rule can be evaluated, and no strategy helps.
            return refuse([*blocking, *missing_versions(from_base)])
        merges.append((from_base, sides_of(from_base)))
        # The rules read deletion vectors one by one. Read ahead, the files come in parallel.
        _read_deletions_ahead(*merges[-1][1])
    planned, sides = _plan_from_all(merges, strategy)
    if isinstance(planned, MergePlan):
        return planned

    def attempt(trial: ParsedStrategy) -> Sequence[Finding] | None:
        again, found_by = _plan_from_all(merges, trial)
        if isinstance(again, MergePlan):
            return None
        # The rows of a conflict are shown for the merge base from which the merge was refused, and for no other.
        findings = again if found_by is sides else [replace(finding, rows=None) for finding in again]
        return trial.open_among(findings)

    return refuse_with_consequences(attempt, strategy, strategy.open_among(planned), sides)


def _plan_from_all(
    merges: Sequence[tuple[MergeInput, tuple[MergeSide, MergeSide]]], strategy: ParsedStrategy
) -> tuple[MergePlan | list[Finding], tuple[MergeSide, MergeSide]]:
    """Plan a merge from each of its merge bases; return the plan they agree on, or the findings of the first refusal.

    With the plan or the findings, the two sides are returned as compared with the merge base that gave them.
    """
    plans: list[MergePlan] = []
    for merge_input, sides in merges:
        planned = _plan_under(merge_input, sides, strategy)
        if not isinstance(planned, MergePlan):
            return planned, sides
        plans.append(planned)
    if len(plans) == 1:
        return plans[0], merges[0][1]
    results = [BaseResult(manifest=plan.manifest, edits=plan.edits, combined=plan.combined) for plan in plans]
    names = [f"{merge_input.base.branch or MAIN}@{merge_input.base.version}" for merge_input, _ in merges]
    chosen = choose_result(results, *merges[0][1], strategy=strategy, names=names)
    return ([chosen], merges[0][1]) if isinstance(chosen, Finding) else (plans[chosen], merges[chosen][1])


def parsed_strategy(strategy: Strategy, *versions: Manifest) -> ParsedStrategy:
    """Check a strategy for a merge of some versions.

    Raises:
        InvalidInputError: It is unknown, or about a column that none of the versions has.
    """
    if strategy is None:
        # The usual case, in which the columns are not looked up.
        return ParsedStrategy.NONE
    parsed = ParsedStrategy.parse(strategy)
    parsed.check_columns(columns_among(versions))
    return parsed


def _plan_under(
    merge_input: MergeInput, sides: tuple[MergeSide, MergeSide], strategy: ParsedStrategy
) -> MergePlan | list[Finding]:
    """Plan a merge under a strategy; return all findings where some stay open."""
    source, dest = sides
    # A strategy can waive versions that were cleaned up, so they do not stop the comparison of rows.
    findings = list(missing_versions(merge_input))
    try:
        settings = merge_settings(source, dest, strategy)
        schema = merge_schemas(source, dest, strategy)
        claims = settle_claims(source, dest, strategy)
        in_conflict = [finding.conflict.unit for finding in claims.findings]
        strategy.check_scopes(lambda: [*in_conflict, *claimed_units(source, dest)])
        findings += [*settings.findings, *claims.findings, *schema.findings, *lost_columns(source, dest, schema)]
        findings += unreadable_columns(source, dest, schema)
        rules = RowRules(
            source=source,
            dest=dest,
            schema=schema,
            source_undone=claims.source.undone,
            dest_undone=claims.dest.undone,
            strategy=strategy,
        )
        rows = _decide_rows(rules, claims)
    except UntraceableError as error:
        did = str(error), "what became of its rows is unknown"
        return [*findings, unsettled(HISTORY, HISTORY, did)]
    findings += rows.findings
    # Open findings stop the merge only here. A rule that stopped it earlier would hide the findings of later rules.
    if strategy.open_among(findings):
        return findings
    return _Build(merge_input, sides, settings, schema, rows).plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecidedRows:
    """The decisions about all rows, fragment by fragment, and their effect on the fragments of the result."""

    decided: Sequence[DecidedFragment]
    separate: SeparateChanges
    builder: ResultBuilder
    dropped: Mapping[int, BitMap]
    combined: CombinedUpdates
    findings: Sequence[Finding]


def _decide_rows(rules: RowRules, claims: SettledClaims) -> _DecidedRows:
    """Decide about the rows of every fragment that may differ between the merge base and the source."""
    source, dest = rules.source, rules.dest
    builder = ResultBuilder(
        source=source.fragments,
        dest=dest.fragments,
        source_rows=source.rows,
        # The dest's rows are looked up only when needed: a source that only appended never needs them.
        dest_rows=lambda: dest.rows,
        deleted=source.lookups.deleted,
    )
    # Rows that come back or are dropped because a claim was lost do not show in deletion vectors. `separate_changes`
    # goes by these vectors, so the general rules decide then.
    lost = any(loss.dropped or loss.undone for loss in (claims.source, claims.dest))
    separate = NO_SEPARATE_CHANGES if lost else separate_changes(source, dest)
    # The final check for doubled rows leaves these fragments out: all rows that the source moved are masked there.
    builder.edits.separate = frozenset(separate.masked)
    for number, offsets in separate.masked.items():
        builder.edits.mask(number, offsets)
    for number, offsets in separate.taken_rows.items():
        builder.edits.take(number, offsets)
    # A fragment that the source left alone still needs a decision where the dest lost its claim to rows of it, and rows
    # that the merge base lacks need one where both sides may have them.
    # A column that comes back has its values in files that did not change.
    changed = source.base.fragments.ids if rules.schema.added_by_source else source.fragments.changed
    touched: set[BaseKey] = {*changed, *claims.dest.undone, *absent_from_base(source, dest), *source.rows.rewritten}
    numbers = in_order(touched - separate.base_ids)
    # Values are compared only in the fragments that are left: in `separate` ones, no row was changed by both sides.
    rules = _with_compared_rows(rules, numbers)
    decided = [outcome for number in numbers if (outcome := rules.decide_fragment(number)) is not None]
    for outcome in decided:
        builder.apply_decision(outcome.number, outcome.situation, outcome.decision)
    # Other new rows of the source need no decision: no other side can have changed them.
    for number, rows in source.rows.relocated.items():
        builder.edits.take(number, rows.inserted - claims.source.dropped.get(number, BitMap()))
    for number, offsets in claims.dest.dropped.items():
        builder.edits.mask(number, offsets)
    findings = [*row_findings(decided, builder.beside_others(), rules)]
    # A row that a strategy brings back has to fit the columns of the side that gives it up.
    if _come_back(claims.source.undone, dest) or any(outcome.decision.source_given_up for outcome in decided):
        findings += unfit_returned_rows(source)
    if _come_back(claims.dest.undone, source) or any(outcome.decision.dest_given_up for outcome in decided):
        findings += unfit_returned_rows(dest)
    return _DecidedRows(
        decided=decided,
        separate=separate,
        builder=builder,
        dropped=claims.dest.dropped,
        combined=rules.combined,
        findings=findings,
    )


def _come_back(undone: BaseRows, winner: MergeSide) -> bool:
    """Tell whether rows of the merge base come back: one side lost its change of the rows, and the winner has them."""
    # Where the winner removed the rows too, as in a merge of two overwrites, no row comes back.
    return any(offsets & winner.of(number).alive for number, offsets in undone.items())


def _with_compared_rows(rules: RowRules, numbers: Sequence[BaseKey]) -> RowRules:
    """Compare the values of rows that both sides changed in some fragments of the merge base."""
    source, dest = rules.source, rules.dest
    rules = replace(
        rules,
        equal_updates=equally_updated_rows(source, dest, rules.schema, numbers),
        source_only_moved=only_moved_rows(source, dest, numbers),
        dest_only_moved=only_moved_rows(dest, source, numbers),
    )
    return replace(rules, combined=combine_updates(rules, numbers, lambda: claimed_columns(source, dest)))


def _read_deletions_ahead(source: MergeSide, dest: MergeSide) -> None:
    """Read the deletion vectors that decide about what the source changed, all at once."""
    changed = source.fragments.changed
    places: list[tuple[Manifest, Fragment | None]] = [(source.base, source.base.fragment(number)) for number in changed]
    for side in (source, dest) if changed else ():
        places += [(side.manifest, side.fragments.place(number)) for number in changed]
    source.lookups.ahead(
        [(state, fragment) for state, fragment in places if fragment is not None and fragment.deletion is not None]
    )


@dataclass(frozen=True, slots=True)
class _Build:
    """Makes the plan of a merge without conflicts."""

    merge_input: MergeInput
    sides: tuple[MergeSide, MergeSide]
    settings: MergedSettings
    schema: MergedSchema
    rows: _DecidedRows

    def plan(self) -> MergePlan | list[Finding]:
        """Put the fragments, the schema and the settings of the result together."""
        source, dest = self.sides
        before, ids = dest.manifest, self.schema.from_source
        merged_space, aliases = self._assigned_ids()
        fragments = self._fragments(merged_space)
        changed, removed = fragments.changed()
        new_ids, next_id = self._fragment_ids()
        added = tuple(fragments.added(new_ids))
        column_sources = {number: origin for number, (origin, _) in self.rows.builder.edits.columns.items()}
        without = fragments_without_values(*self.sides, self.schema, changed=changed, added=added, removed=removed)
        if unsound := [*without, *self._doubled(fragments.doubled(added))]:
            return unsound
        manifest = replace(
            before,
            fields=self.schema.fields,
            table_metadata=self.settings.table_metadata,
            config=self.settings.config,
            schema_metadata=self.settings.schema_metadata,
            next_row_id=merged_space.end if before.stable_row_ids and added else before.next_row_id,
        )
        manifest, indices = self._indexed(
            ResultFragments(
                dest=before,
                manifest=manifest,
                changed=changed,
                removed=removed,
                added={merged_fragment.fragment.id: merged_fragment for merged_fragment in added},
                from_source=ids,
                deleted=source.lookups.deleted,
            )
        )
        return MergePlan(
            manifest=manifest,
            changed=changed,
            removed=removed,
            added=added,
            aliases=aliases if added else {},
            fields={field.id: ids.get(field.id, NO_FIELD) for field in source.manifest.fields},
            casts=_casts(dest, source, self.schema),
            casts_of_source=_casts(source, dest, self.schema),
            columns=self._columns_moved(),
            rewritten=self._rewritten(),
            combined=self.rows.combined,
            first_combined=max(next_id, (manifest.max_fragment_id or 0) + 1) if indices else next_id,
            tally=self._tally(added),
            updated_in_place=passed_on_in_place(source, column_sources, new_ids),
            edits=self.rows.builder.edits,
            indices=indices,
        )

    def _fragments(self, merged_space: RowSpace) -> FragmentBuilder:
        source, dest = self.sides
        return FragmentBuilder(
            edits=self.rows.builder.edits,
            source=source.fragments,
            dest=dest.fragments,
            dest_rows=lambda: dest.rows,
            source_rows=source.rows.relocated,
            from_source=self.schema.from_source,
            row_ids=source.history.space.translation(merged_space),
            deleted=source.lookups.deleted,
            # Up to the merge base, the numbers of both sides' versions mean the same.
            common=self.merge_input.base.version if source.history.same_ids and dest.history.same_ids else 0,
        )

    def _assigned_ids(self) -> tuple[RowSpace, dict[str, list[Alias]]]:
        """Assign ids to the rows that the dest gets; return all ids, and those to record."""
        (source, dest), taken_rows = self.sides, self.rows.builder.edits.taken_rows
        space, before = source.history.space, dest.manifest
        # Rows that come back under the ids that the dest has for them: deleted in the merge base, or taken back since.
        back = [
            row_ids_of(rows.fragment, source.name).restricted(offsets)
            for number, rows in source.rows.relocated.items()
            if before.stable_row_ids and (offsets := rows.back & taken_rows.get(number, BitMap()))
        ]
        again = RowRuns.set_of([*back, self.merge_input.inserted[0].inverse()])
        again = again.through(space.translation(dest.history.space).runs) if len(again) else again
        merged_space, aliases = space.assigned_ids_of(dest.history.space, Translation.of_runs(again))
        if merged_space.end > MAX_ROW_ID:
            raise InvalidInputError(
                f"version {before.version} assigned row ids up to {before.next_row_id}; there are no more ids after it"
            )
        return merged_space, aliases

    def _fragment_ids(self) -> tuple[dict[int, int], int]:
        """Return the new ids of the source's fragments, by their ids in the source, and the first id that stays free.

        Raises:
            InvalidInputError: The fragment ids are used up.
        """
        source, before, taken_rows = self.sides[0].manifest, self.sides[1].manifest, self.rows.builder.edits.taken_rows
        own = [number for number in source.fragments.ids if number in taken_rows]
        # `max_fragment_id` counts fragments that are gone as well. Fragments of one line are matched by id, so an id
        # that was given once must never be given to another fragment.
        largest = -1 if before.max_fragment_id is None else before.max_fragment_id
        first = max(largest, max(before.fragments.ids, default=-1)) + 1
        # Where the dest never gave any of the ids to a fragment, as in a fast-forward, they stay: indices of the source
        # name the fragments by them.
        new_ids = dict(zip(own, own if min(own, default=0) >= first else count(first), strict=False))
        largest = max(new_ids.values(), default=first - 1)
        if largest > MAX_FRAGMENT_ID:
            raise InvalidInputError(
                f"version {before.version} has a fragment {first - 1}; there are no more ids after it"
            )
        return new_ids, largest + 1

    def _doubled(self, rows: int) -> Iterator[Finding]:
        # No known history leads here. If a history did, a refusal would be better than a result that has rows twice.
        if rows:
            source, dest = self.sides
            did = f"{source.name} brings them in again", f"{dest.name} has them"
            yield unsettled(HISTORY, f"{rows} rows", did)

    def _columns_moved(self) -> frozenset[int]:
        """Return the fields for which rows taken from the source have values."""
        decided = (fragment for fragment in self.rows.decided if fragment.decision.from_source)
        return frozenset().union(*(fragment.situation.source_columns for fragment in decided))

    def _rewritten(self) -> frozenset[int]:
        """Return the fields that get new values in rows that stay in fragments of the dest."""
        edits = self.rows.builder.edits
        # A row that comes back is not in any index that was made while it was deleted.
        revived = [field.id for field in self.schema.fields if edits.revived]
        return frozenset(revived).union(*(columns for _, columns in edits.columns.values()))

    def _indexed(self, result: ResultFragments) -> tuple[Manifest, tuple[IndexMetadata, ...]]:
        """Return the result with the dest's indices as far as they stay valid, and indices of the source to add."""
        edits = self.rows.builder.edits
        # An index that was made while a row was deleted does not have it, so fragments with revived rows are scanned.
        manifest = uncover_fragments(drop_indices_without_fields(result.manifest), edits.revived)
        for number, (_, columns) in edits.columns.items():
            # An index on columns that the merge replaces here still has the old values of these rows.
            manifest = uncover_fields(manifest, columns, [number])
        source, dest = self.sides
        dropped = _index_names(source.base) - _index_names(source.manifest)
        if dropped:
            # Where the dest dropped the index too, an index that it has under that name is a new one.
            kept_by_dest = (_index_names(change.after) for change in dest.history.since if change.after is not None)
            dropped = dropped.intersection(*kept_by_dest)
        result = replace(result, manifest=drop_indices(manifest, dropped))
        indices = indices_taken_over(source.history, source.base, result)
        manifest = drop_indices(result.manifest, {index.name for index in indices})
        if indices:
            # Fragments that are gone are still in an index, so their ids must never be given to fragments of the dest.
            largest = max(source.manifest.max_fragment_id or 0, manifest.max_fragment_id or 0)
            manifest = replace(manifest, max_fragment_id=largest)
        return manifest, indices

    def _updated_without_columns(self) -> Iterator[tuple[int, int]]:
        """Return new columns of one side, and how many rows that the other side updated are null there."""
        by_source, by_dest = self.schema.added_by_source, self.schema.added_by_dest
        for fragment in self.rows.decided:
            facts, decision = fragment.situation, fragment.decision
            for columns, rows in (
                (facts.source_columns & by_source, decision.lacking_source_columns - decision.dest_given_up),
                (facts.dest_columns & by_dest, decision.lacking_dest_columns - decision.source_given_up),
            ):
                count = len(rows & decision.alive)
                yield from ((number, count) for number in columns if count)

    def _tally(self, added: Sequence[MergedFragment]) -> Tally:
        """Count what the merge does to rows, and which columns have no values for rows of the other side."""
        source, dest = self.sides
        schema, edits, decided = self.schema, self.rows.builder.edits, self.rows.decided
        separate = self.rows.separate
        source_rows = source.rows.relocated
        inserted = sum(
            rows.inserted.intersection_cardinality(edits.taken_rows[number])
            for number, rows in source_rows.items()
            if number in edits.taken_rows
        )
        filled = {number for fragment in added for file in fragment.files for number in file.fields}
        filled |= {number for _, columns in edits.columns.values() for number in columns}
        # A column that both sides added has values for the rows that the source inserted.
        only_dest = schema.added_by_dest & dest.columns.filled - set(schema.from_source.values())
        lacking = {number: inserted for number in only_dest if inserted}
        if schema.added_by_source & filled:
            dest_inserted = sum(len(rows.inserted) for rows in dest.rows.relocated.values())
            lacking |= {number: dest_inserted for number in schema.added_by_source & filled if dest_inserted}
        for number, rows in self._updated_without_columns():
            lacking[number] = lacking.get(number, 0) + rows
        before = dest.manifest.fields
        could_be_null = {field.id for field in before if field.nullable}
        # These are counted without making the sets: a fragment may have a hundred million rows.
        returned = sum(
            fragment.decision.alive.difference_cardinality(fragment.situation.dest.alive) for fragment in decided
        )
        removed = sum(
            fragment.situation.dest.alive.difference_cardinality(fragment.decision.alive) for fragment in decided
        )
        # A row that the dest lacks came back with its new values, and counts as added.
        updated = (
            fragment.decision.from_source & fragment.situation.source.updated & fragment.situation.dest.alive
            for fragment in decided
        )
        # The dest's copy of such a row goes, and the row does not.
        combined = len(self.rows.combined.dest)
        return Tally(
            rows_added=inserted + returned,
            rows_updated=separate.rows_updated + sum(map(len, updated)) + combined,
            rows_combined=combined,
            rows_removed=separate.rows_removed + removed - combined + sum(map(len, self.rows.dropped.values())),
            schema_changed=before != schema.fields,
            keeps_nulls=all(field.nullable or field.id not in could_be_null for field in schema.fields),
            needs_backfill={
                schema.paths[number]: rows for number, rows in sorted(lacking.items()) if number in schema.paths
            },
        )


def _index_names(manifest: Manifest) -> set[str]:
    return {index.name for index in indices_of(manifest)}


def _casts(of: MergeSide, changer: MergeSide, schema: MergedSchema) -> dict[int, int]:
    """Return columns of one side whose type the other side changed, with the ids that they have in the result."""
    live = {field.id for field in schema.fields}
    # In the result, fields have the ids that they have on the dest.
    unchanged = {number: number for number in live}
    old, new = (schema.from_source, unchanged) if of.is_source else (unchanged, schema.from_source)
    new_ids: dict[int, int] = {}
    for number, cast in changer.cast_fields.items():
        was, now = of.columns.ids.get(number, of.cast_fields.get(number)), new.get(cast)
        if was is not None and now in live and old.get(was) not in live:
            new_ids[was] = now
    return new_ids
