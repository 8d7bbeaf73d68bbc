"""Three-way merge of two versions of a table: what the result is, or every reason why there is none.

    base    what both sides have in common
    source  what is merged
    dest    what it is merged into; the result is its next version

Why it is safe. Whatever a side did, a row of the merge base either is where it was, or was moved as it is, or got new
values, or is gone (`row_changes`), and a row it put in is its own. What both sides did to a row is decided by one table
(`row_decisions`), what they did to a column by another (`schema_merge`); settings are merged key by key
(`settings_merge`); and two sides that both mean to provide the rows of one scope contradict each other although no row
shows it (`claim_conflicts`). A conflict is found before anything is written, and all are told at once. What cannot be
known is refused.

Nothing but metadata is new. The dest's fragments stay as they are but for rows that are deleted from them and files
of columns put beside them; fragments of the source are added under new ids, for the rows that are taken from there.
The data files lie under the table's root already.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.evolution import next_field_id
from lance_dagster.format.model import Fragment, Manifest
from lance_dagster.merge.rules.claim_conflicts import ClaimLoss, ClaimSettlement, claimed
from lance_dagster.merge.rules.column_losses import Party, brought_back, columns_lost
from lance_dagster.merge.rules.column_matching import Columns, columns_of, paths_of
from lance_dagster.merge.rules.conflict_locations import ConflictLocations, MergeRefusal
from lance_dagster.merge.rules.merge_side import Conflict, Lookups, SideHistory
from lance_dagster.merge.rules.preconditions import blocking_conflicts, incompatible_columns, missing_versions
from lance_dagster.merge.rules.relocated_rows import Identities, UntraceableError, located_by_ids, located_by_replay
from lance_dagster.merge.rules.result import FragmentBuilder, MergedFragment, ResultBuilder, Tally
from lance_dagster.merge.rules.row_changes import (
    GONE,
    SHARED,
    MatchedFragments,
    RowChanges,
    live_rows,
    match_fragments,
    present,
)
from lance_dagster.merge.rules.row_conflicts import RowConflicts
from lance_dagster.merge.rules.row_decisions import Holder, Situation, compare_rows, decide, differing_fields
from lance_dagster.merge.rules.schema_merge import MergedSchema, Schemas
from lance_dagster.merge.rules.settings_merge import merge_maps
from lance_dagster.merge.rules.strategy import Strategy, StrategyResolver
from lance_dagster.transactions.apply import LAST_ROW_ID
from lance_dagster.transactions.index_updates import (
    indices_of,
    with_relevant,
    without_fragments,
    without_indices,
    without_values,
)
from lance_dagster.transactions.row_id_spaces import NO_FIELD, Alias, RowSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """What is to be merged: the newest version both sides contain with the row ids it has, the sides, how to look.

    Where merges went crosswise, both contain versions that this one does not. Rows that both had and only the source
    still has are gone, since the dest deleted them; where they are `returning`, the dest took back the version that
    brought them, and they come again.
    `incompatible` are the paths of columns that source and dest have in other types, changed before the base.
    """

    base: Manifest
    space: RowSpace
    source: SideHistory
    dest: SideHistory
    lookups: Lookups
    strategy: Strategy = None
    crosswise: bool = False
    returning: bool = False
    incompatible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge without conflicts, ready to be carried out.

    `manifest` is the dest with the result's schema, settings and next row id; its fragments are the dest's still.
    `changed` are those of them that get other deletions or files, `removed` those that go, `added` the new ones. The
    caller places the files and stores the deletion vectors. `aliases` say which row ids rows of the source
    got, `fields` which ids fields of the source have,
    `columns` the fields that rows got values of as they came from the source, moved and otherwise unchanged.
    """

    manifest: Manifest
    changed: Mapping[int, MergedFragment]
    removed: tuple[int, ...]
    added: tuple[MergedFragment, ...]
    aliases: Mapping[str, list[Alias]]
    fields: Mapping[int, int]
    columns: frozenset[int]
    tally: Tally

    @property
    def changes_columns(self) -> bool:
        """Whether the schema changes, or values beside rows that stay where they are."""
        return self.tally.schema_changed or self.tally.columns_changed


def plan_merge(merge_input: MergeInput) -> MergePlan | tuple[Conflict, ...]:
    """Merge the source into the dest, or return every conflict there is."""
    found = plan_or_refuse(merge_input)
    return found.conflicts if isinstance(found, MergeRefusal) else found


