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

import itertools
import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from lance_dagster.errors import InvalidInputError
from lance_dagster.spark.pushdown import Node, Translator, tree
from lance_dagster.spark.reader import FragmentSize, Scan, check_filter, scan_frame
from lance_dagster.spark.spark_schema import row_bytes

_LEAF = "MapInArrow"
# Nodes that need only the columns of their child that their expressions name, and nodes that pass on what the nodes
# above need. Others, such as a union, may need columns by their position.
_NAMING = ("Project", "Aggregate")
_PASSING = ("Filter", "SubqueryAlias", "Sort", "GlobalLimit", "LocalLimit")
# The scans of this process by the names of their functions in Spark's plans. Old ones are dropped, and their frames
# are then read as they are.
_KEPT_SCANS = 4096
_scans: "OrderedDict[str, tuple[Scan, tuple[FragmentSize, ...]]]" = OrderedDict()


def whole_frame(spark: SparkSession, scan: Scan, sizes: Sequence[FragmentSize]) -> DataFrame:
    """Return a lazy frame of all rows and columns of a scan, which `narrowed` recognises."""
    name = f"lance_{uuid.uuid4().hex[:12]}"
    _scans[name] = (scan, tuple(sizes))
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
        # Spark's error is the error of the action itself, which the caller starts next.
        return plain


def rows_without_job(df: ClassicDataFrame) -> int | None:
    """Return the number of rows of a frame that the manifest of its table knows; None where they must be counted."""
    try:
        plan = _optimised(df)
    except (Py4JError, PySparkException):
        return None
    while plan.kind == "Project":
        (plan,) = plan.children
    return _known_rows(plan)


def _known_rows(plan: "_PlanNode") -> int | None:
    """Return the number of rows of a read of a Lance table that takes all rows."""
    scan, _ = _scans.get(plan.function, (None, ()))
    return None if scan is None or scan.filter is not None else scan.rows


@dataclass(frozen=True, slots=True)
class _PlanNode:
    """A node of one of Spark's plans: the Java object, the name of its class and its children.

    `function` is the name of the Python function that makes the rows of a read of a Lance table.
    """

    java: Any
    kind: str
    children: tuple["_PlanNode", ...]
    function: str = ""

    @classmethod
    def of(cls, java: Any) -> "_PlanNode":  # noqa: ANN401 - a Java object
        """Wrap a plan.

        A plan has a JSON text of all of it, but the text of a Python function takes Spark 40 ms, since it is made by
        reflection.
        """
        kind = java.nodeName()
        below = java.children()
        children = tuple(cls.of(below.apply(number)) for number in range(below.size()))
        return cls(java, kind, children, java.functionExpr().name() if kind == _LEAF else "")

    def walk(self) -> Iterator["_PlanNode"]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class _Use:
    """What a plan uses of a scan: columns by their expression ids, a condition that every used row satisfies, a limit.

    `columns` is None where all are used.
    """

    name: str
    columns: set[int] | None
    filter: str | None
    limit: int | None

    def merged(self, second: "_Use") -> "_Use":
        """Return what two places of a plan use together."""
        columns = None if self.columns is None or second.columns is None else self.columns | second.columns
        same = self.filter == second.filter
        return _Use(self.name, columns, self.filter if same else None, None)


