"""Match the fields of two versions and describe what differs between them. Pure.

Two fields are the same when a data file of both versions says so: the file names the column that holds the field, and
a file never changes. Equal ids alone prove little, since each branch hands out ids of its own and an overwrite starts
again. Where no file tells, fields of equal names are the same. Remaining fields of equal id and type were renamed,
unless an overwrite or a restore lies between the versions. A cast gives a column a new id under its old name.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lance_dagster.errors import FormatError
from lance_dagster.format.evolution import subtree
from lance_dagster.format.model import Field
from lance_dagster.format.schema import arrow_from_fields

FieldChangeKind = Literal["added", "dropped", "renamed", "retyped", "nullability", "moved"]
ADDED: Literal["added"] = "added"
DROPPED: Literal["dropped"] = "dropped"
RENAMED: Literal["renamed"] = "renamed"
RETYPED: Literal["retyped"] = "retyped"
NULLABILITY: Literal["nullability"] = "nullability"
MOVED: Literal["moved"] = "moved"
_TOP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One change of a field.

    Attributes:
        kind: "added", "dropped", "renamed", "retyped", "nullability", or "moved" to another position among its
            siblings.
        path: The dotted name of the field in the newer version, or of a dropped field in the older version.
        before: The old name, type, "null" or "not null", or position counted from 0, as the kind requires.
        after: The same in the newer version.
    """

    kind: FieldChangeKind
    path: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        """Return the change as one line."""
        match self.kind:
            case "added":
                return f"+ {self.path}: {self.after}"
            case "dropped":
                return f"- {self.path}: {self.before}"
            case "renamed":
                return f"~ {self.path}: renamed from {self.before}"
            case "moved":
                return f"~ {self.path}: moved from place {self.before} to {self.after}"
            case _:
                return f"~ {self.path}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a version as a tree."""

    by_id: Mapping[int, Field]
    children: Mapping[int, tuple[Field, ...]]

    @classmethod
    def of(cls, fields: Sequence[Field]) -> "Fields":
        """Build the tree."""
        children: dict[int, list[Field]] = {}
        for field in fields:
            children.setdefault(field.parent_id, []).append(field)
        return cls(
            {field.id: field for field in fields},
            {parent: tuple(fields_inside) for parent, fields_inside in children.items()},
        )

    def below(self, field: Field | None) -> tuple[Field, ...]:
        """Return the children of a field; None is the root, whose children are the columns."""
        return self.children.get(_TOP if field is None else field.id, ())

    def path(self, field: Field) -> str:
        """Return the dotted name of a field."""
        parent = self.by_id.get(field.parent_id)
        return field.name if parent is None else f"{self.path(parent)}.{field.name}"

    def column(self, field: Field) -> Field:
        """Return the top-level column that a field belongs to."""
        parent = self.by_id.get(field.parent_id)
        return field if parent is None else self.column(parent)

    def type_of(self, field: Field) -> str:
        """Return the Arrow type of a field as text."""
        # The field becomes a column of a schema of its own, since Arrow types are built for whole schemas.
        own = subtree(tuple(self.by_id.values()), field)
        try:
            schema = arrow_from_fields((replace(field, parent_id=_TOP), *own[1:]))
        # A type that this package does not know is shown as the format names it.
        except FormatError:
            return field.logical_type
        return str(schema.field(0).type)


def match_fields(before: Fields, after: Fields, proven: Mapping[int, int], shared_below: int) -> dict[int, int]:
    """Match the fields of two versions.

    Args:
        before: The fields of the older version.
        after: The fields of the newer version.
        proven: Matches that data files prove: the id in the newer version by the id in the older version.
        shared_below: Ids below this were handed out before the versions diverged, so an equal id suggests one field.

    Returns:
        The id in the newer version by the id in the older version.
    """
    # A struct has no column of its own in newer files, so its match follows from the matches of its children.
    proven_ids = dict(proven)
    for old, new in proven.items():
        old_field, new_field = before.by_id.get(old), after.by_id.get(new)
        while old_field is not None and new_field is not None:
            proven_ids.setdefault(old_field.id, new_field.id)
            old_field, new_field = before.by_id.get(old_field.parent_id), after.by_id.get(new_field.parent_id)
    matches: dict[int, int] = {}
    _match_level(None, None, _Evidence(before, after, proven_ids, shared_below, matches))
    return matches


