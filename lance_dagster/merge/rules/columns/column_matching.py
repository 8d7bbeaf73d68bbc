"""Match the fields of a side with those of the merge base, and find the fields that got values of their own since.

A field keeps its id as long as it is in the schema. An id that was dropped and came back may belong to another column,
so the schemas of all versions in between are looked at, where these still exist.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from lance_dagster.format.layout import MAIN
from lance_dagster.format.model import Field, Fragment, Manifest
from lance_dagster.format.transaction import (
    CASTS,
    CASTS_OF_SOURCE,
    CHANGE_ORIGIN_PROPERTIES,
    COLUMNS_MOVED,
    MERGE,
    DataReplacement,
    Merge,
    Overwrite,
    Restore,
    Rewrite,
    Update,
)
from lance_dagster.merge.rules.row_changes import MatchedFragments, match_fragments
from lance_dagster.transactions.claims import Change, SideHistory
from lance_dagster.transactions.row_id_spaces import NO_FIELD
from lance_dagster.transactions.row_lineage import offsets_rewritten_in_place

_CAST = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideColumns:
    """The fields of a side.

    `anchored` maps the id of a field of the merge base to its id in the side's anchor, and `ids` to its id on the side,
    where it was not dropped. `filled_by_fragment` are the ids, as the side has them, of fields that got values beside
    their rows since (added columns with values, and columns written anew in place), by the fragment of the merge base
    whose rows these were; under None are fields for rows that may be from any fragment. `nulls` are fields that the
    side added and never filled: at most, a compaction wrote their nulls. `in_place` are, by the fragment of the merge
    base, fields that updates wrote into a new file to change single rows, which the updates name: these rows count as
    updated, and the field does not count as written.
    """

    anchored: Mapping[int, int]
    ids: Mapping[int, int]
    filled_by_fragment: Mapping[int | None, frozenset[int]]
    in_place: Mapping[int | None, frozenset[int]]
    nulls: frozenset[int] = frozenset()

    def of_single_rows(self, base_id: int) -> frozenset[int]:
        """Return the fields that updates changed in place, in single rows of a fragment of the merge base only."""
        return self.in_place.get(base_id, frozenset()) - self.written_beside(base_id)

    def written_beside(self, base_id: int | None) -> frozenset[int]:
        """Return the fields that may have got values beside rows that were in a fragment of the merge base."""
        nothing: frozenset[int] = frozenset()
        return self.filled_by_fragment.get(base_id, nothing) | self.filled_by_fragment.get(None, nothing)

    @property
    def filled(self) -> frozenset[int]:
        """All fields that got values beside rows since."""
        return frozenset().union(*self.filled_by_fragment.values())

    @property
    def base_ids(self) -> dict[int, int]:
        """The id that each field of the side has in the merge base, by its id on the side."""
        return {own: number for number, own in self.ids.items()}


def columns_of(base: Manifest, side: SideHistory, matched: MatchedFragments) -> SideColumns:
    """Find out what became of the columns of the merge base on one side."""
    through = side.anchor if side.anchor is not None else side.manifest
    if side.anchor is not None and side.same_ids:
        # The merge base is a version of this line, on which an anchored field has one id.
        anchored = {field.id: field.id for field in base.fields}
    else:
        anchored = _corresponding(base, through, matched, side.fields)
    kept_ids = (
        _fields_kept(side, through, matched)
        if side.anchor is not None
        else {field.id for field in side.manifest.fields}
    )
    live = {field.id for field in side.manifest.fields}
    ids = {number: own for number, own in anchored.items() if own in kept_ids and own in live}
    origin = {own: number for number, own in matched.anchored.items()}
    filled: dict[int | None, frozenset[int]] = {}
    in_place: dict[int | None, frozenset[int]] = {}
    for change in side.changes:
        for own, fields in _written_for_rows(change).items():
            number = origin.get(own)
            in_place[number] = in_place.get(number, frozenset()) | (fields & live)
        for own, fields in _fields_beside_rows(change).items():
            number = origin.get(own)
            filled[number] = filled.get(number, frozenset()) | (fields & live)
        # A merge records these fields once for the version and not by fragment, so they count for rows of any fragment.
        filled[None] = filled.get(None, frozenset()) | (_columns_moved(change) & live)
    if any(change.after is None for change in side.changes):
        # A version is gone, so it is unknown beside which rows new fields were written: they count for all rows.
        filled[None] = filled.get(None, frozenset()) | (live - set(ids.values()))
    return SideColumns(anchored=anchored, ids=ids, filled_by_fragment=filled, nulls=_nulls(side), in_place=in_place)


def backing(fragment: Fragment) -> dict[int, str]:
    """Return which file of a fragment holds the values of each field."""
    return {number: file.path for file in fragment.files for number in file.fields if number >= 0}


def paths_of(fields: tuple[Field, ...]) -> dict[int, str]:
    """Return the path of every field by id: the names from the column down, joined by dots."""
    paths: dict[int, str] = {}
    for field in fields:
        above = paths.get(field.parent_id)
        paths[field.id] = field.name if above is None else f"{above}.{field.name}"
    return paths


def units_of(fields: tuple[Field, ...], added: Collection[int]) -> dict[int, str]:
    """Return for every field by id the path under which a conflict about it is reported and settled.

    The fields inside a list or a map have one set of offsets, so a reader needs all of them from one side. They are one
    unit, and so is a nested column that a side added; fields of other structs are units of their own.

    Args:
        fields: The fields of a version.
        added: The ids of the fields that are new.
    """
    paths, undivided = paths_of(fields), set[int]()
    for field in fields:
        if field.parent_id in undivided:
            paths[field.id] = paths[field.parent_id]
        if field.parent_id in undivided or field.id in added or field.logical_type != "struct":
            undivided.add(field.id)
    return paths


def columns_among(versions: Iterable[Manifest]) -> list[str]:
    """Return the paths of all fields that some versions have, each once."""
    return list(dict.fromkeys(path for manifest in versions for path in paths_of(manifest.fields).values()))


def named_fields(manifest: Manifest) -> dict[int, tuple[str, str]]:
    """Return the path and the logical type of every field by id."""
    paths = paths_of(manifest.fields)
    return {field.id: (paths[field.id], field.logical_type) for field in manifest.fields}


def cast_fields(columns: SideColumns, base: Manifest, side: SideHistory) -> dict[int, int]:
    """Return each column whose type a side changed, by its id in the merge base, with the id of its new field.

    A column that was dropped counts as cast if a new column has its path: versions in between may be gone, and a
    program may cast a column by adding a new column and giving it the old name. The other side's rows are refused then,
    which is safe even if the two columns have nothing in common.
    """
    cast, known_ids = cast_in_one_version(columns, base, side), set(columns.ids.values())
    added = {path: number for number, path in paths_of(side.manifest.fields).items() if number not in known_ids}
    for number, path in paths_of(base.fields).items():
        if number not in columns.ids and path in added:
            cast.setdefault(number, added[path])
    return cast


def cast_in_one_version(columns: SideColumns, base: Manifest, side: SideHistory) -> dict[int, int]:
    """Return the cast columns whose cast a single version of the side shows."""
    known_ids, paths = set(columns.ids.values()), paths_of(base.fields)
    origin = {field.id: field.id for field in base.fields if field.id not in columns.anchored}
    origin |= {own: number for number, own in columns.anchored.items()}
    cast: dict[int, int] = {}
    for change in (*side.changes, *side.since):
        steps = _cast_by(change)
        # All casts are looked up before any is recorded: a version may cast a column and give its name to another
        # column. A column that is cast again is still the same column.
        cast |= {new: was for old, new in steps.items() if (was := cast.get(old, origin.get(old))) is not None}
    live = {field.id for field in side.manifest.fields} - known_ids
    return {number: own for own, number in cast.items() if own in live and number in paths}


def casts(columns: SideColumns, base: Manifest, side: SideHistory) -> list[str]:
    """Return the paths in the merge base of columns whose type a side changed, under whatever name it has them."""
    paths = paths_of(base.fields)
    return sorted({paths[number] for number in cast_fields(columns, base, side)})


@dataclass(frozen=True, slots=True)
class FieldsAcross:
    """The id in another version, or `NO_FIELD`, of every field of a version by its id; and incompatible columns.

    A column is incompatible where both versions have it and only one changed its type: values of one do not fit the
    other.
    """

    ids: Mapping[int, int]
    incompatible: tuple[str, ...]


def fields_across(shared: Manifest, first: SideHistory, second: SideHistory) -> FieldsAcross:
    """Match the columns of two versions through a version from which both descend.

    Fields that were added since are matched by path and type.

    Args:
        shared: The version from which both descend.
        first: What the first version did since.
        second: What the second version did since.
    """
    one_columns, other_columns = (columns_of(shared, side, match_fragments(shared, side)) for side in (first, second))
    matched = {own: other_columns.ids.get(number, NO_FIELD) for number, own in one_columns.ids.items()}
    matched_ids = set(other_columns.ids.values())
    free = {named: number for number, named in named_fields(second.manifest).items() if number not in matched_ids}
    by_name = {number: free.get(named, NO_FIELD) for number, named in named_fields(first.manifest).items()}
    cast = [set(casts(columns, shared, side)) for columns, side in ((one_columns, first), (other_columns, second))]
    incompatible = [
        path
        for number, path in paths_of(shared.fields).items()
        if (path in cast[0] and number in other_columns.ids) or (path in cast[1] and number in one_columns.ids)
    ]
    # A match by the shared version wins over a match by name: a renamed column is still the same column.
    return FieldsAcross(by_name | matched, tuple(incompatible))


def _corresponding(
    base: Manifest, anchor: Manifest, matched: MatchedFragments, recorded: Mapping[int, int] | None
) -> dict[int, int]:
    """Match fields across lines by the files that hold their values, or else by the ids that a merge recorded.

    Where no ids were recorded, and `recorded` is None, they are matched by path and type.
    """
    matched_fields: dict[int, int] = {}
    # Files name fields that were dropped since as well. Two lines hand out the same ids to different columns, so a file
    # that both have is the only proof: it has the values of one column in one place.
    live = [{field.id for field in state.fields} for state in (base, anchor)]
    for number, own in matched.anchored.items():
        base_fragment, anchor_fragment = base.fragment(number), anchor.fragments.find(own)
        files = {file.path: file for file in anchor_fragment.files} if anchor_fragment is not None else {}
        for file in base_fragment.files:
            same = files.get(file.path)
            # In one file, the field at the same position is the same column, whatever id each line gave it.
            if same is not None and len(same.fields) == len(file.fields):
                pairs = zip(file.fields, same.fields, strict=True)
                matched_fields.update(
                    (base_id, other_id) for base_id, other_id in pairs if base_id in live[0] and other_id in live[1]
                )
    _add_parents(base, anchor, matched_fields)
    matched_ids = set(matched_fields.values())
    # A field that files have matched is not matched again by name: a rename may have given its old name to another
    # column.
    for number, image in _matching_fields(base, anchor, recorded):
        if number not in matched_fields and image not in matched_ids:
            matched_fields[number] = image
            matched_ids.add(image)
    return matched_fields


def _matching_fields(base: Manifest, anchor: Manifest, recorded: Mapping[int, int] | None) -> Iterator[tuple[int, int]]:
    """Return pairs of fields of both versions that may be the same, by known ids and type, or else by path and type."""
    if recorded is None:
        by_name = {named: number for number, named in named_fields(anchor).items()}
        for number, named in named_fields(base).items():
            if named in by_name:
                yield number, by_name[named]
        return
    there_are = {field.id: field.logical_type for field in anchor.fields}
    for field in base.fields:
        image = recorded.get(field.id, field.id)
        if there_are.get(image) == field.logical_type:
            yield field.id, image


def _add_parents(base: Manifest, anchor: Manifest, matched_fields: dict[int, int]) -> None:
    """Match the parents of matched fields: files name only the fields that hold values."""
    base_parents, other_parents = ({field.id: field.parent_id for field in state.fields} for state in (base, anchor))
    for base_id, anchor_id in list(matched_fields.items()):
        # Both are followed upwards together; a match that was found by files is not replaced.
        while (base_id := base_parents.get(base_id, -1)) >= 0 and (anchor_id := other_parents.get(anchor_id, -1)) >= 0:
            matched_fields.setdefault(base_id, anchor_id)


def _fields_kept(side: SideHistory, anchor: Manifest, matched: MatchedFragments) -> set[int]:
    """Return the ids of the anchor's fields that were never out of the schema since."""
    kept_ids = {field.id for field in anchor.fields}
    anchor_fields = named_fields(anchor)
    states = {anchor.version: set(kept_ids)}
    for change in (*side.since, *(change for change in side.changes if change.undone)):
        after = change.before if change.undone else change.after
        if after is None:
            continue
        if isinstance(change.operation, Restore) and change.operation.version in states:
            kept_ids = set(states[change.operation.version])
        elif isinstance(change.operation, Overwrite | Restore):
            # Its schema is new, and a column of the same id, name and type is taken to be the same.
            kept_ids = {
                number
                for number, named in named_fields(after).items()
                if anchor_fields.get(number) == named or _has_files_of(number, side.manifest, anchor, matched)
            }
            kept_ids |= _around(kept_ids, anchor) & _around(kept_ids, after)
        else:
            # A field that was out of the schema once does not count again: after a drop and a compaction, Lance may
            # give its id to another column.
            kept_ids &= {field.id for field in after.fields}
            kept_ids |= _back_by_revert(change, anchor_fields)
        states[after.version] = set(kept_ids)
    return kept_ids & {field.id for field in side.manifest.fields}


