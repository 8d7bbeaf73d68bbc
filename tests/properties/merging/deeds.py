"""Every kind of work on a branch; here, that on the table as a whole."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.properties.merging import column_deeds, row_deeds
from tests.properties.merging.scene import Deed, Scene


def restore(scene: Scene) -> Deed | None:
    """Go back to an older version of the same branch."""
    if not scene.line:
        return None
    node = scene.dice.pick(sorted(scene.line))
    scene.writer.restore(scene.branch, node[1])
    return Deed(did="restore", told=f"to {node[0]}@{node[1]}", result=scene.line[node], restored=node)


def _mapped(scene: Scene, kind: str, own: Mapping[str, str]) -> Deed:
    key, value = f"k{scene.dice.below(3)}", None if scene.dice.below(4) == 0 else f"v{scene.dice.below(40)}"
    if key not in own and value is None:
        value = "v"
    (scene.writer.configure if kind == "config" else scene.writer.describe)(scene.branch, key, value)
    changed = {name: text for name, text in {**own, key: value}.items() if text is not None}
    result = replace(scene.seen, config=changed) if kind == "config" else replace(scene.seen, metadata=changed)
    return Deed(did=kind, told=f"{key} = {value}", result=result)


def configure(scene: Scene) -> Deed:
    """Set a key of the configuration, or take it out."""
    return _mapped(scene, "config", scene.seen.config)


def describe(scene: Scene) -> Deed:
    """Set a key of the table's metadata, or take it out."""
    return _mapped(scene, "metadata", scene.seen.metadata)


def index(scene: Scene) -> Deed | None:
    """Make an index."""
    column = scene.free_column(scalar=True, unindexed=True)
    if column is None or not scene.seen.rows:
        return None
    name = f"i{scene.stamp}"
    kind = "BTREE" if scene.dice.below(2) else "BITMAP"
    scene.dataset.create_scalar_index(column.name, kind, name=name)  # type: ignore[arg-type]
    result = replace(scene.seen, indices={**scene.seen.indices, name: column.token})
    return Deed(did="index", told=f"{kind} on {column.name}", result=result)


def drop_index(scene: Scene) -> Deed | None:
    """Drop an index."""
    if not scene.seen.indices:
        return None
    name = scene.dice.pick(sorted(scene.seen.indices))
    scene.dataset.drop_index(name)
    left = {own: token for own, token in scene.seen.indices.items() if own != name}
    return Deed(did="drop index", told=name, result=replace(scene.seen, indices=left))


def optimize(scene: Scene) -> Deed | None:
    """Bring the indices up to date."""
    if not scene.seen.indices:
        return None
    scene.dataset.optimize.optimize_indices()
    return Deed(did="optimize", told="", result=scene.seen)


Doing = Callable[[Scene], Deed | None]
DEEDS: dict[str, tuple[Doing, int]] = {
    "append": (row_deeds.append, 10),
    "delete": (row_deeds.delete, 7),
    "update": (row_deeds.update, 7),
    "upsert": (row_deeds.upsert, 5),
    "upsert partly": (row_deeds.upsert_partly, 3),
    "replace": (row_deeds.replace_part, 4),
    "overwrite": (row_deeds.overwrite, 1),
    "compact": (row_deeds.compact, 5),
    "add null": (column_deeds.add_null, 3),
    "add computed": (column_deeds.add_computed, 4),
    "drop": (column_deeds.drop, 2),
    "rename": (column_deeds.rename, 2),
    "cast": (column_deeds.cast, 2),
    "nullable": (column_deeds.forbid_nulls, 1),
    "rewrite": (column_deeds.rewrite, 2),
    "replace data": (column_deeds.replace_data, 1),
    "restore": (restore, 1),
    "config": (configure, 2),
    "metadata": (describe, 2),
    "index": (index, 3),
    "drop index": (drop_index, 1),
    "optimize": (optimize, 1),
}
"""Every kind of work, and how often it comes."""