@dataclass(frozen=True, slots=True)
class _Evidence:
    before: Fields
    after: Fields
    proven: Mapping[int, int]
    shared_below: int
    matches: dict[int, int]


def _match_level(old_parent: Field | None, new_parent: Field | None, evidence: _Evidence) -> None:
    olds = {field.id: field for field in evidence.before.below(old_parent)}
    news = {field.id: field for field in evidence.after.below(new_parent)}
    pairs: list[tuple[Field, Field]] = []

    def pair(old: Field, new: Field | None) -> None:
        if new is not None and new.id in news:
            pairs.append((olds.pop(old.id), news.pop(new.id)))

    for old in list(olds.values()):
        pair(old, news.get(evidence.proven.get(old.id, _TOP)))
    # Proof first, then names, then ids: each step leaves only unmatched fields to the next, weaker step. Names are
    # unique at each level.
    by_name = {field.name: field for field in news.values()}
    for old in list(olds.values()):
        pair(old, by_name.get(old.name))
    for old in list(olds.values()):
        # An id of the common history and the same type: the field was renamed, and not replaced by a new field.
        new = news.get(old.id) if old.id < evidence.shared_below else None
        pair(old, new if new is not None and new.logical_type == old.logical_type else None)
    for old, new in pairs:
        evidence.matches[old.id] = new.id
        _match_level(old, new, evidence)


def field_changes(before: Fields, after: Fields, matched: Mapping[int, int]) -> tuple[FieldChange, ...]:
    """Describe every field that changed: dropped fields first, then in the order of the newer version."""
    # Nothing is reported below a field whose type changed: the type change includes it.
    same_typed = {old: new for old, new in matched.items() if _same_type(before.by_id[old], after.by_id[new])}
    # The reverse direction, since changes are listed in the order of the newer version.
    origins = {new: old for old, new in matched.items()}
    return (*_dropped(before, None, matched, same_typed), *_remaining(before, after, None, origins))


def _dropped(
    before: Fields, parent: Field | None, matched: Mapping[int, int], same_typed: Mapping[int, int]
) -> Iterator[FieldChange]:
    for field in before.below(parent):
        if field.id in same_typed:
            yield from _dropped(before, field, matched, same_typed)
        elif field.id not in matched:
            yield FieldChange(kind=DROPPED, path=before.path(field), before=before.type_of(field))


def _remaining(
    before: Fields, after: Fields, parent: Field | None, origins: Mapping[int, int]
) -> Iterator[FieldChange]:
    level = after.below(parent)
    shared = [field for field in level if field.id in origins]
    moved = _moved([origins[field.id] for field in shared], list(before.by_id))
    for place, field in enumerate(level):
        path = after.path(field)
        if field.id not in origins:
            yield FieldChange(kind=ADDED, path=path, after=after.type_of(field))
            continue
        old = before.by_id[origins[field.id]]
        if old.name != field.name:
            yield FieldChange(kind=RENAMED, path=path, before=old.name, after=field.name)
        if not _same_type(old, field):
            yield FieldChange(kind=RETYPED, path=path, before=before.type_of(old), after=after.type_of(field))
        if old.nullable != field.nullable:
            yield FieldChange(kind=NULLABILITY, path=path, before=_null(old), after=_null(field))
        if old.id in moved:
            was = before.below(before.by_id.get(old.parent_id)).index(old)
            yield FieldChange(kind=MOVED, path=path, before=str(was), after=str(place))
        if _same_type(old, field):
            yield from _remaining(before, after, field, origins)


def _moved(shared: Sequence[int], order: Sequence[int]) -> set[int]:
    """Return the smallest set of fields whose removal leaves the others in their old order.

    For the order a, b, c, d that became d, a, b, c this is d alone.
    """
    positions = {number: position for position, number in enumerate(order)}
    # The fields that stay are a longest increasing subsequence of the old positions (patience sorting).
    ends: list[int] = []
    tails: list[int] = []
    previous: dict[int, int | None] = {}
    for number in shared:
        length = bisect_left(ends, positions[number])
        previous[number] = tails[length - 1] if length else None
        ends[length : length + 1] = [positions[number]]
        tails[length : length + 1] = [number]
    staying: set[int] = set()
    step = tails[-1] if tails else None
    while step is not None:
        staying.add(step)
        step = previous[step]
    return set(shared) - staying


def _same_type(before: Field, after: Field) -> bool:
    return before.logical_type == after.logical_type


def _null(field: Field) -> str:
    return "null" if field.nullable else "not null"
