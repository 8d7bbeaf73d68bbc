"""Name who made a change: the versions of a side that made it, with their committers and runs.

Only versions that did what a conflict tells of are named: a version is compared with its predecessor. Where no version
shows the change, since versions were cleaned up or a compaction hides it, the side is named by its newest version.
"""

from collections.abc import Callable, Collection, Iterable

from pyroaring import BitMap

from lance_dagster.format.evolution import subtree
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.transaction import Overwrite, Restore, Rewrite, Update
from lance_dagster.merge.rules.columns.column_matching import fields_written, rows_in_place
from lance_dagster.merge.rules.merge_side import MergeSide
from lance_dagster.merge.rules.row_changes import differing_fragments
from lance_dagster.merge.rules.row_origins import AbsentRows, BaseRows
from lance_dagster.merge.rules.strategy import Rows
from lance_dagster.transactions.claims import Change, SideHistory

FACETS = ("name", "nullable", "logical_type", "extension_name", "primary_key", "clustering_key")
"""The properties of a field beside its id, its parent and its metadata."""


def makers_of(side: SideHistory, state: Callable[[Manifest], object]) -> str:
    """Name who changed one thing on a side, such as a setting or a facet of a column.

    Args:
        side: The side.
        state: Returns the thing as it is in a version.
    """

    def changed(change: Change) -> bool:
        before, after = change.before, change.after
        return before is not None and after is not None and state(before) != state(after)

    return selected(side, changed)


def selected(side: SideHistory, select: Callable[[Change], bool]) -> str:
    """Name who made the selected changes of a side; the side itself where none of its versions shows such a change."""
    return _named(side, [change for change in side.changes if select(change)])


def _named(side: SideHistory, changes: Iterable[Change]) -> str:
    named = [
        f"the revert of {change.version}" if change.undone else f"{change.author} ({change.version})"
        for change in changes or (change for change in side.changes if change.undone)
    ]
    return ", ".join(dict.fromkeys(named)) or side.name


def facet_makers(side: MergeSide, base_id: int, facet: str) -> str:
    """Name who changed a facet of a column of the merge base."""
    return _makers_of_column(side, base_id, lambda field: getattr(field, facet))


def metadata_makers(side: MergeSide, base_id: int, key: str) -> str:
    """Name who changed a key in the metadata of a column of the merge base."""
    return _makers_of_column(side, base_id, lambda field: field.metadata.get(key))


def _makers_of_column(side: MergeSide, base_id: int, state: Callable[[Field], object]) -> str:
    number = side.columns.ids.get(base_id, base_id)

    def state_of(manifest: Manifest) -> object:
        field = _field(manifest, number)
        return None if field is None else state(field)

    return makers_of(side.history, state_of)


def drop_makers(side: MergeSide, base_id: int) -> str:
    """Name who took a column of the merge base out of the schema, to drop it or to give it another type."""
    number = side.columns.anchored.get(base_id, base_id)
    return makers_of(side.history, lambda manifest: _field(manifest, number) is None)


def cast_makers(side: MergeSide, base_id: int) -> str:
    """Name who gave a column of the merge base another type."""
    # A column that was cast twice has had three ids, and the id in between is neither on the side nor in the merge
    # base.
    ids = {side.columns.anchored.get(base_id, base_id), side.cast_fields.get(base_id, base_id)}
    return makers_of(side.history, lambda manifest: {field.id for field in manifest.fields} & ids)


def type_change(side: MergeSide, base_id: int) -> str:
    """Say who gave a column of the merge base another type, or its name to another column."""
    how = "dropped it and gave its name to another column" if base_id in side.replaced_fields else "changed its type"
    return f"{cast_makers(side, base_id)} {how}"


def added_makers(side: MergeSide, number: int) -> str:
    """Name who added a column, given by its id on the side."""
    return makers_of(side.history, lambda manifest: _field(manifest, number) is None)


def name_makers(side: MergeSide, name: str) -> str:
    """Name who gave a column a name."""
    return makers_of(side.history, lambda manifest: {field.id for field in manifest.fields if field.name == name})