def _back_by_revert(change: Change, anchor_fields: Mapping[int, tuple[str, str]]) -> set[int]:
    """Return the fields that a version has again because it reverts their drop; a revert gives fields their old ids.

    Args:
        change: The version.
        anchor_fields: The names and types of the fields of the anchor.
    """
    properties = change.transaction.properties if change.transaction is not None else {}
    if change.undone or CHANGE_ORIGIN_PROPERTIES.isdisjoint(properties):
        return set()
    if change.before is None or change.after is None:
        return set()
    earlier_ids = {field.id for field in change.before.fields}
    return {
        number
        for number, named in named_fields(change.after).items()
        if number not in earlier_ids and anchor_fields.get(number) == named
    }


def _around(fields: Iterable[int], manifest: Manifest) -> set[int]:
    """Return the parents of some fields: they have no values of their own by which they could be matched."""
    parents, around = {field.id: field.parent_id for field in manifest.fields}, set[int]()
    for number in fields:
        while (number := parents.get(number, -1)) >= 0:
            around.add(number)
    return around


def _has_files_of(number: int, manifest: Manifest, anchor: Manifest, matched: MatchedFragments) -> bool:
    """Tell whether a field has its values in the same files as before, so that it is the same under any name."""
    for base_id, own in matched.anchored.items():
        place, then = matched.place(base_id), anchor.fragments.find(own)
        if place is not None and then is not None and place.id in manifest.fragments.ids:
            path = backing(then).get(number)
            return path is not None and path == backing(place).get(number)
    return False


