"""Read the columns of an older version as a newer version has them: found by their fields, and cast to their types.

A column is followed through the versions in between, because its name alone says little: a column may have been
dropped, and its name given to a new column. Each field of a struct is followed. A column or field that the older
version lacks is null, and values get the types of the newer version, as `columns.cast` gives them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from lance_dagster.datafiles import cast_exactly
from lance_dagster.diff.diff import DifferingRows
from lance_dagster.diff.schema_diff import Fields
from lance_dagster.errors import SchemaMismatchError
from lance_dagster.format.model import Field
from lance_dagster.history.context import TableContext
from lance_dagster.history.lineage import changes_since, lineage_of
from lance_dagster.history.versions import State
from lance_dagster.merge.rules.columns.column_matching import fields_after
from lance_dagster.spark.spark_schema import relabelled


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderColumn:
    """How the values of a column of an older version are read.

    Attributes:
        version: The version, for messages.
        name: The name of the column in the older version.
        column: The column as the newer version has it.
        stored: The type in the older version: `struct<a: int32, b: string>`, for example.
        named: `stored` with the field names of the newer version, where `a` was renamed: `struct<c: int32, b: string>`.
        arranged: `named` with the fields in the order of the newer version, without fields that it lacks:
            `struct<b: string, c: int32>`.
    """

    version: str
    name: str
    column: "pa.Field[Any]"
    stored: pa.DataType
    named: pa.DataType
    arranged: pa.DataType

    @property
    def is_same(self) -> bool:
        """Whether the stored values are in the type of the newer version already."""
        return bool(self.stored == self.named == self.arranged == self.column.type)

    def cast(self, values: "pa.Array[Any]") -> "pa.Array[Any]":
        """Return values of the older version in the type of the newer version.

        Raises:
            SchemaMismatchError: A value does not fit the type.
        """
        try:
            own: Any = relabelled(values, self.named)
            cast: pa.Array[Any] = cast_exactly(
                own if own.type == self.arranged else own.cast(self.arranged), self.column.type
            )
            return cast
        except (SchemaMismatchError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatchError(
                f"column {self.column.name!r} is {values.type} in {self.version} and {self.column.type} in the "
                f"version whose columns are read, and cannot be cast: {error}; name the columns to read without it"
            ) from error


@dataclass(frozen=True)
class ColumnHistory:
    """The columns of a version of a table, as another version of it has them."""

    context: TableContext
    older: State
    newer: State

    @cached_property
    def _fields(self) -> tuple[Fields, Fields]:
        return Fields.of(self.older.manifest.fields), Fields.of(self.newer.manifest.fields)

    @cached_property
    def _origins(self) -> Mapping[int, int]:
        """The id in the older version of each field of the newer version."""
        older_outline, newer_outline = (
            {field.id: (field.parent_id, field.name, field.logical_type) for field in state.manifest.fields}
            for state in (self.older, self.newer)
        )
        # The usual case costs no look at the versions in between.
        if older_outline == newer_outline:
            return {number: number for number in older_outline}
        lines = lineage_of(self.older, self.context.refs), lineage_of(self.newer, self.context.refs)
        for (ancestor, descendant), is_forward in ((lines, True), (lines[::-1], False)):
            if not descendant.contains(ancestor):
                continue
            changes = changes_since(descendant, ancestor, self.context.versions)
            if all(change.before is not None and change.after is not None for change in changes):
                followed = {field.id: field.id for field in ancestor.state.manifest.fields}
                for change in changes:
                    step = fields_after(change)
                    followed = {start: step[end] for start, end in followed.items() if end in step}
                return {end: start for start, end in followed.items()} if is_forward else followed
        # Versions in between are gone, or the two are on different branches.
        matched = DifferingRows(self.context, self.older, self.newer, None).comparison.matched
        return {new: old for old, new in matched.items()}

    def column(self, own: pa.Schema, column: "pa.Field[Any]") -> OlderColumn | None:
        """Return how to read a column of the newer version from the older one; None if the older version lacks it.

        Args:
            own: The columns of the older version.
            column: The column of the newer version.

        Raises:
            SchemaMismatchError: The types have no values in common.
        """
        olds, news = self._fields
        field = next(field for field in news.below(None) if field.name == column.name)
        if field.id not in self._origins:
            return None
        old = olds.by_id[self._origins[field.id]]
        arrow = own.field(old.name).type
        older_column = OlderColumn(
            version=str(self.older),
            name=old.name,
            column=column,
            stored=arrow,
            named=self._named(old, arrow),
            arranged=self._arranged(field, column.type, arrow),
        )
        if not older_column.is_same:
            # For its error, before any row is read.
            older_column.cast(pa.array([], arrow))
        return older_column

    @cached_property
    def _became(self) -> Mapping[int, int]:
        return {old: new for new, old in self._origins.items()}

    def _named(self, field: Field, arrow: pa.DataType) -> pa.DataType:
        """Return the type of an older field with the names that the fields in it have in the newer version."""
        olds, news = self._fields

        def name_of(part: Field) -> str:
            number = self._became.get(part.id)
            # A name that no field has, so that nothing is read of a field that is gone.
            return f"\0{part.id}" if number is None else news.by_id[number].name

        return _rebuilt(
            arrow,
            [
                (name_of(part) if isinstance(arrow, pa.StructType) else None, self._named(part, inner))
                for part, inner in zip(olds.below(field), _parts(arrow), strict=False)
            ],
        )

    def _arranged(self, field: Field, arrow: pa.DataType, own: pa.DataType) -> pa.DataType:
        """Return the type of a newer field, with the older types of the parts that the older version has."""
        olds, news = self._fields
        if type(arrow) is not type(own) or not arrow.num_fields:
            return own
        old = olds.by_id[self._origins[field.id]]
        inner = {part.id: kind for part, kind in zip(olds.below(old), _parts(own), strict=False)}
        parts: list[tuple[str | None, pa.DataType]] = []
        for part, kind in zip(news.below(field), _parts(arrow), strict=False):
            origin = self._origins.get(part.id)
            parts.append((None, self._arranged(part, kind, inner[origin]) if origin in inner else kind))
        return _rebuilt(arrow, parts)


def _parts(arrow: Any) -> list[Any]:  # noqa: ANN401  # any Arrow type
    """Return the types inside of a type, in the order of the fields of the table; the entries of a map are left out."""
    return [] if isinstance(arrow, pa.MapType) else [arrow.field(index).type for index in range(arrow.num_fields)]


def _rebuilt(arrow: Any, parts: "list[tuple[str | None, pa.DataType]]") -> pa.DataType:  # noqa: ANN401  # any type
    """Return a struct or a list of other parts, each with its new name; other types as they are."""
    fields = [
        arrow.field(index).with_type(kind) if name is None else arrow.field(index).with_type(kind).with_name(name)
        for index, (name, kind) in enumerate(parts)
    ]
    if isinstance(arrow, pa.StructType) and fields:
        return pa.struct(fields)
    if isinstance(arrow, pa.LargeListType) and fields:
        return pa.large_list(fields[0])
    return pa.list_(fields[0]) if isinstance(arrow, pa.ListType) and fields else arrow
