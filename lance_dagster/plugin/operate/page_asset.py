"""An asset that writes the page of the lake, for the person who is called first."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import dagster as dg

from lance_dagster.errors import NotFoundError
from lance_dagster.format.validation import check_options, require_sequence, web_address
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of

FILE = "lake.html"


class PageAssetOptions(TypedDict, total=False):
    """The options of the asset of the page.

    `path` is the file to write, on the machine of the run; without it, the page is `lake.html` below the root of the
    resource. `commits`, `dagster_url` and `preview_rows` are those of `lake_page`. `name` is the name of the asset,
    `lake_page` if left out, `group_name` its group.
    """

    path: str | os.PathLike[str] | None
    commits: int
    dagster_url: str
    preview_rows: int
    name: str
    group_name: str | None


def build_page_asset(
    after: Sequence[TableAsset] = (), *, resource_key: str = RESOURCE_KEY, **options: Unpack[PageAssetOptions]
) -> dg.AssetsDefinition:
    """Build an asset that writes the page of the lake: channels, candidates, the graph of commits, and tables.

    It reads the lake and writes one HTML file, which loads nothing. A page is as old as its materialization, and a
    publisher that refuses materializes nothing: run the asset by a schedule.

    Args:
        after: The assets after which it is materialized in a job that has them too, such as promoted nodes.
        resource_key: The key of the `LanceResource`.
        **options: See `PageAssetOptions`.

    Raises:
        InvalidInputError: An option has the wrong type, or `dagster_url` is no address.

    Examples:
        >>> page = build_page_asset(dagster_url="https://dagster.example.com")
    """
    require_sequence("after", after, "production/shop/orders")
    check_options(build_page_asset, options, PageAssetOptions)
    path, address = options.get("path"), web_address("dagster_url", options.get("dagster_url", ""))

    @dg.asset(
        name=options.get("name", "lake_page"),
        group_name=options.get("group_name"),
        deps=[asset_key_of(asset) for asset in after],
        required_resource_keys={resource_key},
        kinds={"lance", "html"},
        description="The lake on one page: channels, candidates that wait or were refused, commits, and tables.",
    )
    def lake_page(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        # Imported only in a run, as all modules are that loading a code location does not need.
        from lance_dagster.page.lake_page import PageOptions, page_and_facts
        from lance_dagster.store import open_store

        lance: LanceResource = getattr(context.resources, resource_key)
        repository = lance.open_repository()
        if repository is None:
            raise NotFoundError(f"there is no repository at {lance.tables_root()}; the first publication creates it")
        chosen: PageOptions = {
            "commits": options.get("commits", 1000),
            "dagster_url": address,
            "preview_rows": options.get("preview_rows", 0),
        }
        page, facts = page_and_facts(repository, **chosen)
        data = page.encode()
        if path is None:
            open_store(lance.tables_root(), lance.connection_options).put(FILE, data)
        else:
            Path(path).write_bytes(data)
        place = f"{repository.root}/{FILE}" if path is None else os.fspath(path)
        return dg.MaterializeResult(
            metadata={
                "page": dg.MetadataValue.path(place),
                "candidates": len(facts.candidates),
                # Dagster plots numbers over time, on the page of the asset.
                "lance/rows_published": facts.rows,
                "lance/rows_waiting": facts.rows_waiting,
                "lance/rows_rejected": facts.rows_rejected,
                "lance/bytes": len(data),
            }
        )

    return lake_page