def _columns_moved(change: Change) -> frozenset[int]:
    """Return the fields for which a merge added values with rows that it moved."""
    recorded = change.transaction.properties.get(COLUMNS_MOVED, "") if change.transaction is not None else ""
    return frozenset(int(number) for number in recorded.split(",") if number.isascii() and number.isdigit())


def fields_after(change: Change) -> dict[int, int]:
    """Return the id in a version of each field that it took over from the version before, by the id there.

    A column that was dropped is not in it, also where another column has its name then.
    """
    if change.before is None or change.after is None:
        return {}
    after = {field.id for field in change.after.fields}
    if isinstance(change.operation, Overwrite):
        # An overwrite numbers its fields anew.
        old, new = (paths_of(manifest.fields) for manifest in (change.before, change.after))
        numbers = {path: number for number, path in new.items()}
        return {number: numbers[path] for number, path in old.items() if path in numbers}
    unchanged = {field.id: field.id for field in change.before.fields if field.id in after}
    return unchanged | {old: new for old, new in _cast_by(change).items() if new in after}


def _cast_by(change: Change) -> dict[int, int]:
    """Return the fields that a version replaced by one of another type, by id, with the ids of the new fields."""
    new_ids = _recorded_casts(change)
    before, after, operation = change.before, change.after, change.operation
    if before is not None and after is not None and isinstance(operation, Merge | Overwrite):
        # A merge may drop one column and bring another column to its place, so it records its casts.
        recorded = change.transaction is not None and CASTS in change.transaction.properties
        same_place = {} if recorded or isinstance(operation, Overwrite) else _in_same_place(before, after)
        # Recorded casts and positions take precedence over paths: the name may be another column's by now.
        new_ids = _of_same_path(before, after) | same_place | new_ids
    # A change that is taken back goes from the new field to the old field.
    return {new: old for old, new in new_ids.items()} if change.undone else new_ids


