"""A sensor that finds tables below a root that no asset represents.

A ref sensor watches tables that are named when the definitions load. This sensor finds tables that other programs
create while the code location runs: each becomes a materialization, a dynamic partition, a run, or all of these.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import dagster as dg

from lance_dagster.errors import LanceDagsterError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import check_flag, check_options, parsed_json, require_sequence
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.operate.ref_sensor import SensorOptions, check_sensor_options, version_materialization
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import (
    RESOURCE_KEY,
    TableAddress,
    TableAsset,
    asset_key_of,
    metadata_of,
    table_address,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.store import Store

_ENDING = ".lance"
_NAMED = 8
# A root such as a home folder would otherwise be walked whole.
_DEEPEST = 8


def build_discovery_sensor(
    name: str,
    *,
    known: Sequence[TableAsset] = (),
    folder: str = "",
    partitions_def: dg.DynamicPartitionsDefinition | None = None,
    from_start: bool = False,
    resource_key: str = RESOURCE_KEY,
    **options: Unpack[SensorOptions],
) -> dg.SensorDefinition:
    """Build a sensor that reports new tables below the root of a `LanceResource`, or of its environment.

    A new table becomes a materialization of the external asset `main/<path of the table>`, which needs no definition.
    With `partitions_def`, its path becomes a dynamic partition. With `job`, a run is requested for it: for its
    partition, or else with the path in the tag `lance/table`. Its later versions are reported by a ref sensor. Folders
    whose names begin with a dot or an underscore are not looked into, as by `LanceRepository.discover`.

    Args:
        name: The sensor's name.
        known: The assets whose tables are not reported.
        folder: The folder below the root to look in; empty for the whole root.
        partitions_def: The dynamic partitions, one for each table.
        from_start: Whether the first tick reports the tables that exist already. Otherwise it only records them.
        resource_key: The key of the `LanceResource`.
        options: Passed to `dg.sensor`: `job`, `minimum_interval_seconds`, `default_status`, `description`.

    Raises:
        InvalidInputError: An option is unknown or has a value of another kind, or `folder` leaves the root.
    """
    check_options(build_discovery_sensor, options, SensorOptions)
    check_sensor_options(options)
    check_flag("from_start", from_start)
    require_sequence("known", known, "shop/orders")
    expected = {str(table_address(asset_key_of(table), metadata_of(table))) for table in known}
    with_runs = "job" in options
    if folder:
        TableAddress(tuple(folder.split("/")))  # refuses a path that leaves the root

    @dg.sensor(name=name, required_resource_keys={resource_key}, **options)  # type: ignore[arg-type]
    def discovery_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lance: LanceResource = getattr(context.resources, resource_key)
        reported = _reported(context.cursor)
        if context.cursor and reported is None:
            context.log.warning("the cursor of this sensor is damaged, so the tables that exist now count as reported")
        from lance_dagster.store import open_store

        store = open_store(lance.tables_root(), lance.connection_options)
        paths = [path for path in _tables_below(store, folder) if path not in expected]
        is_first = reported is None and not (from_start and not context.cursor)
        new = [] if is_first else _opened(context, lance, [path for path in paths if path not in (reported or ())])
        requests = [_request(path, head, partitions_def) for path, head in new] if with_runs else []
        new_paths = [path for path, _ in new]
        text = f"{len(new)} new: {md.listed(new_paths, _NAMED)}" if new else f"no new table among {len(paths)}"
        added = partitions_def.build_add_request(new_paths) if partitions_def and new else None
        return dg.SensorResult(
            asset_events=[version_materialization(dg.AssetKey([MAIN, *path.split("/")]), head) for path, head in new],
            dynamic_partitions_requests=[added] if added else None,
            run_requests=requests or None,
            skip_reason=None if requests else text,
            # Only tables that exist: a table that is dropped and created again is new.
            cursor=json.dumps(sorted(paths if is_first else {*new_paths, *(set(paths) & (reported or set()))})),
        )

    return discovery_sensor


def _tables_below(store: "Store", folder: str) -> Iterator[str]:
    """Yield the paths of the tables below a folder, without the ending, in order."""
    for name in store.folders(folder):
        path = f"{folder}/{name}" if folder else name
        # Folders that start with a dot or an underscore hold the repository's own files, environments, and the state of
        # other programs.
        if name.endswith(_ENDING):
            yield path.removesuffix(_ENDING)
        elif not name.startswith((".", "_")) and path.count("/") < _DEEPEST:
            yield from _tables_below(store, path)


def _opened(
    context: dg.SensorEvaluationContext, lance: LanceResource, paths: Sequence[str]
) -> "list[tuple[str, Version]]":
    """Return the heads of the tables that can be opened; the next tick tries the remaining tables again."""
    from lance_dagster.table import LanceTable

    heads = []
    for path in paths:
        try:
            heads.append((path, LanceTable.open(lance.uri_of(path), lance.connection_options).head(MAIN)))
        except LanceDagsterError as error:
            # Such as a folder into which the first version is just being written.
            context.log.warning("%s is not reported: %s", path, error)
    return heads


def _request(path: str, head: "Version", partitions_def: dg.DynamicPartitionsDefinition | None) -> dg.RunRequest:
    # The transaction, because a table that is created again has the same path.
    key = f"lance:new:{path}:{head.transaction[:8]}"
    tags: Mapping[str, str] = {md.TABLE: path, md.REF: str(head)}
    return dg.RunRequest(run_key=key, tags=tags, partition_key=path if partitions_def else None)


def _reported(cursor: str | None) -> set[str] | None:
    """Return the tables in a cursor, or None when there is no cursor or it is damaged."""
    try:
        paths = parsed_json(cursor or "null")
    except ValueError:
        return None
    return set(paths) if isinstance(paths, list) and all(isinstance(path, str) for path in paths) else None
