"""Work on rows, done by one of two programs, and what it makes of the model."""

from dataclasses import replace

from tests.properties.merging.rows_model import PART, Claim
from tests.properties.merging.scene import PARTS, Deed, Scene, where
from tests.properties.mirror import KEY


def append(scene: Scene) -> Deed:
    """Add rows; by us at times with the name of their partition."""
    part = scene.dice.pick(list(PARTS))
    rows = scene.new_rows(part=part)
    data = scene.seen.arrow(rows.values())
    named = scene.ours and scene.dice.below(3) == 0
    if named:
        scene.table.append(data, branch=scene.branch, partitions=[part])
    else:
        scene.writer.append(scene.branch, data)
    result = scene.seen.put(rows, scene.stamp)
    return Deed(did="append", told=f"{sorted(rows)} to {part}", result=result, partitions=(part,) if named else ())


def delete(scene: Scene) -> Deed | None:
    """Take rows out."""
    uids = scene.uids()
    if not uids:
        return None
    scene.writer.delete(scene.branch, where(uids))
    return Deed(did="delete", told=f"{uids}", result=scene.seen.without(uids))


def update(scene: Scene) -> Deed | None:
    """Give rows another value in one column, or put them into another partition."""
    uids, column = scene.uids(), scene.free_column(scalar=True)
    if scene.dice.below(6) == 0:
        column = scene.seen.by_name(PART)
    if not uids or column is None:
        return None
    value = scene.dice.pick(list(PARTS)) if column.name == PART else scene.names.filled((column,), 0, "")[column.token]
    literal = "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
    scene.writer.update(scene.branch, {column.name: literal}, where(uids))
    result = scene.seen.put({uid: {column.token: value} for uid in uids}, scene.stamp)
    return Deed(did="update", told=f"{column.name} = {literal} of {uids}", result=result)


def upsert(scene: Scene) -> Deed:
    """Give rows other values in every column, and add some; by us at times some that another branch added too.

    Pylance does not say of which keys a row is, so nobody could tell that both mean the same.
    """
    uids, rows = scene.uids(2), scene.new_rows(2)
    if scene.ours and scene.taken and scene.dice.below(5) == 0:
        rows = {uid: scene.names.filled(scene.seen.columns, uid, "a") for uid in sorted(scene.taken)[:1]}
    if scene.dice.below(2):
        rows = {} if uids else rows
    part = scene.seen.by_name(PART)
    assert part is not None
    for uid in uids:
        rows[uid] = scene.names.filled(scene.seen.columns, uid, str(scene.seen.rows[uid].value(part)))
    scene.writer.upsert(scene.branch, scene.seen.arrow(rows.values()))
    return Deed(did="upsert", told=f"{sorted(rows)}", result=scene.seen.put(rows, scene.stamp))


def upsert_partly(scene: Scene) -> Deed | None:
    """Give rows other values in one column, by their keys; a program may do that in place."""
    uids, column = scene.uids(), scene.free_column(unindexed=True)
    key = scene.seen.by_name(KEY)
    if not uids or column is None or key is None:
        return None
    values = {uid: scene.names.filled((column,), 0, "")[column.token] for uid in uids}
    data = scene.seen.arrow(
        [{key.token: uid, column.token: value} for uid, value in values.items()], [key.token, column.token]
    )
    if scene.ours:
        scene.table.upsert(data, on=[KEY], branch=scene.branch, when_not_matched="ignore")
    else:
        scene.dataset.merge_insert(KEY).when_matched_update_all().execute(data)
    result = scene.seen.rewritten(column.token, values, scene.stamp, partly=True)
    return Deed(did="upsert partly", told=f"{column.name} of {values}", result=result)


def replace_part(scene: Scene) -> Deed | None:
    """Replace a partition, or rows by a condition; this package alone can."""
    if not scene.ours:
        return None
    part, how = scene.dice.pick(list(PARTS)), scene.dice.below(4)
    rows = {} if how == 0 else scene.new_rows(part=part)
    claim = Claim(f"{PART} = '{part}'", lambda _, row: row[PART] == part, (part,) if how < 3 else ())
    scene.table.replace_where(
        claim.what, scene.seen.arrow(rows.values()), branch=scene.branch, partitions=list(claim.partitions)
    )
    result = scene.seen.without(scene.seen.where(claim)).put(rows, scene.stamp)
    return Deed(
        did="replace", told=f"{part} by {sorted(rows)}", result=result, claims=(claim,), partitions=claim.partitions
    )


def overwrite(scene: Scene) -> Deed:
    """Replace everything by rows of the same columns; their history starts anew."""
    given = scene.new_rows()
    scene.writer.overwrite(scene.branch, scene.seen.arrow(given.values()))
    stamp = scene.stamp
    tokens = {column.token: next(scene.names.numbers) for column in scene.seen.columns}
    columns = tuple(replace(column, token=tokens[column.token], computed=False) for column in scene.seen.columns)
    empty = replace(scene.seen, columns=columns, rows={}, indices={})
    rows = {uid: {tokens[token]: value for token, value in row.items()} for uid, row in given.items()}
    claim = Claim("everything", lambda *_: True, whole=True)
    return Deed(did="overwrite", told=f"by {sorted(rows)}", result=empty.put(rows, stamp), claims=(claim,))


def compact(scene: Scene) -> Deed | None:
    """Put rows of small fragments together. Pylance's own breaks indices that a branch inherited."""
    if scene.seen.indices and scene.branch != "main":
        return None
    if scene.ours:
        scene.table.compact(branch=scene.branch, deleted_share=0.0)
    else:
        scene.dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    return Deed(did="compact", told="", result=scene.seen)