def _recorded_casts(change: Change) -> dict[int, int]:
    properties = change.transaction.properties if change.transaction is not None else {}
    before = change.before
    # Seen from its second parent, a merge changed what the source did not have. The ids are the source's then.
    from_source = before is not None and properties.get(MERGE) == f"{before.branch or MAIN}@{before.version}"
    recorded = properties.get(CASTS_OF_SOURCE if from_source else CASTS, "")
    return {int(pair[1]): int(pair[2]) for record in recorded.split(",") if (pair := _CAST.fullmatch(record))}


def _of_same_path(before: Manifest, after: Manifest) -> dict[int, int]:
    """Return dropped fields, each with the added field of the same path."""
    old, new = paths_of(before.fields), paths_of(after.fields)
    came = {path: number for number, path in new.items() if number not in old}
    return {number: came[path] for number, path in old.items() if number not in new and path in came}


def _in_same_place(before: Manifest, after: Manifest) -> dict[int, int]:
    """Return dropped fields, each with the field added in its position, where every other field kept its position.

    pylance renames and casts a column in one version. The new field has the place of the old one, while columns that
    are only added come last.
    """
    new_ids: dict[int, int] = {}
    ids = [{field.id for field in state.fields} for state in (before, after)]
    children = [_children(state) for state in (before, after)]
    for parent in children[0].keys() & children[1].keys():
        old, new = children[0][parent], children[1][parent]
        pairs = [(old_id, two) for old_id, two in zip(old, new, strict=False) if old_id != two]
        # In a version that also moved fields, positions prove nothing.
        if all(old_id not in ids[1] and two not in ids[0] for old_id, two in pairs):
            new_ids |= dict(pairs)
    return new_ids


