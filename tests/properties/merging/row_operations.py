"""Changes of rows, made by one of two programs, and their effect on the model."""

from dataclasses import replace

from tests.properties.merging.operation_context import PARTS, OperationContext, OperationResult, where
from tests.properties.merging.rows_model import PART, Claim
from tests.properties.replica import KEY


def append(context: OperationContext) -> OperationResult:
    """Add rows; the package sometimes names their partition."""
    part = context.dice.pick(list(PARTS))
    rows = context.new_rows(part=part)
    data = context.seen.arrow(rows.values())
    named = context.by_package and context.dice.below(3) == 0
    if named:
        context.table.append(data, branch=context.branch, partitions=[part])
    else:
        context.writer.append(context.branch, data)
    result = context.seen.put(rows, context.stamp)
    return OperationResult(
        did="append", told=f"{sorted(rows)} to {part}", result=result, partitions=(part,) if named else ()
    )


def delete(context: OperationContext) -> OperationResult | None:
    """Delete rows."""
    uids = context.uids()
    if not uids:
        return None
    context.writer.delete(context.branch, where(uids))
    return OperationResult(did="delete", told=f"{uids}", result=context.seen.without(uids))


def update(context: OperationContext) -> OperationResult | None:
    """Change the values of rows in one column, or move rows to another partition."""
    uids, column = context.uids(), context.free_column(scalar=True)
    if context.dice.below(6) == 0:
        column = context.seen.by_name(PART)
    if not uids or column is None:
        return None
    value = (
        context.dice.pick(list(PARTS)) if column.name == PART else context.names.filled((column,), 0, "")[column.token]
    )
    literal = "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
    context.writer.update(context.branch, {column.name: literal}, where(uids))
    result = context.seen.put({uid: {column.token: value} for uid in uids}, context.stamp)
    return OperationResult(did="update", told=f"{column.name} = {literal} of {uids}", result=result)


def upsert(context: OperationContext) -> OperationResult:
    """Update all columns of rows, and insert some; the package sometimes inserts rows that another branch added too.

    Pylance does not record the keys of a row, so nobody could know that both branches mean the same row.
    """
    uids, rows = context.uids(2), context.new_rows(2)
    if context.by_package and context.taken and context.dice.below(5) == 0:
        rows = {uid: context.names.filled(context.seen.columns, uid, "a") for uid in sorted(context.taken)[:1]}
    if context.dice.below(2):
        rows = {} if uids else rows
    part = context.seen.by_name(PART)
    assert part is not None
    for uid in uids:
        rows[uid] = context.names.filled(context.seen.columns, uid, str(context.seen.rows[uid].value(part)))
    context.writer.upsert(context.branch, context.seen.arrow(rows.values()))
    return OperationResult(did="upsert", told=f"{sorted(rows)}", result=context.seen.put(rows, context.stamp))


def upsert_partly(context: OperationContext) -> OperationResult | None:
    """Change the values of rows in one column, by their keys; a program may do that in place."""
    uids, column = context.uids(), context.free_column(unindexed=True)
    key = context.seen.by_name(KEY)
    if not uids or column is None or key is None:
        return None
    values = {uid: context.names.filled((column,), 0, "")[column.token] for uid in uids}
    data = context.seen.arrow(
        [{key.token: uid, column.token: value} for uid, value in values.items()], [key.token, column.token]
    )
    if context.by_package:
        context.table.upsert(data, on=[KEY], branch=context.branch, when_not_matched="ignore")
    else:
        context.dataset.merge_insert(KEY).when_matched_update_all().execute(data)
    result = context.seen.rewritten(column.token, values, context.stamp, partly=True)
    return OperationResult(did="upsert partly", told=f"{column.name} of {values}", result=result)


def replace_part(context: OperationContext) -> OperationResult | None:
    """Replace a partition, or rows that match a condition, which only this package can do."""
    if not context.by_package:
        return None
    part, how = context.dice.pick(list(PARTS)), context.dice.below(4)
    rows = {} if how == 0 else context.new_rows(part=part)
    claim = Claim(f"{PART} = '{part}'", lambda _, row: row[PART] == part, (part,) if how < 3 else ())
    context.table.replace_where(
        claim.what, context.seen.arrow(rows.values()), branch=context.branch, partitions=list(claim.partitions)
    )
    result = context.seen.without(context.seen.where(claim)).put(rows, context.stamp)
    return OperationResult(
        did="replace", told=f"{part} by {sorted(rows)}", result=result, claims=(claim,), partitions=claim.partitions
    )


def overwrite(context: OperationContext) -> OperationResult:
    """Overwrite the table with rows of the same columns, whose history starts anew."""
    given = context.new_rows()
    context.writer.overwrite(context.branch, context.seen.arrow(given.values()))
    stamp = context.stamp
    tokens = {column.token: next(context.names.numbers) for column in context.seen.columns}
    columns = tuple(replace(column, token=tokens[column.token], computed=False) for column in context.seen.columns)
    empty = replace(context.seen, columns=columns, rows={}, indices={})
    rows = {uid: {tokens[token]: value for token, value in row.items()} for uid, row in given.items()}
    claim = Claim("everything", lambda *_: True, whole=True)
    return OperationResult(did="overwrite", told=f"by {sorted(rows)}", result=empty.put(rows, stamp), claims=(claim,))


def compact(context: OperationContext) -> OperationResult | None:
    """Compact small fragments, but not of a branch with indices: pylance's compaction breaks inherited indices."""
    if context.seen.indices and context.branch != "main":
        return None
    if context.by_package:
        context.table.maintenance.compact(branch=context.branch, deleted_share=0.0)
    else:
        context.dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    return OperationResult(did="compact", told="", result=context.seen)
