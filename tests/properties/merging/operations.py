"""Every kind of operation on a branch; this module has those on the table as a whole."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.properties.merging import column_operations, row_operations
from tests.properties.merging.operation_context import OperationContext, OperationResult


def restore(context: OperationContext) -> OperationResult | None:
    """Go back to an older version of the same branch."""
    if not context.line:
        return None
    node = context.dice.pick(sorted(context.line))
    context.writer.restore(context.branch, node[1])
    return OperationResult(did="restore", told=f"to {node[0]}@{node[1]}", result=context.line[node], restored=node)


def _mapped(context: OperationContext, kind: str, own: Mapping[str, str]) -> OperationResult:
    key, value = f"k{context.dice.below(3)}", None if context.dice.below(4) == 0 else f"v{context.dice.below(40)}"
    if key not in own and value is None:
        value = "v"
    (context.writer.configure if kind == "config" else context.writer.describe)(context.branch, key, value)
    changed = {name: text for name, text in {**own, key: value}.items() if text is not None}
    result = replace(context.seen, config=changed) if kind == "config" else replace(context.seen, metadata=changed)
    return OperationResult(did=kind, told=f"{key} = {value}", result=result)


def configure(context: OperationContext) -> OperationResult:
    """Set or delete a key of the config."""
    return _mapped(context, "config", context.seen.config)


def describe(context: OperationContext) -> OperationResult:
    """Set or delete a key of the table's metadata."""
    return _mapped(context, "metadata", context.seen.metadata)


def index(context: OperationContext) -> OperationResult | None:
    """Create an index."""
    column = context.free_column(scalar=True, unindexed=True)
    if column is None or not context.seen.rows:
        return None
    name = f"i{context.stamp}"
    kind = "BTREE" if context.dice.below(2) else "BITMAP"
    context.dataset.create_scalar_index(column.name, kind, name=name)  # type: ignore[arg-type]
    result = replace(context.seen, indices={**context.seen.indices, name: column.token})
    return OperationResult(did="index", told=f"{kind} on {column.name}", result=result)


def drop_index(context: OperationContext) -> OperationResult | None:
    """Drop an index."""
    if not context.seen.indices:
        return None
    name = context.dice.pick(sorted(context.seen.indices))
    context.dataset.drop_index(name)
    left = {own: token for own, token in context.seen.indices.items() if own != name}
    return OperationResult(did="drop index", told=name, result=replace(context.seen, indices=left))


def optimize(context: OperationContext) -> OperationResult | None:
    """Bring the indices up to date."""
    if not context.seen.indices:
        return None
    context.dataset.optimize.optimize_indices()
    return OperationResult(did="optimize", told="", result=context.seen)


Operation = Callable[[OperationContext], OperationResult | None]
OPERATIONS: dict[str, tuple[Operation, int]] = {
    "append": (row_operations.append, 10),
    "delete": (row_operations.delete, 7),
    "update": (row_operations.update, 7),
    "upsert": (row_operations.upsert, 5),
    "upsert partly": (row_operations.upsert_partly, 3),
    "replace": (row_operations.replace_part, 4),
    "overwrite": (row_operations.overwrite, 1),
    "compact": (row_operations.compact, 5),
    "add null": (column_operations.add_null, 3),
    "add computed": (column_operations.add_computed, 4),
    "drop": (column_operations.drop, 2),
    "rename": (column_operations.rename, 2),
    "cast": (column_operations.cast, 2),
    "nullable": (column_operations.forbid_nulls, 1),
    "rewrite": (column_operations.rewrite, 2),
    "replace data": (column_operations.replace_data, 1),
    "restore": (restore, 1),
    "config": (configure, 2),
    "metadata": (describe, 2),
    "index": (index, 3),
    "drop index": (drop_index, 1),
    "optimize": (optimize, 1),
}
"""Every kind of work, and how often it comes."""