class _Narrowing:
    """The narrowing of one frame."""

    def __init__(self, df: ClassicDataFrame) -> None:
        self._df = df
        self._spark = df.sparkSession
        # Through a variable of any type: these are Java objects.
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - the plans of Spark have no public interface
        self._jvm = jvm
        # Each part of such a name is a request to Java.
        self._sql = jvm.org.apache.spark.sql
        self._catalyst = self._sql.catalyst
        self._expressions = self._catalyst.expressions
        self._sequence = jvm.PythonUtils.toSeq
        # By the expression id of the first column of a read, which two places of a plan may share.
        self._uses: dict[int, _Use] = {}
        self._columns: dict[int, list[int]] = {}
        self._keeps_tasks = self._has_joins = False
        self._changed = False

    def frame(self) -> DataFrame:
        """Return the narrowed frame, or the frame itself where it needs everything."""
        plan = _optimised(self._df)
        leaves = list(_leaves(plan, ()))
        # A part that is cached is found by its plan, which must then stay as it is. A subquery inside of an expression
        # may read a table too, and what it uses is not looked for.
        if (
            not leaves
            or any(node.kind == "InMemoryRelation" for node in plan.walk())
            or not plan.java.subqueriesAll().isEmpty()
        ):
            return self._df
        # The n-th row of a task gets the n-th random number of the task, whatever columns an action uses.
        self._keeps_tasks = not plan.java.deterministic() or any(node.kind == "Sample" for node in plan.walk())
        self._has_joins = any(node.kind == "Join" for node in plan.walk())
        analyzed: Any = self._df._jdf.queryExecution().analyzed()  # noqa: SLF001
        copied = _copied([leaf for leaf, _ in leaves], analyzed)
        for leaf, above in leaves:
            if leaf.function in copied:
                continue
            columns = self._parsed(leaf.java.output())
            use = self._use(leaf, columns, above)
            (key, *_) = ids = [_ids(column.fields)[0] for column in columns]
            self._columns[key] = ids
            self._uses[key] = self._uses[key].merged(use) if key in self._uses else use
        replaced = self._replaced(analyzed)
        if not self._changed:
            return self._df
        session: Any = self._spark._jsparkSession  # noqa: SLF001
        return ClassicDataFrame(self._sql.classic.Dataset.ofRows(session, replaced), self._spark)

    def _parsed(self, expressions: Any) -> tuple[Node, ...]:  # noqa: ANN401 - a Java object
        """Return some expressions of Spark as trees."""
        # One text for all expressions: the text of an expression around them, which is never evaluated.
        return tree(json.loads(self._expressions.Coalesce(expressions).toJSON())).children

    def _use(self, leaf: _PlanNode, columns: Sequence[Node], above: Sequence[_PlanNode]) -> _Use:
        """Return what the nodes above a leaf use of it; the nearest node comes last."""
        name = leaf.function
        scan, _ = _scans[name]
        remaining = list(above)
        condition, used = None, set[int]()
        if remaining and remaining[-1].kind == "Filter":
            parts = [*_conjuncts(remaining.pop().java.condition())]
            parsed = self._parsed(self._sequence(parts))
            used.update(_ids([node.fields for part in parsed for node in part.walk()]))
            # What a random number or the like is drawn for depends on the parts before it alone, in Spark's order.
            first = itertools.takewhile(lambda pair: pair[0].deterministic(), zip(parts, parsed, strict=True))
            translator = self._translator(columns, scan)
            conditions = [sql for _, part in first if (sql := translator.condition(part)) is not None]
            condition = " AND ".join(conditions) or None
        limit = None if condition is not None or len(remaining) < len(above) else self._limit(remaining)
        # Spark puts a projection above each leaf whose columns it does not all use.
        if not remaining or remaining[-1].kind not in ("Project", "Aggregate"):
            return _Use(name, None, condition, limit)
        for expression in self._parsed(remaining[-1].java.expressions()):
            used.update(_ids([node.fields for node in expression.walk()]))
        return _Use(name, used, condition, limit)

    def _limit(self, above: Sequence[_PlanNode]) -> int | None:
        """Return how many rows of a leaf suffice for the nodes above it."""
        nearest = next((node for node in reversed(above) if node.kind != "Project"), None)
        if nearest is None or nearest.kind != "LocalLimit":
            return None
        (literal,) = self._parsed(nearest.java.expressions())
        return int(literal.fields["value"]) if literal.fields.get("dataType") == "integer" else None

    def _translator(self, columns: Sequence[Node], scan: Scan) -> Translator:
        fields = [scan.schema.field(number) for number in range(len(scan.schema))]
        lowered = [column.name.lower() for column in fields]
        keys = [_ids(attribute.fields)[0] for attribute in columns]
        # Lance finds columns without regard to case where there is none in the case that was given.
        columns_by_id = {
            key: field for key, field in zip(keys, fields, strict=True) if lowered.count(field.name.lower()) == 1
        }
        # The zone in which Spark has just written the condition: the zone of the active session, which may differ from
        # the session of the frame.
        zone = self._sql.internal.SQLConf.get().sessionLocalTimeZone()
        return Translator(columns=columns_by_id, time_zone=zone)

    def _replaced(self, plan: Any, named: frozenset[int] | None = None) -> Any:  # noqa: ANN401 - Java objects
        """Return a plan of Spark whose Lance tables are read in part.

        Args:
            plan: The plan.
            named: The expression ids of the columns that the nodes above name, when they need no other columns of the
                plan; None when they may.
        """
        kind = plan.nodeName()
        if kind == _LEAF:
            key = _key(plan)
            return plan if key not in self._uses else self._part(plan, key, named)
        if kind == "Aggregate":
            counted = self._counted(plan)
            if counted is not None:
                return counted
        if kind in _NAMING:
            named = frozenset()
        elif kind not in _PASSING:
            named = None
        if named is not None:
            named |= self._named(plan)
        children = [plan.children().apply(number) for number in range(plan.children().size())]
        replaced = [self._replaced(child, named) for child in children]
        if all(replacement is child for replacement, child in zip(replaced, children, strict=True)):
            return plan
        return plan.withNewChildren(self._sequence(replaced))

    def _named(self, plan: Any) -> frozenset[int]:  # noqa: ANN401 - a Java object
        """Return the expression ids of the columns that the expressions of a node name."""
        fields = (node.fields for expression in self._parsed(plan.expressions()) for node in expression.walk())
        return frozenset(_ids(list(fields)))

    def _counted(self, plan: Any) -> Any:  # noqa: ANN401 - Java objects
        """Return the one row of an aggregation that only counts all rows of a table; None for other aggregations."""
        below = _PlanNode.of(plan.child())
        # Each row of a table is one row of these.
        while below.kind in ("Project", "SubqueryAlias", "View"):
            (below,) = below.children
        rows = _known_rows(below)
        if rows is None or plan.groupingExpressions().size() or not self._only_counts(plan.aggregateExpressions()):
            return None
        self._changed = True
        # Spark collects a list of literals without a job.
        row: Any = self._spark.sql(f"VALUES ({rows}L)")._jdf.queryExecution().analyzed()  # noqa: SLF001
        counts = plan.aggregateExpressions()
        # With the names and the expression ids as before, which the nodes above refer to.
        named = [counts.apply(number).withNewChildren(row.output()) for number in range(counts.size())]
        return self._catalyst.plans.logical.Project(self._sequence(named), row)

    def _only_counts(self, expressions: Any) -> bool:  # noqa: ANN401 - a Java object
        """Return whether each of some aggregations counts all rows, as `count(*)` and `count(1)` do."""
        for node in self._parsed(expressions):
            match node:
                case Node(
                    "Alias", _, (Node("AggregateExpression", {"isDistinct": False}, (Node("Count", _, counted),)),)
                ):
                    # A null is not counted; a filter of the aggregation would be its second child.
                    if any(argument.kind != "Literal" or argument.fields["value"] is None for argument in counted):
                        return False
                case _:
                    return False
        return True

    def _part(self, leaf: Any, key: int, named: frozenset[int] | None) -> Any:  # noqa: ANN401 - Java objects
        """Return a plan with the output of a leaf, in which the columns that are not used are null or left out."""
        use, ids = self._uses[key], self._columns[key]
        scan, sizes = _scans[use.name]
        pairs = dict(zip(scan.schema.names, ids, strict=True))
        names = [name for name, expression_id in pairs.items() if use.columns is None or expression_id in use.columns]
        frame = self._read(scan, sizes, names, use)
        if frame is None:
            return leaf
        self._changed = True
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        # Each access to a class of Java is a request to it, as each call is.
        output = leaf.output()
        if plan.nodeName() == _LEAF:
            # The same attributes as before, which the nodes above refer to.
            attributes_read = [output.apply(number) for number, name in enumerate(pairs) if name in names]
            attributes = output if len(attributes_read) == len(pairs) else self._sequence(attributes_read)
            plan = self._catalyst.plans.logical.MapInArrow(
                plan.functionExpr(), attributes, plan.child(), plan.isBarrier(), plan.profile()
            )
        else:
            names = []
        absent = [
            name
            for name, expression_id in pairs.items()
            if name not in names and (named is None or expression_id in named)
        ]
        if plan.nodeName() == _LEAF and not absent:
            return plan
        alias, literal = self._expressions.Alias, self._expressions.Literal
        empty, none = self._sequence([]), self._jvm.scala.Option.empty()
        columns = []
        for number, name in enumerate(pairs):
            if name in names:
                columns.append(output.apply(number))
            elif name in absent:
                attribute = output.apply(number)
                null = literal(None, attribute.dataType())
                columns.append(alias(null, name, attribute.exprId(), empty, none, empty))
        return self._catalyst.plans.logical.Project(self._sequence(columns), plan)

    def _read(self, scan: Scan, sizes: Sequence[FragmentSize], names: list[str], use: _Use) -> DataFrame | None:
        """Return the frame that reads the used columns and rows; None when all are used."""
        condition = use.filter
        reads_all_rows = condition is None and scan.filter is None and use.limit is None
        if not names and reads_all_rows and not self._keeps_tasks:
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
        tasks_of = scan if self._keeps_tasks else None
        return scan_frame(self._spark, part, sizes, use.name, tasks_of=tasks_of, sized=self._has_joins)


