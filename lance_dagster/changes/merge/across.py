"""Which column of one line of versions is which of another, where neither is the merge base of a question."""

from collections.abc import Mapping
from dataclasses import dataclass

from lance_dagster.changes.merge.columns import columns_of, named_fields, paths_of
from lance_dagster.changes.merge.matching import match
from lance_dagster.changes.merge.schemas import casts
from lance_dagster.changes.row_spaces import NO_FIELD
from lance_dagster.changes.sides import Side
from lance_dagster.format.model import Manifest


@dataclass(frozen=True, slots=True)
class FieldsAcross:
    """By the id of every field of one version, its id in another one, or `NO_FIELD`; and paths of unlike columns.

    Unlike is a column that both have, of which only one changed the type: values of the one are none of the other.
    """

    ids: Mapping[int, int]
    unlike: tuple[str, ...]


def fields_across(shared: Manifest, one: Side, other: Side) -> FieldsAcross:
    """Match the columns of two versions by what each has of a version from which both come.

    Fields that came since are matched by path and type.

    Args:
        shared: The version from which both come.
        one: What the first version did since.
        other: What the second one did.
    """
    mine, theirs = (columns_of(shared, side, match(shared, side)) for side in (one, other))
    found = {own: theirs.ids.get(number, NO_FIELD) for number, own in mine.ids.items()}
    taken = set(theirs.ids.values())
    free = {named: number for number, named in named_fields(other.manifest).items() if number not in taken}
    by_name = {number: free.get(named, NO_FIELD) for number, named in named_fields(one.manifest).items()}
    cast = [set(casts(columns, shared, side)) for columns, side in ((mine, one), (theirs, other))]
    unlike = [
        path
        for number, path in paths_of(shared.fields).items()
        if (path in cast[0] and number in theirs.ids) or (path in cast[1] and number in mine.ids)
    ]
    return FieldsAcross(by_name | found, tuple(unlike))
