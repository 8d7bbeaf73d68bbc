"""Read only the columns and rows of Lance tables that a Spark frame needs.

Spark tells no source written in Python which columns and rows a query needs. When an action starts, `narrowed` asks
Spark for the optimised plan of the frame, finds out what is used of each Lance table in it, and puts reads of only that
into the plan before it is optimised. Everything else of the plan stays, filters included, so the result is the same
whatever Lance leaves out beyond what the filters allow.

The columns that the action does not use are nulls in the new plan. A frame made of it must therefore not be handed
out: Spark resolves `frame.select("a").orderBy("b")` with a column `b` from below the selection. It serves one action,
and further operations build on the frame that was given.

This works on Spark's own plans, which only classic sessions have. With Spark Connect, and where Spark's internals are
not what this module expects, a frame is returned as it is.
"""

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from lance_dagster.errors import InvalidInputError
from lance_dagster.spark.pushdown import Node, Translator, tree
from lance_dagster.spark.reader import FragmentSize, Scan, check_filter, fragment_sizes, scan_frame
from lance_dagster.spark.spark_schema import row_bytes

_LEAF = "MapInArrow"
# The scans of this process by the names of their functions in Spark's plans. Old ones are dropped, and their frames
# are then read as they are.
_KEPT_SCANS = 4096
_scans: "OrderedDict[str, tuple[Scan, tuple[FragmentSize, ...]]]" = OrderedDict()