def plan_or_refuse(merge_input: MergeInput) -> MergePlan | MergeRefusal:
    """Merge the source into the dest, or return every conflict there is and what tells its rows."""
    resolver = StrategyResolver(merge_input.strategy)
    for conflict in blocking_conflicts(
        merge_input.base, merge_input.source, merge_input.dest, crosswise=merge_input.crosswise
    ):
        resolver.refuse(conflict)
    for conflict in incompatible_columns(merge_input.source, merge_input.dest, merge_input.incompatible):
        resolver.refuse(conflict)
    for conflict in missing_versions(merge_input.source, merge_input.dest):
        resolver.settle(conflict)
    if resolver.conflicts:
        return MergeRefusal(conflicts=tuple(resolver.conflicts))
    planner = _Planner(merge_input, resolver)
    try:
        plan = planner.plan()
    except UntraceableError as error:
        unit = Conflict(kind="history", unit="history", source=str(error), dest="what became of its rows is unknown")
        resolver.refuse(unit)
        return MergeRefusal(conflicts=tuple(resolver.conflicts))
    return planner.refusal() if plan is None else plan


class _Planner:
    def __init__(self, merge_input: MergeInput, resolver: StrategyResolver) -> None:
        self._base, self._source, self._dest = merge_input.base, merge_input.source, merge_input.dest
        self._space, self._lookups, self._resolver = merge_input.space, merge_input.lookups, resolver
        self._crosswise, self._returning = merge_input.crosswise, merge_input.returning

    def plan(self) -> MergePlan | None:
        resolver = self._resolver
        self._lookups.ahead(self._read_ahead())
        maps = merge_maps(self._base, self._source, self._dest, resolver)
        self._losses = self._settled_claims()
        for conflict, rows in columns_lost(self._base, self._schema, self._parties(), self._lookups):
            resolver.refuse(conflict, rows)
        row_conflicts = RowConflicts(schema=self._schema, source=self._source, dest=self._dest, resolver=resolver)
        for number in sorted({*self._touched(), *self._losses[1].undone, *self._shared()}):
            self._decide(number, row_conflicts)
        for number, found in self._source_rows.relocated.items():
            self._builder.edits.take(number, found.inserted - self._losses[0].dropped.get(number, BitMap()))
        for number, offsets in self._losses[1].dropped.items():
            self._builder.edits.mask(number, offsets)
        for beside in self._builder.beside_others():
            row_conflicts.beside(*beside)
        row_conflicts.finish()
        given_up = row_conflicts.given_up_by_source, row_conflicts.given_up_by_dest
        for party, loss, count in zip(self._parties(), self._losses, given_up, strict=True):
            back = brought_back(self._base, party, by_source=party.side is self._source)
            for conflict in back if loss.undone or count else ():
                resolver.refuse(conflict)
        made = None if resolver.conflicts else self._build(maps, row_conflicts)
        return None if resolver.conflicts else made

    def refusal(self) -> MergeRefusal:
        """Return the conflicts there are, each once."""
        locations = ConflictLocations(
            notes=self._resolver.locations, base=self._base, parties=self._parties(), deleted=self._lookups.deleted
        )
        return MergeRefusal(conflicts=tuple(dict.fromkeys(self._resolver.conflicts)), locations=locations)

    def _touched(self) -> Collection[int]:
        """Return the fragments of the base in which the source may have changed something."""
        # A column that comes back has its values in files that nobody touched.
        return self._base.fragments.ids if self._schema.added_by_source else self._source_matched.changed

    def _read_ahead(self) -> list[tuple[Manifest, Fragment]]:
        """Return the fragments whose deleted rows decide about what the source changed."""
        changed = self._source_matched.changed
        places: list[tuple[Manifest, Fragment | None]] = [
            (self._base, present(self._base, number)) for number in changed
        ]
        for matched in (self._source_matched, self._dest_matched) if changed else ():
            places += [(matched.side, matched.place(number)) for number in changed]
        return [(manifest, place) for manifest, place in places if place is not None and place.deletion is not None]

    @cached_property
    def _builder(self) -> ResultBuilder:
        return ResultBuilder(
            source=self._source_matched,
            dest=self._dest_matched,
            source_rows=self._source_rows,
            dest_rows=lambda: self._dest_rows,
            deleted=self._lookups.deleted,
        )

    @cached_property
    def _source_matched(self) -> MatchedFragments:
        return match_fragments(self._base, self._source)

    @cached_property
    def _dest_matched(self) -> MatchedFragments:
        return match_fragments(self._base, self._dest)

    @cached_property
    def _source_rows(self) -> RowChanges:
        return self._row_changes(self._source, self._source_matched)

    @cached_property
    def _dest_rows(self) -> RowChanges:
        # Looked up only when something depends on it: a source that only appended does not ask what the dest did.
        return self._row_changes(self._dest, self._dest_matched)

    @cached_property
    def _source_columns(self) -> Columns:
        return columns_of(self._base, self._source, self._source_matched)

    @cached_property
    def _dest_columns(self) -> Columns:
        return columns_of(self._base, self._dest, self._dest_matched)

    @cached_property
    def _schema(self) -> MergedSchema:
        columns = self._source_columns, self._dest_columns
        schemas = Schemas(self._base, self._source, self._dest, *columns, crosswise=self._crosswise)
        return schemas.merged(lambda: next_field_id(self._dest.manifest), self._resolver)

    def _row_changes(self, side: SideHistory, matched: MatchedFragments) -> RowChanges:
        deleted = self._lookups.deleted
        if side.manifest.stable_row_ids:
            source_ids, dest_ids = self._identities
            identities = source_ids if side is self._source else dest_ids
            return RowChanges(matched, deleted, located_by_ids(identities, side, matched, deleted))
        return RowChanges(matched, deleted, *located_by_replay(side, matched, deleted))

    @cached_property
    def _identities(self) -> tuple[Identities, Identities]:
        return Identities.of_both(self._space, self._source.space, self._dest.space)

    def _shared(self) -> set[int]:
        """Return what stands for fragments of rows that both sides have and the base has not."""
        if not self._base.stable_row_ids:
            return set()
        shared = self._source_rows.shared()
        return shared | self._dest_rows.shared() if shared or self._identities[0].shared.stretches else set()

    def _settled_claims(self) -> tuple[ClaimLoss, ClaimLoss]:
        if not claimed((self._source, self._dest)):
            return ClaimLoss(), ClaimLoss()
        return ClaimSettlement(
            base=self._base,
            source=self._source,
            dest=self._dest,
            source_rows=self._source_rows,
            dest_rows=self._dest_rows,
            columns_changed=(
                _changed(self._base, self._source, self._source_columns),
                _changed(self._base, self._dest, self._dest_columns),
            ),
            lookups=self._lookups,
        ).settled(self._resolver)

    def _decide(self, number: int, row_conflicts: RowConflicts) -> None:
        source, dest = compare_rows(number, *self._holders)
        fragment = None if number >= GONE else present(self._base, number)
        # Rows that came to both on other ways, a base of both would have; what the base had deleted, it has not.
        out_of_place = dest.alive if self._returning else source.alive | dest.alive
        out_of_place = out_of_place if number >= SHARED else BitMap()
        live = out_of_place if fragment is None else live_rows(self._base, fragment, self._lookups.deleted)
        undone = tuple(loss.undone.get(number, BitMap()) for loss in self._losses)
        kept = frozenset(field.id for field in self._schema.fields)
        source_columns, dest_columns = differing_fields(number, fragment, (source, dest), self._holders)
        source_columns, dest_columns = source_columns & kept, (dest_columns | self._schema.kept) & kept
        if source.stays == live and not source_columns and not source.moved and not source.updated and not undone[1]:
            return
        source_columns, dest_columns = row_conflicts.written_by(number, (source, dest), source_columns, dest_columns)
        facts = Situation(
            live=live,
            source=source,
            dest=dest,
            source_columns=source_columns,
            dest_columns=dest_columns,
            source_undone=undone[0],
            dest_undone=undone[1],
            traceable=self._base.stable_row_ids,
            uncertain=bool(self._source_columns.written.get(None) or self._dest_columns.written.get(None)),
        )
        columns = row_conflicts.columns_strategy(source_columns), row_conflicts.columns_strategy(dest_columns)
        decision = decide(facts, rows=row_conflicts.rows_strategy(), columns=columns)
        row_conflicts.decided(number, facts, decision)
        self._builder.add(number, facts, decision)

    @cached_property
    def _holders(self) -> tuple[Holder, Holder]:
        ids = self._schema.from_source
        return (
            Holder(
                rows=self._source_rows,
                columns=self._source_columns,
                result=ids.get,
                # Going back, a column comes with all its values, wherever the rows are.
                strict=any(change.undone for change in self._source.changes),
            ),
            Holder(
                rows=self._dest_rows,
                columns=self._dest_columns,
                result=lambda own: own,
                strict=not self._dest.same_ids,
            ),
        )

    def _build(
        self, maps: tuple[dict[str, str], dict[str, str], dict[str, bytes]], row_conflicts: RowConflicts
    ) -> MergePlan:
        dest = self._dest.manifest
        space, aliases = self._source.space.brought_to(self._dest.space)
        if space.end > LAST_ROW_ID:
            raise InvalidInputError(
                f"version {dest.version} gave row ids up to {dest.next_row_id}; there are no more ids after it"
            )
        ids = self._schema.from_source
        fragment_builder = FragmentBuilder(
            edits=self._builder.edits,
            source=self._source_matched,
            dest=self._dest_matched,
            dest_rows=lambda: self._dest_rows,
            source_rows=self._source_rows.relocated,
            from_source=ids,
            row_ids=self._source.space.translation(space),
            deleted=self._lookups.deleted,
            # Up to the merge base, the numbers of both sides' versions mean the same.
            common=self._base.version if self._source.same_ids and self._dest.same_ids else 0,
        )
        changed, removed = fragment_builder.changed()
        last = -1 if dest.max_fragment_id is None else dest.max_fragment_id
        added = fragment_builder.added(max(last, max(dest.fragments.ids, default=-1)) + 1)
        doubled = fragment_builder.doubled(added)
        if doubled:
            # Nothing leads here that is known; rows that are there twice would be worse than a refusal.
            unit, told = f"{doubled} rows", f"{self._source.name} brings them in again"
            has = f"{self._dest.name} has them"
            self._resolver.refuse(Conflict(kind="history", unit=unit, source=told, dest=has))
        manifest = replace(
            dest,
            fields=self._schema.fields,
            table_metadata=maps[0],
            config=maps[1],
            schema_metadata=maps[2],
            next_row_id=space.end if dest.stable_row_ids and added else dest.next_row_id,
        )
        manifest = self._indexed(manifest)
        return MergePlan(
            manifest=manifest,
            changed=changed,
            removed=removed,
            added=tuple(added),
            aliases=aliases if added else {},
            fields={field.id: ids.get(field.id, NO_FIELD) for field in self._source.manifest.fields},
            columns=row_conflicts.columns_moved,
            tally=self._tally(row_conflicts, added),
        )

    def _indexed(self, manifest: Manifest) -> Manifest:
        """Leave of the dest's indices what is still true; those of the source speak for fragments of other ids."""
        manifest = without_fragments(with_relevant(manifest), self._builder.edits.revived)
        for number, (_, columns) in self._builder.edits.columns.items():
            manifest = without_values(manifest, columns, [number])
        before, after = ({index.name for index in indices_of(state)} for state in (self._base, self._source.manifest))
        return without_indices(manifest, before - after)

    def _tally(self, row_conflicts: RowConflicts, added: Sequence[MergedFragment]) -> Tally:
        schema, edits = self._schema, self._builder.edits
        source_rows = self._source_rows.relocated
        inserted = sum(len(edits.taken.get(number, BitMap()) & rows.inserted) for number, rows in source_rows.items())
        filled = {number for merged_fragment in added for file in merged_fragment.files for number in file.fields}
        filled |= {number for _, columns in edits.columns.values() for number in columns}
        lacking = {number: inserted for number in schema.added_by_dest & self._dest_columns.filled if inserted}
        if schema.added_by_source & filled:
            dest_inserted = sum(len(rows.inserted) for rows in self._dest_rows.relocated.values())
            lacking |= {number: dest_inserted for number in schema.added_by_source & filled if dest_inserted}
        paths, before = paths_of(schema.fields), self._dest.manifest.fields
        could_be_null = {field.id for field in before if field.nullable}
        dropped = sum(len(offsets) for offsets in self._losses[1].dropped.values())
        return Tally(
            rows_added=inserted + row_conflicts.rows_back,
            rows_updated=row_conflicts.rows_updated,
            rows_removed=row_conflicts.rows_removed + dropped,
            schema_changed=before != schema.fields,
            columns_changed=bool(edits.columns),
            keeps_nulls=all(field.nullable or field.id not in could_be_null for field in schema.fields),
            needs_backfill={paths[number]: rows for number, rows in sorted(lacking.items()) if number in paths},
        )

    def _parties(self) -> tuple[Party, Party]:
        return (
            Party(side=self._source, columns=self._source_columns, rows=lambda: self._source_rows),
            Party(side=self._dest, columns=self._dest_columns, rows=lambda: self._dest_rows),
        )


def _changed(base: Manifest, side: SideHistory, columns: Columns) -> bool:
    """Tell whether a side changed its schema, or values beside rows."""
    now = {field.id: field for field in side.manifest.fields}
    kept = [now.get(columns.ids.get(field.id, -1)) for field in base.fields]
    same = len(now) == len(kept) and all(
        own is not None and (own.name, own.nullable, own.logical_type) == (was.name, was.nullable, was.logical_type)
        for own, was in zip(kept, base.fields, strict=True)
    )
    return bool(columns.filled) or not same
