"""Merge the schemas of both sides, field by field and facet by facet.

A field is known by its id in the merge base. A field one side added gets an id of the dest's, since both sides count
on from the same number. A cast drops a field and adds another one of the same name with the values converted: rows
that only the other side has would lose their values, so such rows are a conflict (`column_conflicts`).

Where both sides added a column, or cast it, alike, and rows have the same values in both, the result has it once.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from lance_dagster.format.evolution import next_field_id, subtree
from lance_dagster.format.file_versions import takes_nulls
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.schema import with_metadata
from lance_dagster.merge.rules.change_makers import (
    FACETS,
    added_makers,
    change_makers,
    drop_makers,
    facet_makers,
    metadata_makers,
    name_makers,
    type_change,
)
from lance_dagster.merge.rules.columns.column_matching import SideColumns, paths_of, units_of
from lance_dagster.merge.rules.columns.settings_merge import merge_map
from lance_dagster.merge.rules.merge_side import MOST_ROWS_COMPARED, MergeSide, absent_from_base
from lance_dagster.merge.rules.row_origins import BaseKey
from lance_dagster.merge.rules.strategy import (
    BOTH,
    DEST_WINS,
    SOURCE_WINS,
    Conflict,
    ConflictKind,
    Finding,
    ParsedStrategy,
    Winner,
)
from lance_dagster.transactions.row_id_spaces import NO_FIELD


@dataclass(frozen=True, kw_only=True)
class MergedSchema:
    """The fields of the result, and the ids in the result of the fields of the source, by their ids on the source.

    `added_by_source` and `added_by_dest` are the ids in the result of fields that only one side added;
    `kept_by_strategy` are fields of the merge base that the source dropped and the strategy kept; `equal` are fields
    that both sides added with the same values. `findings` are the columns that both sides changed. `file_version` is
    that of the data files.
    """

    fields: tuple[Field, ...]
    from_source: Mapping[int, int]
    added_by_source: frozenset[int]
    added_by_dest: frozenset[int]
    kept_by_strategy: frozenset[int]
    equal: frozenset[int] = frozenset()
    findings: tuple[Finding, ...] = ()
    file_version: str = ""

    @cached_property
    def paths(self) -> dict[int, str]:
        """The path of every field by id."""
        return paths_of(self.fields)

    @cached_property
    def units(self) -> dict[int, str]:
        """The path under which a conflict about the values of a field is reported, by its id."""
        return units_of(self.fields, self.added_by_source | self.added_by_dest)

    def inside(self, units: Collection[str]) -> frozenset[int]:
        """Return the fields that hold the values of some units."""
        around = {field.parent_id for field in self.fields}
        return frozenset(number for number, unit in self.units.items() if unit in units and number not in around)

    def nullable(self, number: int) -> bool:
        """Tell whether a field of the result may be null."""
        return any(field.id == number and takes_nulls(field, self.file_version) for field in self.fields)


def merge_schemas(source: MergeSide, dest: MergeSide, strategy: ParsedStrategy) -> MergedSchema:
    """Merge the schemas of two sides.

    Args:
        source: The side that is merged.
        dest: The side it is merged into.
        strategy: Who wins where both changed a column.
    """
    # Most merges change no column: they should not pay for matching thousands of fields of a wide table.
    if _unchanged(source) and _unchanged(dest):
        ids = {field.id: field.id for field in dest.manifest.fields}
        none: frozenset[int] = frozenset()
        return MergedSchema(
            fields=dest.manifest.fields,
            from_source=ids,
            added_by_source=none,
            added_by_dest=none,
            kept_by_strategy=none,
        )
    return _SchemaMerge(source, dest, strategy).result()


def _unchanged(side: MergeSide) -> bool:
    same_ids = side.columns.ids == {field.id: field.id for field in side.base.fields}
    return side.manifest.fields == side.base.fields and same_ids


class _SchemaMerge:
    """Collects the fields of the result, and the findings."""

    def __init__(self, source: MergeSide, dest: MergeSide, strategy: ParsedStrategy) -> None:
        self._source_side, self._dest_side, self._strategy, self._base = source, dest, strategy, source.base
        self._next: int | None = None
        self._findings: list[Finding] = []
        self._source = {field.id: field for field in source.manifest.fields}
        self._dest = {field.id: field for field in dest.manifest.fields}
        self._paths = paths_of(self._base.fields)
        self._from_source: dict[int, int] = {}
        self._fields: dict[int, Field] = {}
        self._kept: set[int] = set()
        self._equal: set[int] = set()
        # Each side converted the values of these columns by itself; a column of type null had none to convert.
        self._converted = {*source.casts} & {*dest.casts} - {self._paths[number] for number in source.untyped}
        new_paths = [
            {number: paths[own] for number, own in side.cast_fields.items()}
            for side in (source, dest)
            for paths in (paths_of(side.manifest.fields),)
        ]
        # Where both cast a column and gave it one name, the two new columns are reported as two of one name.
        self._cast_apart = {self._paths[number] for number, _ in new_paths[0].items() ^ new_paths[1].items()}

    def _note_conflict(
        self,
        unit: str,
        did: tuple[str, str],
        options: tuple[Winner, ...] = BOTH,
        *,
        kind: ConflictKind = "column",
        advice: str = "",
    ) -> Winner | None:
        """Note a conflict; returns the strategy that settles it."""
        conflict = Conflict(kind=kind, unit=unit, source=did[0], dest=did[1])
        self._findings.append(Finding(conflict=conflict, options=options, advice=advice))
        return self._strategy.winner_of(self._findings[-1])

    def result(self) -> MergedSchema:
        source_ids, dest_ids = self._source_side.columns.ids, self._dest_side.columns.ids
        for field in self._base.fields:
            source_id, dest_id = source_ids.get(field.id), dest_ids.get(field.id)
            if dest_id is not None:
                self._keep_or_change(field, source_id, dest_id)
            elif source_id is not None:
                self._dropped_by_dest(field)
            # A column that both sides dropped is not a conflict, unless one side dropped it to cast it.
            elif self._paths[field.id] in self._cast_apart:
                self._dropped_and_cast(field)
        # The dest's new fields come before the source's: `_bring` looks among them for the same column.
        by_dest = self._added(self._dest, dest_ids)
        by_source = self._added(self._source, source_ids)
        self._fields |= {number: self._dest[number] for number in by_dest}
        added = [new for number in by_source if (new := self._bring(self._source[number], by_dest)) is not None]
        self._check_orphans()
        ordered = _ordered(self._fields, self._order())
        self._check_names(ordered)
        self._check_primary_key(ordered)
        return MergedSchema(
            fields=ordered,
            from_source=self._from_source,
            added_by_source=frozenset(added) & self._fields.keys(),
            added_by_dest=frozenset(by_dest),
            kept_by_strategy=frozenset(self._kept),
            equal=frozenset(self._equal),
            findings=tuple(self._findings),
            file_version=self._dest_side.manifest.file_version,
        )

    def _keep_or_change(self, base: Field, source_id: int | None, dest_id: int) -> None:
        dest = self._dest[dest_id]
        if source_id is not None:
            self._fields[dest_id] = self._facets(base, self._source[source_id], dest)
            self._from_source[source_id] = dest_id
        # The strategy kept the column around this field, so the field stays with it.
        elif dest.parent_id in self._kept:
            self._fields[dest_id] = dest
            self._kept.add(dest_id)
        # Where the column around it was dropped too, the conflict is reported there and not once more for each inner
        # field.
        elif not _around_is_gone(base, self._source_side.columns):
            self._dropped_by_source(base, dest_id)

    def _dropped_by_source(self, base: Field, dest_id: int) -> None:
        if not self._changed_within(base, self._dest, self._dest_side.columns):
            return
        source, dest = drop_makers(self._source_side, base.id), change_makers(self._dest_side, base)
        did = f"{source} dropped it", f"{dest} changed it"
        unit = f"column {self._paths[base.id]}"
        if self._note_conflict(unit, did) == DEST_WINS:
            self._fields[dest_id] = self._dest[dest_id]
            self._kept.add(dest_id)

    def _dropped_by_dest(self, base: Field) -> None:
        if _around_is_gone(base, self._dest_side.columns):
            return
        if self._changed_within(base, self._source, self._source_side.columns):
            source, dest = change_makers(self._source_side, base), drop_makers(self._dest_side, base.id)
            did = f"{source} changed it", f"{dest} dropped it"
            unit = f"column {self._paths[base.id]}"
            # Its values are gone from the dest's files, or may be at the next compaction.
            self._note_conflict(unit, did, (DEST_WINS,))

    def _changed_within(self, base: Field, fields: Mapping[int, Field], columns: SideColumns) -> bool:
        """Tell whether a side changed a field, or one inside of it."""
        inner = subtree(self._base.fields, base)
        own = {columns.ids[field.id] for field in inner if field.id in columns.ids}
        added = any(field.parent_id in own and field.id not in own for field in fields.values())
        return added or any(
            (now := columns.ids.get(field.id)) is None or self._changed(field, fields[now], now in columns.filled)
            for field in inner
        )

    def _dropped_and_cast(self, base: Field) -> None:
        sides = self._source_side, self._dest_side
        did = [
            type_change(side, base.id) if base.id in side.cast_fields else f"{drop_makers(side, base.id)} dropped it"
            for side in sides
        ]
        casters = [side.branch for side in sides if base.id in side.cast_fields]
        advice = f"drop it on {' and '.join(casters)} too, and try again"
        self._note_conflict(f"column {self._paths[base.id]}", (did[0], did[1]), (), advice=advice)

    def _changed(self, base: Field, own: Field, filled: bool) -> bool:  # noqa: FBT001  # three facts of one field
        return (
            filled
            or any(getattr(base, facet) != getattr(own, facet) for facet in FACETS)
            or (base.metadata != own.metadata)
        )

    def _facets(self, base: Field, source: Field, dest: Field) -> Field:
        result = dest
        for facet in FACETS:
            # Facets are merged one by one: a rename on one side does not contradict a changed nullability on the other.
            base_value, source_value, dest_value = (getattr(field, facet) for field in (base, source, dest))
            if source_value in (base_value, dest_value):
                continue
            if dest_value == base_value or self._faceted(base, facet, (source_value, dest_value)) == SOURCE_WINS:
                result = replace(result, **{facet: source_value})
        by = (
            partial(metadata_makers, self._source_side, base.id),
            partial(metadata_makers, self._dest_side, base.id),
        )
        unit = f"metadata of column {self._paths[base.id]}"
        states = (base.metadata, source.metadata, dest.metadata)
        if base.metadata == source.metadata:
            return result
        metadata = merge_map(states, "column", by, self._strategy, unit=unit)
        self._findings += metadata.findings
        # The format repeats parts of the metadata in the field, such as the position in the primary key.
        return with_metadata(result, metadata.values)

    def _faceted(self, base: Field, facet: str, values: tuple[object, object]) -> Winner | None:
        """Note that both sides changed a facet of a column, to different values."""
        sides = zip((self._source_side, self._dest_side), values, strict=True)
        did = [
            f"{facet_makers(side, base.id, facet)} made its {facet.replace('_', ' ')} {value!r}"
            for side, value in sides
        ]
        return self._note_conflict(f"column {self._paths[base.id]}", (did[0], did[1]))

    @staticmethod
    def _added(fields: Mapping[int, Field], matched_ids: Mapping[int, int]) -> list[int]:
        known_ids = set(matched_ids.values())
        return [number for number in fields if number not in known_ids]

    def _bring(self, field: Field, by_dest: Iterable[int]) -> int | None:
        """Take over a field the source added, under an id of the dest's."""
        parent = -1 if field.parent_id < 0 else self._from_source.get(field.parent_id)
        if parent is None:
            # The column around it is gone. Whether that is a conflict was decided for that column.
            return None
        same_named = next(
            (self._dest[n] for n in by_dest if (self._dest[n].name, self._dest[n].parent_id) == (field.name, parent)),
            None,
        )
        if same_named is not None and self._is_same(field, same_named):
            # A third branch was merged into both, or both added it for rows to come.
            self._put_together(field, same_named)
            return None
        if same_named is not None and self._has_equal_values(field, same_named):
            self._put_together(field, same_named)
            self._equal.add(same_named.id)
            return None
        # A merge may have brought the column to the dest, where it was renamed. Without this check the result would
        # have the column twice.
        if same_named is None and (renamed := self._renamed(field, by_dest)) is not None:
            self._from_source[field.id] = renamed
            return None
        if same_named is not None:
            path = paths_of(self._source_side.manifest.fields)[field.id]
            did = _came(self._source_side, field), _came(self._dest_side, same_named)
            did = did if did[0].endswith("type") else (did[0], f"{did[1]} too")
            # The winner's column replaces the other with all fields inside: a list of fields of both could not be read,
            # and neither side made such a struct. The fields of a source that loses are left out with their parent.
            if self._note_conflict(f"column {path}", did, advice=self._rename) != SOURCE_WINS:
                return None
            for inner in subtree(self._dest_side.manifest.fields, same_named):
                self._fields.pop(inner.id, None)
        # The id that the field has on the source may be another column's on the dest, since both lines count on from
        # the same number.
        number = field.id if self._is_back(field) else self._new_id()
        self._from_source[field.id] = number
        self._fields[number] = replace(field, id=number, parent_id=parent)
        return number

    def _new_id(self) -> int:
        number = next_field_id(self._dest_side.manifest) if self._next is None else self._next
        while number in self._fields:
            number += 1
        self._next = number + 1
        return number

    def _is_back(self, field: Field) -> bool:
        """Tell whether a revert brings back a column whose id the dest still has for it, or for none.

        Under another id it would be a new column, and branches that still have it could not be merged.
        """
        source, dest = self._source_side, self._dest_side
        one_line = source.history.same_ids and dest.history.same_ids
        in_use = field.id in self._dest or field.id in self._fields
        if in_use or not one_line or not any(change.undone for change in source.history.changes):
            return False
        # A line may give the id of a dropped column again, to a column that may be dropped in turn.
        return _files_of(dest.manifest, field.id).items() <= _files_of(source.manifest, field.id).items()

    def _put_together(self, field: Field, same_named: Field) -> None:
        """Treat two new columns as one column, with the metadata of both."""
        self._from_source[field.id] = same_named.id
        if field.metadata == same_named.metadata:
            return
        cast = self._source_side.cast_of(field.id)
        before = next((base_field.metadata for base_field in self._base.fields if base_field.id == cast), {})
        by = (
            lambda _: added_makers(self._source_side, field.id),
            lambda _: added_makers(self._dest_side, same_named.id),
        )
        unit = f"metadata of column {paths_of(self._source_side.manifest.fields)[field.id]}"
        states = (before, field.metadata, same_named.metadata)
        merged = merge_map(states, "column", by, self._strategy, unit=unit)
        self._findings += merged.findings
        self._fields[same_named.id] = with_metadata(same_named, merged.values)

    def _is_same(self, field: Field, same_named: Field) -> bool:
        """Tell whether two new columns are the same: one name, one type, and equal values for rows of the merge base.

        Rows that were inserted since bring their own values.
        """
        # Equal values are not certain.
        if field.name in self._converted:
            return False
        if any(getattr(field, facet) != getattr(same_named, facet) for facet in FACETS):
            return False
        # The result would have the fields of both inside, and a list with two items cannot be read. To a struct that
        # both got from a third branch, one side may have added a field since.
        pairs, apart = self._inside_both(field, same_named)
        if apart and not (field.logical_type == "struct" and any(self._in_same_files(*pair) for pair in pairs)):
            return False
        # A nested column is one with all fields inside, or it is another column.
        if not all(self._is_same(source_field, dest_field) for source_field, dest_field in pairs):
            return False
        filled = field.id in self._source_side.columns.filled, same_named.id in self._dest_side.columns.filled
        # Without values for rows of the merge base, both columns read as null there. Equal files prove equal values.
        return not any(filled) or self._in_same_files(field, same_named)

    def _in_same_files(self, field: Field, same_named: Field) -> bool:
        """Tell whether all values of one of two new columns lie in files that both sides have, as the same column."""
        source_files = _files_of(self._source_side.manifest, field.id).items()
        dest_files = _files_of(self._dest_side.manifest, same_named.id).items()
        # One side may have written more fragments since. No file at all proves nothing.
        return bool(source_files and dest_files) and (source_files <= dest_files or dest_files <= source_files)

    def _inside_both(self, field: Field, same_named: Field) -> tuple[list[tuple[Field, Field]], bool]:
        """Return the pairs of fields of one name directly inside two new columns, and whether one has others too."""
        source, dest = (
            {inner.name: inner for inner in fields.values() if inner.parent_id == around.id}
            for fields, around in ((self._source, field), (self._dest, same_named))
        )
        return [(inner, dest[name]) for name, inner in source.items() if name in dest], source.keys() != dest.keys()

    def _has_equal_values(self, field: Field, same_named: Field) -> bool:
        """Tell whether two new columns have the same values for all rows that both sides have as they were.

        Rows that one side put in or gave new values have that side's value only, so there is nothing to compare. Values
        are read, up to `MOST_ROWS_COMPARED` of them.
        """
        source, dest = self._source_side, self._dest_side
        equal = source.lookups.equal_rows
        # A column that one side cast is not the same as one that the other side added under its name.
        cast = source.cast_of(field.id)
        if equal is None or not can_compare_columns(source) or cast != dest.cast_of(same_named.id):
            return False
        # Values of lists, maps and structs are not compared.
        is_nested = any(inner.parent_id == field.id for inner in self._source.values()) or any(
            inner.parent_id == same_named.id for inner in self._dest.values()
        )
        if is_nested or field.parent_id >= 0:
            return False
        if any(getattr(field, facet) != getattr(same_named, facet) for facet in FACETS):
            return False
        keys: list[BaseKey] = [*self._base.fragments.ids, *absent_from_base(source, dest)]
        pairs = [(key, source.of(key), dest.of(key)) for key in keys]
        shared = {
            key: (source_rows.stays | source_rows.moved) & (dest_rows.stays | dest_rows.moved)
            for key, source_rows, dest_rows in pairs
        }
        rows = sum(map(len, shared.values()))
        if not rows:
            # No values show that two added columns mean the same. Two casts of one column to one type do.
            return cast is not None
        if rows > MOST_ROWS_COMPARED:
            return False
        addresses = [
            np.concatenate([side.addresses_of_all(key, rows) for key, rows in shared.items()])
            for side in (source, dest)
        ]
        matched = {field.id: same_named.id}
        return bool(equal((source.manifest, addresses[0]), (dest.manifest, addresses[1]), matched).all())

    def _renamed(self, field: Field, by_dest: Iterable[int]) -> int | None:
        """Return the field the dest added with values in the same files: the same column, which the dest renamed."""
        # A field that went with the column around it is not in the result.
        in_result = self._fields.keys()
        same_type = [n for n in by_dest if n in in_result and self._dest[n].logical_type == field.logical_type]
        source_files = _files_of(self._source_side.manifest, field.id) if same_type else {}
        same_files = (
            number
            for number in same_type
            if source_files and _files_of(self._dest_side.manifest, number).items() >= source_files.items()
        )
        return next(same_files, None)

    def _check_orphans(self) -> None:
        """Refuse a field that one side added or changed inside a column that the other side dropped."""
        for field in list(self._fields.values()):
            if field.parent_id >= 0 and field.parent_id not in self._fields:
                source, dest, base_ids = self._source_side, self._dest_side, self._dest_side.columns.base_ids
                path = paths_of(dest.manifest.fields).get(field.id, field.name)
                around, base_id = base_ids.get(field.parent_id), base_ids.get(field.id)
                base = next((base_field for base_field in self._base.fields if base_field.id == base_id), None)
                dropped = source.name if around is None else drop_makers(source, around)
                changed = added_makers(dest, field.id) if base is None else change_makers(dest, base)
                did = f"{dropped} dropped the struct that contains it", f"{changed} added or changed it"
                advice = f"drop it on {dest.branch} too, and try again"
                self._note_conflict(f"column {path}", did, (), advice=advice)
                del self._fields[field.id]

    def _check_names(self, fields: tuple[Field, ...]) -> None:
        # Two columns can get one name though no field changed on both sides, such as by a rename on one side and an
        # added column on the other. So names are checked on the merged schema.
        fields_by_name: dict[tuple[int, str], Field] = {}
        paths = paths_of(fields)
        # A column that a strategy kept may stand beside the column that replaced it. That is the same conflict about
        # this column, which the strategy does not settle, and not a second conflict.
        decided = {finding.conflict.unit for finding in self._findings if finding.conflict.kind == "column"}
        for field in fields:
            namesake = fields_by_name.setdefault((field.parent_id, field.name), field)
            if namesake is not field:
                again = f"column {paths[field.id]}" in decided
                self._note_conflict(
                    f"column {paths[field.id] if again else field.name}",
                    (
                        f"{name_makers(self._source_side, field.name)} gave a column this name",
                        f"{name_makers(self._dest_side, field.name)} gave another column the same",
                    ),
                    (),
                    kind="column" if again else "schema",
                    advice=self._rename,
                )

    def _check_primary_key(self, fields: tuple[Field, ...]) -> None:
        """Refuse a primary key that may be null, itself or around it: no reader would open the table."""
        by_id = {field.id: field for field in fields}
        own_ids = {new: number for number, new in self._from_source.items()}
        for field in (candidate for candidate in fields if candidate.primary_key):
            at: Field | None = field
            while at is not None and not at.nullable:
                at = by_id.get(at.parent_id)
            if at is None:
                continue
            by_source = field.id in own_ids and self._source[own_ids[field.id]].primary_key
            sides = self._source_side, self._dest_side
            keyed, nulled = sides if by_source else sides[::-1]
            base_ids = self._dest_side.columns.base_ids
            key_by = facet_makers(keyed, base_ids.get(field.id, NO_FIELD), "primary_key")
            null_by = facet_makers(nulled, base_ids.get(at.id, NO_FIELD), "nullable")
            did = f"{key_by} made it a primary key", f"{null_by} allowed nulls in {at.name!r}"
            self._note_conflict(
                f"column {paths_of(fields)[field.id]}",
                did if by_source else did[::-1],
                (),
                advice=f"forbid nulls in {at.name!r} on {nulled.branch} (`columns.set_nullable`), or take the key out "
                f"of the metadata on {keyed.branch}, and try again",
            )

    @property
    def _rename(self) -> str:
        """The advice for two columns of one name."""
        return f"rename the column on {self._source_side.branch} or {self._dest_side.branch}, and try again"

    def _order(self) -> list[int]:
        """Return the ids of the result's fields in the order of one side: of the source where only it changed that.

        A field that the source brings stands before the field that follows it on the source; so a column that was cast,
        or comes back, has its place again.
        """
        source_ids, dest_ids = self._source_side.columns.ids, self._dest_side.columns.ids
        shared = [field.id for field in self._base.fields if field.id in source_ids and field.id in dest_ids]
        base_of_source = self._source_side.columns.base_ids
        base_of_dest = self._dest_side.columns.base_ids
        by_source = [base_of_source[n] for n in self._source if base_of_source.get(n) in shared]
        by_dest = [base_of_dest[n] for n in self._dest if base_of_dest.get(n) in shared]
        dest_order = list(self._dest)
        if by_dest == shared and by_source != shared:
            # Only the shared columns change places; columns that the dest added keep their places.
            moved = iter([dest_ids[number] for number in by_source])
            places = {dest_ids[number] for number in shared}
            dest_order = [next(moved) if number in places else number for number in dest_order]
        follower, following = {}, dict[int, int]()
        for number, field in reversed(self._source.items()):
            new = self._from_source.get(number)
            if new in self._dest:
                following[field.parent_id] = new
            elif new is not None:
                follower[new] = following.get(field.parent_id)
        # Fields with the same follower keep their order, because they are inserted from the first to the last.
        for new, before in reversed(follower.items()):
            dest_order.insert(len(dest_order) if before is None else dest_order.index(before), new)
        return dest_order