def _children(manifest: Manifest) -> dict[int, list[int]]:
    """Return the fields within each field, in their order; whole columns under -1."""
    children: dict[int, list[int]] = {}
    for field in manifest.fields:
        children.setdefault(field.parent_id, []).append(field.id)
    return children


def _fields_beside_rows(change: Change) -> dict[int, frozenset[int]]:
    """Return, for each fragment, which fields a version wrote beside rows that stayed where they were."""
    operation, before, after = change.operation, change.before, change.after
    # The mode of an update is not relied on: pylance leaves it to the caller to say that columns are written anew.
    in_place = isinstance(operation, Merge | DataReplacement | Restore | Update)
    if not in_place or before is None or after is None:
        return {}
    # Where the version names the rows that it changed, those rows count as updated. Counting the column as written too
    # would make a conflict with changes of all other rows of the fragment.
    as_columns = set(before.fragments.ids) - rows_in_place(change).keys()
    return {number: fields for number, fields in _backed_anew(before, after) if number in as_columns}


def fields_written(change: Change) -> frozenset[int]:
    """Return the fields that a version wrote beside rows that stayed where they were, by its ids."""
    return frozenset().union(*_fields_beside_rows(change).values(), _columns_moved(change))


def rows_in_place(change: Change) -> dict[int, BitMap]:
    """Return, for each fragment, the rows that a version updated in place, if the version names them.

    Without stable row ids nothing is returned: later versions cannot be searched for these rows, so whole columns count
    as written.
    """
    operation, before, after = change.operation, change.before, change.after
    if not isinstance(operation, Update) or not (operation.updated_offsets or operation.updated_offset_bitmaps):
        return {}
    if before is None or after is None or not after.stable_row_ids:
        return {}
    there = {fragment.id for fragment in operation.updated_fragments} & {*before.fragments.ids} & {*after.fragments.ids}
    offsets_by_fragment = {number: offsets_rewritten_in_place(operation, number) for number in sorted(there)}
    return {number: offsets for number, offsets in offsets_by_fragment.items() if offsets}


def _written_for_rows(change: Change) -> dict[int, frozenset[int]]:
    """Return, for each fragment, the fields that a version wrote into a new file for single rows."""
    rows = rows_in_place(change)
    if not rows or change.before is None or change.after is None:
        return {}
    return {number: fields for number, fields in _backed_anew(change.before, change.after) if number in rows}


def _backed_anew(before: Manifest, after: Manifest) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield, for each fragment of a version, the fields that have another file than in the version before."""
    old = dict(zip(before.fragments.ids, before.fragments.items, strict=True))
    for number, item in zip(after.fragments.ids, after.fragments.items, strict=True):
        old_item = old.get(number)
        # Most fragments that changed only lost rows, which shows without decoding them.
        if old_item != item and (old_item is None or not after.fragments.same_files(number, before.fragments)):
            old_files = backing(before.fragment(number)) if number in old else {}
            yield (
                number,
                frozenset(own for own, path in backing(after.fragment(number)).items() if old_files.get(own) != path),
            )


def _nulls(side: SideHistory) -> frozenset[int]:
    """Return the fields that a side added and never filled."""
    added, filled = set[int](), set[int]()
    # A pick looks at the side from another line, where it has no anchor. The versions that the other side does not
    # contain are looked at then.
    for change in side.since if side.anchor is not None else side.changes:
        before, after = change.before, change.after
        if before is None or after is None or change.undone or isinstance(change.operation, Overwrite | Restore):
            return frozenset()
        added |= {field.id for field in after.fields} - {field.id for field in before.fields}
        # A compaction writes the nulls of an added column into its new files. That does not fill the column.
        if added and not isinstance(change.operation, Rewrite):
            filled |= frozenset().union(*(fields for _, fields in _backed_anew(before, after)))
    return frozenset(added - filled)
