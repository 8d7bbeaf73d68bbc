"""Which fields of one version are which of another, and what differs between them.

A field is the same when some data file of both versions says so: it names the column of the file that holds the
field, and a file never changes. Ids alone prove little: each branch hands out its own, and an overwrite begins anew.
Where no file tells, fields of the same name are the same; what is left of the same id and type was renamed. A cast
gives a column a new id under its old name.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lance_dagster.errors import FormatError
from lance_dagster.format.evolution import subtree
from lance_dagster.format.model import Field
from lance_dagster.format.schema import arrow_from_fields

ADDED, DROPPED, RENAMED, RETYPED, NULLABILITY, MOVED = "added", "dropped", "renamed", "retyped", "nullability", "moved"
_TOP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """What became of one field.

    `kind` is "added", "dropped", "renamed", "retyped", "nullability" or "moved" (it stands elsewhere among its
    neighbours). `path` names it as the newer version has it, a dropped one as the older one had it. `before` and
    `after` are what the kind is about: names, types, "null" and "not null", or places counted from 0.
    """

    kind: str
    path: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        """Say it in a line."""
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
    """The fields of a version as a tree, and how each is called."""

    by_id: Mapping[int, Field]
    children: Mapping[int, tuple[Field, ...]]

    @classmethod
    def of(cls, fields: Sequence[Field]) -> "Fields":
        """Build the tree."""
        children: dict[int, list[Field]] = {}
        for field in fields:
            children.setdefault(field.parent_id, []).append(field)
        return cls({field.id: field for field in fields}, {parent: tuple(found) for parent, found in children.items()})

    def below(self, field: Field | None) -> tuple[Field, ...]:
        """Return the fields right below one, or the columns."""
        return self.children.get(_TOP if field is None else field.id, ())

    def path(self, field: Field) -> str:
        """Return the names that lead to a field, with dots between."""
        parent = self.by_id.get(field.parent_id)
        return field.name if parent is None else f"{self.path(parent)}.{field.name}"

    def column(self, field: Field) -> Field:
        """Return the column a field is in."""
        parent = self.by_id.get(field.parent_id)
        return field if parent is None else self.column(parent)

    def type_of(self, field: Field) -> str:
        """Return the Arrow type of a field as people write it."""
        own = subtree(tuple(self.by_id.values()), field)
        try:
            schema = arrow_from_fields((replace(field, parent_id=_TOP), *own[1:]))
        except FormatError:
            return field.logical_type
        return str(schema.field(0).type)


def match_fields(before: Fields, after: Fields, proven: Mapping[int, int], shared_below: int) -> dict[int, int]:
    """Find out which field is which.

    Args:
        before: The fields of the older version.
        after: Those of the newer one.
        proven: What data files tell: ids of the older version, and of the newer one.
        shared_below: Up to which id the same id is likely to mean the same field in both.

    Returns:
        For ids of the older version, those of the newer one.
    """
    # A data file may have no column for what has fields below it.
    known = dict(proven)
    for old, new in proven.items():
        one, other = before.by_id.get(old), after.by_id.get(new)
        while one is not None and other is not None:
            known.setdefault(one.id, other.id)
            one, other = before.by_id.get(one.parent_id), after.by_id.get(other.parent_id)
    found: dict[int, int] = {}
    _match_level(None, None, _Evidence(before, after, known, shared_below, found))
    return found


@dataclass(frozen=True, slots=True)
class _Evidence:
    before: Fields
    after: Fields
    proven: Mapping[int, int]
    shared_below: int
    found: dict[int, int]


def _match_level(one: Field | None, other: Field | None, evidence: _Evidence) -> None:
    olds = {field.id: field for field in evidence.before.below(one)}
    news = {field.id: field for field in evidence.after.below(other)}
    pairs: list[tuple[Field, Field]] = []

    def pair(old: Field, new: Field | None) -> None:
        if new is not None and new.id in news:
            pairs.append((olds.pop(old.id), news.pop(new.id)))

    for old in list(olds.values()):
        pair(old, news.get(evidence.proven.get(old.id, _TOP)))
    # Names are given once at each level.
    by_name = {field.name: field for field in news.values()}
    for old in list(olds.values()):
        pair(old, by_name.get(old.name))
    for old in list(olds.values()):
        new = news.get(old.id) if old.id < evidence.shared_below else None
        pair(old, new if new is not None and new.logical_type == old.logical_type else None)
    for old, new in pairs:
        evidence.found[old.id] = new.id
        _match_level(old, new, evidence)


def field_changes(before: Fields, after: Fields, matched: Mapping[int, int]) -> tuple[FieldChange, ...]:
    """Say what became of every field that is not as it was: dropped ones first, then in the order of the newer."""
    # What is below a field of another kind has no counterpart, which the change of its type says.
    alike = {old: new for old, new in matched.items() if _same_type(before.by_id[old], after.by_id[new])}
    origins = {new: old for old, new in matched.items()}
    return (*_dropped(before, None, matched, alike), *_kept(before, after, None, origins))


def _dropped(
    before: Fields, parent: Field | None, matched: Mapping[int, int], alike: Mapping[int, int]
) -> Iterator[FieldChange]:
    for field in before.below(parent):
        if field.id in alike:
            yield from _dropped(before, field, matched, alike)
        elif field.id not in matched:
            yield FieldChange(kind=DROPPED, path=before.path(field), before=before.type_of(field))


def _kept(before: Fields, after: Fields, parent: Field | None, origins: Mapping[int, int]) -> Iterator[FieldChange]:
    level = after.below(parent)
    kept = [field for field in level if field.id in origins]
    moved = _moved([origins[field.id] for field in kept], list(before.by_id))
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
            yield from _kept(before, after, field, origins)


def _moved(kept: Sequence[int], order: Sequence[int]) -> set[int]:
    """Return those that have to be taken out for the others to stand in the order they had: as few as possible."""
    places = {number: place for place, number in enumerate(order)}
    # The longest run in order, by the last one of the shortest end there is for each length.
    ends: list[int] = []
    tails: list[int] = []
    previous: dict[int, int | None] = {}
    for number in kept:
        length = bisect_left(ends, places[number])
        previous[number] = tails[length - 1] if length else None
        ends[length : length + 1] = [places[number]]
        tails[length : length + 1] = [number]
    staying: set[int] = set()
    last = tails[-1] if tails else None
    while last is not None:
        staying.add(last)
        last = previous[last]
    return set(kept) - staying


def _same_type(one: Field, other: Field) -> bool:
    return one.logical_type == other.logical_type


def _null(field: Field) -> str:
    return "null" if field.nullable else "not null"