def _came(side: MergeSide, field: Field) -> str:
    """Say how a field that the merge base lacks came to a side."""
    cast = side.cast_of(field.id)
    if cast is not None and cast not in side.replaced_fields:
        return type_change(side, cast)
    return f"{added_makers(side, field.id)} added it"


def can_compare_columns(side: MergeSide) -> bool:
    """Tell whether whole columns of both sides may be compared: rows can be traced, and there are few of them."""
    rows = sum(fragment.physical_rows for fragment in side.base.fragments)
    return side.base.stable_row_ids and side.lookups.equal_rows is not None and rows <= MOST_ROWS_COMPARED


def _around_is_gone(base: Field, columns: SideColumns) -> bool:
    """Tell whether a side dropped the column around a field."""
    return base.parent_id >= 0 and base.parent_id not in columns.ids


def _files_of(manifest: Manifest, number: int) -> dict[str, int]:
    """Return the files that hold values of a field, and in which of their columns."""
    return {
        file.path: file.column_indices[file.fields.index(number)] if file.column_indices else file.fields.index(number)
        for fragment in manifest.fragments
        for file in fragment.files
        if number in file.fields
    }


def _ordered(fields: Mapping[int, Field], order: Iterable[int]) -> tuple[Field, ...]:
    """Return fields depth first, fields of the same parent in the order given."""
    children: dict[int, list[Field]] = {}
    for number in dict.fromkeys(order):
        if number in fields:
            children.setdefault(fields[number].parent_id, []).append(fields[number])
    ordered: list[Field] = []
    pending = list(reversed(children.get(-1, [])))
    while pending:
        field = pending.pop()
        ordered.append(field)
        pending.extend(reversed(children.get(field.id, [])))
    return tuple(ordered)
