"""Which column of the merge base is which on the source and on the dest, and what each is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from lance_dagster.changes.diff_schema import Fields
from lance_dagster.changes.diff_values import ComparedColumn, compared_columns
from lance_dagster.changes.merge.images import BASE, DEST, SOURCE
from lance_dagster.errors import InvalidInputError
from lance_dagster.format.model import Field, Manifest
from lance_dagster.format.texts import texts

Manifests = tuple[Manifest, Manifest, Manifest]
"""Of the merge base, the source and the dest."""


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """A column of three versions: a name for all; what each calls it, None where it is not; its id on the dest."""

    name: str
    names: tuple[str | None, str | None, str | None]
    dest_id: int | None


class ConflictColumns:
    """The columns of three versions beside each other."""

    def __init__(self, manifests: Manifests, ids: Sequence[Mapping[int, int]]) -> None:
        """Find out which is which.

        Args:
            manifests: The three versions.
            ids: By the ids of fields of the merge base, those on the source, and those on the dest.
        """
        self._fields = [Fields.of(manifest.fields) for manifest in manifests]
        base = self._fields[BASE]
        self._matched = [_matched(base, side, own) for side, own in zip(self._fields[SOURCE:], ids, strict=True)]
        self.all = tuple(self._beside())

    def chosen(self, names: Sequence[str] | None) -> tuple[SharedColumn, ...]:
        """Return columns by name, by any that a version has for them; None for all.

        Raises:
            InvalidInputError: There is none of a name.
        """
        if names is None:
            return self.all
        return tuple(dict.fromkeys(self._named(name) for name in texts("columns", names, "id")))

    def holding(self, fields: frozenset[int]) -> tuple[SharedColumn, ...]:
        """Return the columns that fields of the dest are in."""
        dest = self._fields[DEST]
        columns = {dest.column(dest.by_id[number]).id for number in fields}
        return tuple(column for column in self.all if column.dest_id in columns)

    def compared(self, columns: Sequence[SharedColumn], side: int) -> tuple[ComparedColumn, ...]:
        """Say how values of columns that the merge base and a side have are compared; without those that cannot be."""
        found, _ = compared_columns(self._fields[BASE], self._fields[side], self._matched[side - SOURCE])
        by_name = {(column.before, column.after): column for column in found}
        pairs = [(column.names[BASE], column.names[side]) for column in columns]
        return tuple(by_name[pair] for pair in pairs if pair in by_name)

    def _named(self, name: str) -> SharedColumn:
        found = next((column for column in self.all if column.name == name), None)
        if found is None:
            found = next((column for column in self.all if name in column.names), None)
        if found is None:
            raise InvalidInputError(f"no column {name!r}; there are {', '.join(column.name for column in self.all)}")
        return found

    def _beside(self) -> list[SharedColumn]:
        base, source, dest = (list(fields.below(None)) for fields in self._fields)
        to_source, to_dest = self._matched
        from_dest = {own: number for number, own in to_dest.items()}
        olds, mine = {field.id: field for field in base}, {field.id: field for field in source}
        # What only the sides have is the same where it is called the same.
        new = {field.name: field for field in source if field.id not in set(to_source.values())}
        taken: set[str] = set()
        found: list[SharedColumn] = []

        def put(was: Field | None, own: Field | None, other: Field | None) -> None:
            known = other or was or own
            if known is not None:
                base_name, source_name, dest_name = (
                    None if field is None else field.name for field in (was, own, other)
                )
                number = None if other is None else other.id
                found.append(SharedColumn(_free(known.name, taken), (base_name, source_name, dest_name), number))

        for field in dest:
            was = olds.pop(from_dest.get(field.id, -1), None)
            own = new.pop(field.name, None) if was is None else mine.get(to_source.get(was.id, -1))
            put(was, own, field)
        for was in olds.values():
            put(was, mine.get(to_source.get(was.id, -1)), None)
        for own in new.values():
            put(None, own, None)
        return found


def _matched(base: Fields, side: Fields, ids: Mapping[int, int]) -> dict[int, int]:
    """Match fields by their ids, and columns that are left by their names: a column that was cast is the same."""
    found = {number: own for number, own in ids.items() if number in base.by_id and own in side.by_id}
    taken = set(found.values())
    left = {field.name: field.id for field in side.below(None) if field.id not in taken}
    for field in base.below(None):
        if field.id not in found and field.name in left:
            found[field.id] = left[field.name]
    return found


def _free(name: str, taken: set[str]) -> str:
    """Return a name nobody has."""
    free = next(candidate for suffix in count() if (candidate := name + "_" * suffix) not in taken)
    taken.add(free)
    return free
