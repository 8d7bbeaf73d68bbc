"""Refuse rows that would lose their values, or lack required ones, because the other side changed a column."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyroaring import BitMap

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.evolution import subtree
from lance_dagster.format.model import Manifest
from lance_dagster.format.transaction import Append, Delete, Overwrite, Rewrite, Update
from lance_dagster.merge.rules.column_matching import Columns, paths_of
from lance_dagster.merge.rules.merge_side import Conflict, Lookups, SideHistory, makers
from lance_dagster.merge.rules.row_changes import RowChanges
from lance_dagster.merge.rules.schema_merge import MergedSchema, casts
from lance_dagster.merge.rules.strategy import Rows, RowsLookup, of_side


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One side with its columns, and its rows, which are looked at only when that matters."""

    side: SideHistory
    columns: Columns
    rows: Callable[[], RowChanges]

    def written(self) -> dict[int, BitMap]:
        """Return the rows that it put in or gave new values, by its fragments."""
        return {number: offsets for number, found in self.rows().relocated.items() if (offsets := found.written)}

    def nulls(self, number_in_base: int, path: str, lookups: Lookups) -> Rows:
        """Return the rows it put in or gave new values that have no value in a column, by its fragments."""
        written = self.written()
        for number, offsets in self._written_in_place(number_in_base).items():
            written[number] = written.get(number, BitMap()) | offsets
        if not written:
            return written
        quoted = ".".join(f"`{name}`" for name in path.split("."))
        try:
            found = lookups.matching(self.side.manifest, written, f"{quoted} IS NULL")
        except InvalidInputError:
            # The column has another name there, or cannot be asked: nobody can say that there is none.
            return written
        return {number: nulls for number, offsets in found.items() if (nulls := written[number] & offsets)}

    def _written_in_place(self, number: int) -> dict[int, BitMap]:
        """Return rows beside which a column may have been written anew, wherever they are."""
        top = next((field for field in self.side.manifest.fields if field.id == self.columns.ids.get(number)), None)
        inner = {field.id for field in subtree(self.side.manifest.fields, top)} if top is not None else set()
        found: dict[int, BitMap] = {}
        for base_id, fields in self.columns.written.items():
            if not inner & fields:
                continue
            places = self.rows().matched.base.fragments.ids if base_id is None else [base_id]
            for place in map(self.rows().matched.place, places):
                if place is not None:
                    found[place.id] = BitMap(range(place.physical_rows))
            found |= {other: rows.live | found.get(other, BitMap()) for other, rows in self.rows().relocated.items()}
        return found


def columns_lost(
    base: Manifest, schema: MergedSchema, parties: tuple[Party, Party], lookups: Lookups
) -> Iterator[tuple[Conflict, RowsLookup]]:
    """Find columns whose type or nullability one side changed while the other wrote rows of the old kind: which."""
    source, dest = parties
    for one, other in ((source, dest), (dest, source)):
        added = schema.added_by_source if one is source else schema.added_by_dest
        for path, did in (*_casts(base, one, other), *_required(schema, added, other)):
            rows = of_side(other.written(), source=other is source)
            yield _conflict(path, did, one, other, by_source=one is source), rows
        for number, path in _made_required(base, one).items():
            nulls = other.nulls(number, path, lookups)
            if nulls:
                rows = of_side(nulls, source=other is source)
                yield _conflict(path, "made it not null", one, other, by_source=one is source), rows


def brought_back(base: Manifest, party: Party, *, by_source: bool) -> Iterator[Conflict]:
    """Find columns a side changed so that rows it took out, and that are brought back, do not fit them."""
    unfit = (*casts(party.columns, base, party.side), *_made_required(base, party).values(), *_new_required(party))
    for path in unfit:
        told = (
            f"{party.side.name} changed its type, or made it not null",
            "rows it changed or took out are brought back",
        )
        source, dest = told if by_source else told[::-1]
        yield Conflict(kind="column", unit=f"column {path}", source=source, dest=dest)


def _casts(base: Manifest, one: Party, other: Party) -> Iterator[tuple[str, str]]:
    for path in casts(one.columns, base, one.side):
        if other.written():
            yield path, "changed its type"


def _required(schema: MergedSchema, added: Collection[int], other: Party) -> Iterator[tuple[str, str]]:
    for field in schema.fields:
        if field.id in added and field.parent_id < 0 and not field.nullable and other.written():
            yield field.name, "added it as not null"


def _made_required(base: Manifest, party: Party) -> dict[int, str]:
    """Return by id the paths of columns that could be null in the base, and may not be on a side."""
    own = {field.id: field for field in party.side.manifest.fields}
    paths = paths_of(base.fields)
    return {
        field.id: paths[field.id]
        for field in base.fields
        if field.nullable and (now := party.columns.ids.get(field.id)) is not None and not own[now].nullable
    }


def _new_required(party: Party) -> list[str]:
    """Return the names of columns a side added that may not be null: rows it did not write have no values there."""
    known = party.columns.base_ids
    return [
        field.name
        for field in party.side.manifest.fields
        if field.id not in known and field.parent_id < 0 and not field.nullable
    ]


def _conflict(path: str, did: str, one: Party, other: Party, *, by_source: bool) -> Conflict:
    changer = makers(one.side, lambda change: not isinstance(change.operation, Append | Delete | Rewrite))
    writer = makers(other.side, lambda change: isinstance(change.operation, Append | Update | Overwrite))
    told = f"{changer} {did}", f"{writer} wrote rows without that"
    source, dest = told if by_source else told[::-1]
    return Conflict(kind="column", unit=f"column {path}", source=source, dest=dest)