def whole_frame(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return a lazy frame of all rows and columns of a scan, which `narrowed` recognises."""
    name = f"lance_{uuid.uuid4().hex[:12]}"
    sizes = fragment_sizes(scan)
    _scans[name] = (scan, sizes)
    while len(_scans) > _KEPT_SCANS:
        _scans.popitem(last=False)
    return scan_frame(spark, scan, sizes, name)


def narrowed(df: DataFrame) -> DataFrame:
    """Return a frame of the same rows for one action, which reads of Lance tables only what it needs."""
    if not isinstance(df, ClassicDataFrame):
        return df
    # Not of a class whose actions narrow again.
    plain = ClassicDataFrame(df._jdf, df.sparkSession)  # noqa: SLF001
    try:
        return _Narrowing(plain).frame()
    except (Py4JError, PySparkException):
        # Spark's error if there is one is that of the action itself, which the caller starts next.
        return plain


def rows_without_job(df: ClassicDataFrame) -> int | None:
    """Return the number of rows of a frame that the manifest of its table knows; None where they must be counted."""
    try:
        plan = _optimised(df)
    except (Py4JError, PySparkException):
        return None
    while plan.kind == "Project":
        (plan,) = plan.children
    scan, _ = _scan_of(plan) or (None, ())
    return None if scan is None or scan.filter is not None else scan.rows


@dataclass(slots=True)
class _Use:
    """What a plan uses of a scan: columns by their expression ids, a condition that every used row satisfies, a limit.

    `columns` is None where all are used.
    """

    name: str
    columns: set[int] | None
    filter: str | None
    limit: int | None

    def merged(self, other: "_Use") -> "_Use":
        """Return what two places of a plan use together."""
        columns = None if self.columns is None or other.columns is None else self.columns | other.columns
        same = self.filter == other.filter
        return _Use(self.name, columns, self.filter if same else None, None)


class _Narrowing:
    """The narrowing of one frame."""

    def __init__(self, df: ClassicDataFrame) -> None:
        self._df = df
        self._spark = df.sparkSession
        # Through a variable of any type: these are Java objects.
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - the plans of Spark have no public interface
        self._catalyst = jvm.org.apache.spark.sql.catalyst
        self._sequence = jvm.PythonUtils.toSeq
        self._none = jvm.scala.Option.empty
        self._dataset = jvm.org.apache.spark.sql.classic.Dataset
        self._uses: dict[int, _Use] = {}
        self._changed = False

    def frame(self) -> DataFrame:
        """Return the narrowed frame, or the frame itself where it needs everything."""
        plan = _optimised(self._df)
        # A part that is cached is found by its plan, which must then stay as it is. A subquery inside of an expression
        # may read a table too, and what it uses is not looked for.
        if any(node.kind == "InMemoryRelation" or _has_subquery(node.fields) for node in plan.walk()):
            return self._df
        for leaf, above in _leaves(plan, ()):
            use = self._use(leaf, above)
            key = _ids(leaf.fields["output"][0])[0]
            self._uses[key] = self._uses[key].merged(use) if key in self._uses else use
        if not self._uses:
            return self._df
        replaced = self._replaced(self._df._jdf.queryExecution().analyzed())  # noqa: SLF001
        if not self._changed:
            return self._df
        session: Any = self._spark._jsparkSession  # noqa: SLF001
        return ClassicDataFrame(self._dataset.ofRows(session, replaced), self._spark)

    def _use(self, leaf: Node, above: Sequence[Node]) -> _Use:
        """Return what the nodes above a leaf use of it; the nearest one comes last."""
        name = _function(leaf)
        scan, _ = _scans[name]
        rest = list(above)
        condition, used = None, set[int]()
        if rest and rest[-1].kind == "Filter":
            parsed = tree(rest.pop().fields["condition"])
            used.update(_ids([node.fields for node in parsed.walk()]))
            condition = self._translator(leaf, scan).condition(parsed)
        limit = None if condition is not None or len(rest) < len(above) else _limit(rest)
        # Spark puts a projection above each leaf of which it does not use all columns.
        if not rest or rest[-1].kind not in ("Project", "Aggregate"):
            return _Use(name, None, condition, limit)
        node = rest[-1].fields
        named = ("projectList", "groupingExpressions", "aggregateExpressions")
        used.update(_ids([node[key] for key in named if key in node]))
        return _Use(name, used, condition, limit)

    def _translator(self, leaf: Node, scan: Scan) -> Translator:
        fields = [scan.schema.field(number) for number in range(len(scan.schema))]
        lowered = [column.name.lower() for column in fields]
        keys = [_ids(attribute)[0] for attribute in leaf.fields["output"]]
        # Lance finds columns without regard to case where there is none in the case that was given.
        known = {key: one for key, one in zip(keys, fields, strict=True) if lowered.count(one.name.lower()) == 1}
        zone = self._spark.conf.get("spark.sql.session.timeZone") or ""
        return Translator(columns=known, time_zone=zone)

    def _replaced(self, plan: Any) -> Any:  # noqa: ANN401 - a Java object
        """Return a plan of Spark whose Lance tables are read in part."""
        children = [plan.children().apply(number) for number in range(plan.children().size())]
        if plan.nodeName() == _LEAF:
            use = self._uses.get(plan.output().apply(0).exprId().id())
            return plan if use is None else self._part(plan, use)
        replaced = [self._replaced(child) for child in children]
        if all(one is other for one, other in zip(replaced, children, strict=True)):
            return plan
        return plan.withNewChildren(self._sequence(replaced))

    def _part(self, leaf: Any, use: _Use) -> Any:  # noqa: ANN401 - Java objects
        """Return a plan with the output of a leaf, in which the columns that are not used are null."""
        scan, sizes = _scans[use.name]
        output = [leaf.output().apply(number) for number in range(leaf.output().size())]
        names = [
            name
            for name, attribute in zip(scan.schema.names, output, strict=True)
            if use.columns is None or attribute.exprId().id() in use.columns
        ]
        frame = self._read(scan, sizes, names, use)
        if frame is None:
            return leaf
        self._changed = True
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        found = {name: plan.output().apply(number) for number, name in enumerate(names)}
        expressions, empty = self._catalyst.expressions, self._sequence([])
        aliases = [
            # The same expression ids as before, which the nodes above refer to.
            expressions.Alias(
                found[name] if name in found else expressions.Literal(None, attribute.dataType()),
                name,
                attribute.exprId(),
                empty,
                self._none(),
                empty,
            )
            for name, attribute in zip(scan.schema.names, output, strict=True)
        ]
        return self._catalyst.plans.logical.Project(self._sequence(aliases), plan)

    def _read(self, scan: Scan, sizes: Sequence[FragmentSize], names: list[str], use: _Use) -> DataFrame | None:
        """Return the frame that reads what is used; None when that is everything."""
        condition = use.filter
        if not names and condition is None and scan.filter is None and use.limit is None:
            return self._spark.range(scan.rows)
        if not names:
            # A batch without columns does not say how many rows it has.
            names.append(min(scan.schema.names, key=lambda name: row_bytes(scan.narrowed([name], None, None).schema)))
        part = scan.narrowed(names, condition, use.limit)
        if condition is not None:
            try:
                check_filter(part)
            except InvalidInputError:
                part = scan.narrowed(names, None, use.limit)
        if part == scan:
            return None
        return scan_frame(self._spark, part, sizes, use.name)


def _optimised(df: ClassicDataFrame) -> Node:
    execution: Any = df._jdf.queryExecution()  # noqa: SLF001
    return tree(json.loads(execution.optimizedPlan().toJSON()))


def _leaves(node: Node, above: tuple[Node, ...]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield the reads of Lance tables in a plan, with the nodes above each from the top."""
    if _scan_of(node) is not None:
        yield node, above
    for child in node.children:
        yield from _leaves(child, (*above, node))


def _scan_of(node: Node) -> tuple[Scan, tuple[FragmentSize, ...]] | None:
    return _scans.get(_function(node)) if node.kind == _LEAF else None


def _function(leaf: Node) -> str:
    name: str = leaf.fields["functionExpr"][0]["name"]
    return name


def _has_subquery(value: object) -> bool:
    """Return whether some JSON of Spark has a query inside of an expression."""
    if isinstance(value, Mapping):
        name = str(value.get("class"))
        return name.endswith(("Subquery", "ListQuery", ".Exists")) or any(map(_has_subquery, value.values()))
    return isinstance(value, Sequence) and not isinstance(value, str) and any(map(_has_subquery, value))


def _limit(above: Sequence[Node]) -> int | None:
    """Return how many rows of a leaf suffice for the nodes above it."""
    projections = [node.kind == "Project" for node in above]
    nearest = len(above) - 1
    while nearest >= 0 and projections[nearest]:
        nearest -= 1
    if nearest < 0 or above[nearest].kind != "LocalLimit":
        return None
    literal = above[nearest].fields["limitExpr"][0]
    return int(literal["value"]) if literal.get("dataType") == "integer" else None


def _ids(value: object) -> list[int]:
    """Return the expression ids of all columns that are named anywhere in some JSON of Spark."""
    if isinstance(value, Mapping):
        own = [value["exprId"]["id"]] if str(value.get("class")).endswith(".AttributeReference") else []
        return own + [found for part in value.values() for found in _ids(part)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [found for part in value for found in _ids(part)]
    return []