def change_makers(side: MergeSide, base: Field) -> str:
    """Name who changed a column of the merge base, or one inside of it, or its values beside rows that stayed."""
    ids = {side.columns.ids.get(field.id, field.id) for field in subtree(side.base.fields, base)}

    def state(manifest: Manifest) -> object:
        return [
            (field.id, field.metadata, *(getattr(field, facet) for facet in FACETS))
            for field in manifest.fields
            if field.id in ids or field.parent_id in ids
        ]

    def changed(change: Change) -> bool:
        before, after = change.before, change.after
        if before is None or after is None:
            return False
        return state(before) != state(after) or not ids.isdisjoint(fields_written(change))

    return selected(side.history, changed)


def schema_makers(side: MergeSide) -> str:
    """Name who changed the columns of a side, or values beside rows that stayed where they are."""

    def changed(change: Change) -> bool:
        before, after = change.before, change.after
        return (
            before is not None and after is not None and (before.fields != after.fields or bool(fields_written(change)))
        )

    return selected(side.history, changed)


def value_makers(side: MergeSide, fields: Collection[int]) -> str:
    """Name who wrote values of fields, given by their ids on the side, beside rows that stayed where they are."""
    return selected(side.history, lambda change: not fields_written(change).isdisjoint(fields))


def row_makers(side: MergeSide, put_in: Rows, removed: BaseRows) -> str:
    """Name who wrote or removed rows; the side itself where its versions do not show it.

    Args:
        side: The side.
        put_in: Rows that it inserted or gave new values, by its fragments.
        removed: Rows of the merge base that it changed or removed, by their fragments there.
    """
    ids_of_changes = {id(side.added_by.get(number)) for number in put_in} | {
        id(change) for change in _changed_rows(side, removed)
    }
    # A compaction, or a version of another branch, hides who wrote some of the rows, so the other versions must not be
    # named as if they had written all rows.
    hidden = id(None) in ids_of_changes
    return _named(side.history, [] if hidden else [each for each in side.history.since if id(each) in ids_of_changes])


def _changed_rows(side: MergeSide, rows: BaseRows) -> list[Change | None]:
    """Return the versions that changed or deleted some rows of the merge base; None among them where one is unknown."""
    anchored = side.fragments.anchored
    # The fragments that the rows may be in, and the offsets of the rows there; None where these are not known.
    places: dict[int, BitMap | None] = {
        anchored[key]: offsets for key, offsets in rows.items() if not isinstance(key, AbsentRows) and key in anchored
    }
    if not rows:
        return []
    versions: list[Change | None] = [] if len(places) == len(rows) else [None]
    for change in side.history.since:
        before, after = change.before, change.after
        if before is None or after is None:
            return [None]
        # Fragments are compared as bytes first: decoding each of thousands for each of thousands of versions is slow.
        differing = differing_fragments(before, after) & places.keys()
        if any(_changes(side, change, number, places[number]) for number in differing):
            # The rows are now in one of the fragments that this version added.
            places |= dict.fromkeys(set(after.fragments.ids) - set(before.fragments.ids))
            versions += [] if isinstance(change.operation, Rewrite) else [change]
    return versions or [None]


def _changes(side: MergeSide, change: Change, number: int, offsets: BitMap | None) -> bool:
    """Tell whether a version moved, changed or deleted some rows of a fragment; any row where `offsets` is None."""
    before, after = change.before, change.after
    if before is None or after is None or (old := before.fragments.find(number)) is None:
        return False
    new, deleted = after.fragments.find(number), side.lookups.deleted
    if new is None:
        return offsets is None or bool(offsets - deleted(before, old))
    # Other operations put files of columns beside rows, which does not change the rows.
    rewritten = old.file_names != new.file_names and isinstance(change.operation, Update | Restore | Overwrite)
    if offsets is None:
        return rewritten or old.deletion != new.deletion
    if old.deletion != new.deletion and (deleted(before, old) ^ deleted(after, new)) & offsets:
        return True
    return rewritten and bool(rows_in_place(change).get(number, offsets) & offsets)


def _field(manifest: Manifest, number: int) -> Field | None:
    return next((field for field in manifest.fields if field.id == number), None)
