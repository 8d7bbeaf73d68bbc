"""Translate conditions that Spark has resolved and optimised to Lance's SQL.

A translated condition is true for every row for which Spark's is true, and possibly for other rows: Spark filters the
rows once more. What Lance might evaluate in another way is not translated.

The two differ in these points. Lance sorts NaN with a negative sign, which processors make of 0/0, below all numbers,
and Spark all NaN above them. Lance reads a timestamp without a zone as UTC. Types that Spark widens, such as unsigned
integers, and timestamps in other units than microseconds are compared in the type of the table by Lance and in the
wider type by the other. Spark converts the sides of a comparison to one type, Lance by other rules; only comparisons of
a column with a literal of exactly its type are translated.

Spark's expressions arrive as JSON of its trees, which is a list of nodes in the order parent, first child and its
children, second child, and so on.
"""

import datetime as dt
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_ORDER = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_COMPARISONS = _ORDER | {"EqualTo": "=", "EqualNullSafe": "IS NOT DISTINCT FROM"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_TESTS = {"StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "contains"}
_INTEGERS: dict[pa.DataType, str] = {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long"}
_FLOATS: dict[pa.DataType, str] = {pa.float32(): "float", pa.float64(): "double"}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Python's and Java's tables of zones agree on these years.
_ZONED_YEARS = range(1970, 2100)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of one of Spark's trees: the name of its class, its fields and its children."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple["Node", ...] = ()

    def walk(self) -> Iterator["Node"]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree(nodes: Sequence[Mapping[str, Any]]) -> Node:
    """Return the tree that Spark wrote as a list."""
    remaining = iter(nodes)

    def following() -> Node:
        fields = next(remaining)
        kind = fields["class"].rpartition(".")[2]
        return Node(kind, fields, tuple(following() for _ in range(fields["num-children"])))

    return following()


@dataclass(frozen=True, slots=True)
class _Operand:
    sql: str
    arrow: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Translator:
    """Translate conditions on the columns of one scan.

    Attributes:
        columns: The field of the table for each of Spark's expression ids.
        time_zone: The zone in which Spark wrote the timestamps of the conditions.
    """

    columns: Mapping[int, "pa.Field[Any]"]
    time_zone: str

    def condition(self, node: Node) -> str | None:
        """Return a condition in Lance's SQL for the parts that must all be true; None when none is translated."""
        if node.kind == "And":
            conditions = [condition for child in node.children if (condition := self.condition(child)) is not None]
            return " AND ".join(conditions) or None
        return self._exact(node)

    def _exact(self, node: Node) -> str | None:
        """Return a condition that is true, false and null for the same rows as Spark's; None where Lance may differ."""
        match node.kind:
            case "And" | "Or":
                parts = [self._exact(child) for child in node.children]
                return None if None in parts else "(" + f" {node.kind.upper()} ".join(map(str, parts)) + ")"
            case "Not":
                inner = self._exact(node.children[0])
                return None if inner is None else f"(NOT {inner})"
            case "IsNull" | "IsNotNull":
                operand = self._column(node.children[0])
                test = "IS NULL" if node.kind == "IsNull" else "IS NOT NULL"
                return None if operand is None else f"({operand.sql} {test})"
            case "In":
                return self._one_of(node)
            case "AttributeReference" | "GetStructField":
                operand = self._column(node)
                return operand.sql if operand is not None and operand.arrow == pa.bool_() else None
            case kind if kind in _TEXT_TESTS and node.children[1].fields.get("value"):
                pair = self._pair(*node.children)
                return None if pair is None else f"{_TEXT_TESTS[kind]}({pair[0].sql}, {pair[1]})"
            case kind if kind in _COMPARISONS:
                return self._comparison(_COMPARISONS[kind], *node.children)
        return None

    def _comparison(self, sign: str, left: Node, right: Node) -> str | None:
        if left.kind == "Literal":
            left, right, sign = right, left, _FLIPPED.get(sign, sign)
        pair = self._pair(left, right)
        if pair is None:
            return None
        operand, literal = pair
        compared = f"({operand.sql} {sign} {literal})"
        if operand.arrow in _FLOATS and sign in _FLIPPED:
            # Every NaN is larger than every number.
            return (
                f"({compared} OR isnan({operand.sql}))" if ">" in sign else f"({compared} AND NOT isnan({operand.sql}))"
            )
        return compared

    def _one_of(self, node: Node) -> str | None:
        pairs = [self._pair(node.children[0], value) for value in node.children[1:]]
        translated = [pair for pair in pairs if pair is not None]
        if not translated or len(translated) < len(pairs):
            return None
        return f"({translated[0][0].sql} IN ({', '.join(literal for _, literal in translated)}))"

    def _pair(self, left: Node, right: Node) -> tuple[_Operand, str] | None:
        """Return a column and a literal of exactly its type."""
        operand = self._column(left)
        if operand is None or right.kind != "Literal" or right.fields["value"] is None:
            return None
        literal = self._literal(str(right.fields["value"]), right.fields["dataType"], operand.arrow)
        return None if literal is None else (operand, literal)

    def _column(self, node: Node) -> _Operand | None:
        if node.kind == "AttributeReference":
            column = self.columns.get(node.fields["exprId"]["id"])
            return None if column is None or "`" in column.name else _Operand(f"`{column.name}`", column.type)
        if node.kind != "GetStructField":
            return None
        parent = self._column(node.children[0])
        if parent is None or not isinstance(parent.arrow, pa.StructType):
            return None
        part = parent.arrow.field(node.fields["ordinal"])
        return None if "`" in part.name else _Operand(f"{parent.sql}.`{part.name}`", part.type)

    def _literal(self, value: str, spark: object, arrow: pa.DataType) -> str | None:
        """Return a literal of a type of the table; None where Spark's literal has another type."""
        if _INTEGERS.get(arrow) == spark:
            return value
        if _FLOATS.get(arrow) == spark:
            # NaN and infinities are left to Spark, and so is what a cast might round in another way.
            plain = value.replace(".", "").replace("-", "").isdigit()
            return f"CAST('{value}' AS {'FLOAT' if arrow == pa.float32() else 'DOUBLE'})" if plain else None
        if arrow in (pa.string(), pa.large_string()) and spark == "string":
            return "'" + value.replace("'", "''") + "'" if value.isprintable() else None
        if arrow == pa.bool_() and spark == "boolean":
            return value
        if pa.types.is_decimal128(arrow) and spark == f"decimal({arrow.precision},{arrow.scale})":
            return f"CAST('{value}' AS DECIMAL({arrow.precision}, {arrow.scale}))" if "E" not in value else None
        return self._time_literal(value, spark, arrow)

    def _time_literal(self, value: str, spark: object, arrow: pa.DataType) -> str | None:
        try:
            if arrow == pa.date32() and spark == "date":
                return f"date '{dt.date.fromisoformat(value)}'"
            if arrow == pa.timestamp("us") and spark == "timestamp_ntz":
                moment = (_EPOCH + dt.timedelta(microseconds=int(value))).replace(tzinfo=None)
                return f"CAST('{moment.isoformat()}' AS TIMESTAMP(6))"
            if arrow == pa.timestamp("us", "UTC") and spark == "timestamp":
                instant = self._instant(dt.datetime.fromisoformat(value))
                return None if instant is None else f"timestamp '{instant.strftime('%Y-%m-%dT%H:%M:%S.%f')}Z'"
        except (ValueError, OverflowError):
            # A year that Python does not have.
            return None
        return None

    def _instant(self, local: dt.datetime) -> dt.datetime | None:
        """Return the UTC time of a time in the zone of the conditions; None where Python cannot be sure of it."""
        if self.time_zone in ("UTC", "Etc/UTC"):
            return local.replace(tzinfo=dt.UTC)
        if local.year not in _ZONED_YEARS:
            return None
        try:
            zone = zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            return None
        early, late = (local.replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1))
        # The hour that comes twice when summer time ends is written alike both times.
        return early if early == late else None
