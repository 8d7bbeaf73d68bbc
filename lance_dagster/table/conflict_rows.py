"""The rows that the conflicts of a merge are about, as a stream of Arrow record batches.

A line has three images of a row: as the merge base has it, as the source has it, as the dest has it. Each is a struct
of the columns of that version. A column is called the same in all three: as the dest calls it, or else as the merge
base does, or as the source. Values are read when a batch is asked for, and no more of them than the batch shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lance_dagster.changes.diff_rows import Flags
from lance_dagster.changes.merge import Contradiction
from lance_dagster.changes.merge.images import (
    ABSENT,
    ADDED,
    BASE,
    CHANGED,
    DEST,
    REMOVED,
    REWRITTEN,
    SOURCE,
    UNCHANGED,
    Disputes,
    Images,
)
from lance_dagster.changes.sides import Conflict
from lance_dagster.datafiles import Addresses, rows_at_once
from lance_dagster.errors import InvalidInputError
from lance_dagster.history.versions import State
from lance_dagster.table.comparing import parts_of
from lance_dagster.table.conflict_columns import ConflictColumns, SharedColumn
from lance_dagster.table.conflict_keys import Keys
from lance_dagster.table.keys import key_columns
from lance_dagster.table.parts import Parts
from lance_dagster.table.versioned_rows import VersionedRows

KIND, UNIT, ROW_ID, KEY = "_conflict_kind", "_conflict_unit", "_row_id", "key"
IMAGES = ("base", "source", "dest")
DID = ("_source_change", "_dest_change")
_WORDS = {UNCHANGED: "unchanged", ADDED: "added", CHANGED: "changed", REMOVED: "removed", REWRITTEN: "rewritten"}
FlagsOfRows = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
"""Whether the merge base, the source and the dest have a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which rows are wanted, and what of them: the conflicts, the columns, those of the key, at most how many rows."""

    conflicts: tuple[Conflict, ...]
    columns: tuple[SharedColumn, ...]
    keys: tuple[SharedColumn, ...] | None
    limit: int | None


class ConflictRows:
    """The rows of the conflicts of one merge."""

    def __init__(self, parts: Parts, states: tuple[State, State, State], found: Contradiction) -> None:
        """Read nothing yet.

        Args:
            parts: The table.
            states: The merge base, the source and the dest.
            found: Why they cannot be merged.
        """
        self._conflicts, self._disputes = found.conflicts, found.disputes
        self._versions = [VersionedRows(parts, state, after=place != BASE) for place, state in enumerate(states)]
        ids = [] if found.disputes is None else [party.columns.ids for party in found.disputes.parties]
        base, source, dest = (state.manifest for state in states)
        self._columns = ConflictColumns((base, source, dest), ids or [{}, {}])

    def stream(
        self, conflict: Conflict | None, *, columns: Sequence[str] | None, key: Sequence[str] | None, limit: int | None
    ) -> pa.RecordBatchReader:
        """Read the rows of a conflict, or of all.

        Raises:
            InvalidInputError: There is no such conflict or column, a column cannot be a key, or the limit is below 0.
        """
        if conflict is not None and conflict not in self._conflicts:
            raise InvalidInputError(
                f"this merge has no conflict {str(conflict)!r}; it has {len(self._conflicts)} others"
            )
        if limit is not None and limit < 0:
            raise InvalidInputError(f"a limit is a number of rows, not {limit}")
        asked = Asked(
            conflicts=self._conflicts if conflict is None else (conflict,),
            columns=self._columns.chosen(columns),
            keys=None if key is None else self._keys(key),
            limit=limit,
        )
        schema = self._schema(asked)
        return pa.RecordBatchReader.from_batches(schema, self._batches(asked, schema))

    def _keys(self, key: Sequence[str]) -> tuple[SharedColumn, ...]:
        chosen = self._columns.chosen(key_columns(key))
        for column in chosen:
            if not all(self._columns.compared([column], side) for side in (SOURCE, DEST)):
                raise InvalidInputError(
                    f"column {column.name!r} cannot be a key: its values cannot be compared, or one of "
                    f"{', '.join(str(version.state) for version in self._versions)} does not have it"
                )
        return chosen

    def _schema(self, asked: Asked) -> pa.Schema:
        marks: list[pa.Field[Any]] = [
            pa.field(KIND, pa.string(), nullable=False),
            pa.field(UNIT, pa.string(), nullable=False),
            pa.field(ROW_ID, pa.uint64(), nullable=False),
            *(pa.field(name, pa.string()) for name in DID),
        ]
        if asked.keys is not None:
            # Rows of all versions are known by it: in the type in which the dest has it.
            marks.append(pa.field(KEY, pa.struct(self._fields(asked.keys, DEST)), nullable=False))
        images = [pa.field(name, pa.struct(self._fields(asked.columns, place))) for place, name in enumerate(IMAGES)]
        return pa.schema([*marks, *images])

    def _fields(self, columns: Sequence[SharedColumn], version: int) -> "list[pa.Field[Any]]":
        names = {own: column.name for column in columns if (own := column.names[version]) is not None}
        return [
            field.with_name(names[field.name]).with_nullable(nullable=True)
            for field in (self._versions[version].schema(list(names)) if names else ())
        ]

    def _batches(self, asked: Asked, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._disputes is None:
            return
        left = asked.limit
        step = min(rows_at_once(version.dataset.schema) for version in self._versions)
        for conflict in asked.conflicts:
            images = self._found(self._disputes, conflict, asked)
            for part in parts_of(len(images), step):
                lines = self._told_apart(images.at(part)) if images.fields else images.at(part)
                lines = lines if left is None else lines.at(slice(left))
                left = None if left is None else left - len(lines)
                if len(lines):
                    yield self._batch(lines, conflict, asked, schema)
                if left == 0:
                    return

    def _found(self, disputes: Disputes, conflict: Conflict, asked: Asked) -> Images:
        found = disputes.images(conflict)
        if asked.keys is None:
            return found
        own, other = (self._columns.compared(asked.keys, side) for side in (SOURCE, DEST))
        return Keys(versions=self._versions, columns=(own, other), put_in=disputes.put_in).applied(found)

    def _told_apart(self, images: Images) -> Images:
        """Leave out rows in which neither side has other values, of columns that both wrote anew for all of them."""
        differ = np.zeros(len(images), np.bool_)
        for column in self._columns.holding(images.fields):
            for side in (SOURCE, DEST):
                differ |= self._differ(images, column, side)
        return images.at(differ)

    def _differ(self, images: Images, column: SharedColumn, side: int) -> Flags:
        """Tell in which rows a side has another value than the merge base; where nobody can say, in all."""
        compared = self._columns.compared([column], side)
        there = images.addresses != ABSENT
        both = there[:, BASE] & there[:, side]
        differ: Flags = ~both
        if not compared:
            return np.ones(len(images), np.bool_)
        if both.any():
            olds, news = (
                self._versions[version].digests(_unsigned(images.addresses[both, version]), compared)[0]
                for version in (BASE, side)
            )
            differ[both] = np.any(olds != news, axis=1)
        return differ

    def _batch(self, images: Images, conflict: Conflict, asked: Asked, schema: pa.Schema) -> pa.RecordBatch:
        wanted = tuple(dict.fromkeys([*asked.columns, *(asked.keys or ())]))
        read = [self._read(images, version, wanted) for version in (BASE, SOURCE, DEST)]
        rows = len(images)
        found: list[pa.Array[Any]] = [
            pa.array([conflict.kind] * rows, pa.string()),
            pa.array([conflict.unit] * rows, pa.string()),
            pa.array(self._row_ids(images), pa.uint64()),
            *(pa.array([_WORDS.get(code) for code in did], pa.string()) for did in images.did.T.tolist()),
        ]
        there = images.addresses != ABSENT
        if asked.keys is not None:
            found.append(_coalesced(read, there, schema.field(KEY).type))
        for version, name in enumerate(IMAGES):
            found.append(_struct(read[version], there[:, version], schema.field(name).type))
        return pa.RecordBatch.from_arrays(found, schema=schema)

    def _read(self, images: Images, version: int, columns: Sequence[SharedColumn]) -> "dict[str, pa.Array[Any]]":
        """Read columns as one version has them, by the names they have for all; null where it lacks the row."""
        names = {column.name: own for column in columns if (own := column.names[version]) is not None}
        addresses = images.addresses[:, version]
        there = addresses != ABSENT
        if not names or not there.any():
            return {}
        places = pa.array(np.cumsum(there) - 1, mask=~there)
        rows = self._versions[version].take(_unsigned(addresses[there]), list(names.values()))
        return {name: _whole(rows.column(own).take(places)) for name, own in names.items()}

    def _row_ids(self, images: Images) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return what readers know rows by: of the first version that has one, its id, or else its address."""
        there = images.addresses != ABSENT
        first = there.argmax(axis=1)
        ids = _unsigned(np.take_along_axis(images.addresses, first[:, None], axis=1)[:, 0])
        for place, version in enumerate(self._versions):
            own = first == place
            if version.state.manifest.stable_row_ids and own.any():
                ids[own] = version.ids(ids[own])
        return ids