def _optimised(df: ClassicDataFrame) -> _PlanNode:
    execution: Any = df._jdf.queryExecution()  # noqa: SLF001
    return _PlanNode.of(execution.optimizedPlan())


def _conjuncts(condition: Any) -> Iterator[Any]:  # noqa: ANN401 - Java objects
    """Yield the parts of a condition that must all be true, in their order."""
    if condition.nodeName() == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _key(leaf: Any) -> int:  # noqa: ANN401 - a Java object
    """Return the expression id of the first column of a read."""
    expression_id: int = leaf.output().apply(0).exprId().id()
    return expression_id


def _copied(leaves: Sequence[_PlanNode], analyzed: Any) -> set[str]:  # noqa: ANN401 - a Java object
    """Return the names of the scans that the optimiser copied, as it does for a common table expression used twice.

    The copies have expression ids of their own, so it is unknown which columns they use of the read in the analysed
    plan that they were copied from.
    """
    optimised_reads = Counter((leaf.function, _key(leaf.java)) for leaf in leaves)
    analyzed_reads = Counter((leaf.function, _key(leaf.java)) for leaf, _ in _leaves(_PlanNode.of(analyzed), ()))
    return {function for function, _ in optimised_reads - analyzed_reads}


def _leaves(node: _PlanNode, above: tuple[_PlanNode, ...]) -> Iterator[tuple[_PlanNode, tuple[_PlanNode, ...]]]:
    """Yield the reads of Lance tables in a plan, with the nodes above each from the top."""
    if node.function in _scans:
        yield node, above
    for child in node.children:
        yield from _leaves(child, (*above, node))


def _ids(value: object) -> list[int]:
    """Return the expression ids of all columns that are named anywhere in some JSON of Spark."""
    if isinstance(value, Mapping):
        own = [value["exprId"]["id"]] if str(value.get("class")).endswith(".AttributeReference") else []
        return own + [expression_id for part in value.values() for expression_id in _ids(part)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [expression_id for part in value for expression_id in _ids(part)]
    return []