def _unsigned(addresses: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Addresses:
    return addresses.astype(np.uint64)


def _whole(values: "pa.ChunkedArray[Any]") -> Any:  # noqa: ANN401  # an Arrow array of any type
    return values.combine_chunks()


def _struct(values: "Mapping[str, pa.Array[Any]]", there: Flags, kind: pa.StructType) -> "pa.Array[Any]":
    """Return rows of one version as structs, null where it lacks them."""
    fields: list[pa.Field[Any]] = [kind.field(place) for place in range(kind.num_fields)]
    if not there.any() or not fields:
        return pa.array([{} if has else None for has in there.tolist()], kind)
    return pa.StructArray.from_arrays(
        [_typed(values[field.name], field.type) for field in fields], fields=fields, mask=pa.array(~there)
    )


def _coalesced(read: "Sequence[Mapping[str, pa.Array[Any]]]", there: FlagsOfRows, kind: pa.DataType) -> "pa.Array[Any]":
    """Return rows as structs, each as the first version has it that does."""
    fields: list[pa.Field[Any]] = [kind.field(place) for place in range(kind.num_fields)]
    rows = len(there)
    first = pa.array(there.argmax(axis=1) * rows + np.arange(rows))
    found = []
    for field in fields:
        values = [_typed(own[field.name], field.type) if own else pa.nulls(rows, field.type) for own in read]
        found.append(pa.concat_arrays(values).take(first))
    return pa.StructArray.from_arrays(found, fields=fields)


def _typed(values: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    return values if values.type == kind else values.cast(kind)
