# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
"""A code location whose runs append one row to each of its tables."""

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, LanceResource, RowCount, build_publisher, build_table_checks
from lance_dagster.plugin.publish.publication import Publication, landing_properties
from lance_dagster.plugin.run_branch import RunChain
from tests.plugin.shop import ids_of

KEYS = [dg.AssetKey(["shop", name]) for name in ("orders", "lines")]


class Location:
    """A code location that appends one row to tables, and promotes them by a tag."""

    def __init__(
        self,
        root: Path,
        *names: str,
        instance: dg.DagsterInstance,
        tag: str = "production",
        mode: str = "append",
        **fields: Any,
    ) -> None:
        self.mode = mode
        self.lance, self.instance, self.number, self.tag = LanceResource(root=str(root), **fields), instance, 0, tag
        self.assets = [self._asset(name) for name in names or ("orders", "lines")]
        self.publisher = build_publisher(self.assets, tag=tag)
        self.checks = [one for asset in self.assets for one in build_table_checks(asset, [RowCount(minimum=1)])]

    def _asset(self, name: str) -> dg.AssetsDefinition:
        @dg.asset(key=["shop", name], metadata={"lance/write_mode": self.mode})
        def rows() -> pa.Table:
            return pa.table({"id": [self.value(name)]})

        return rows

    def value(self, name: str) -> int:
        """The id that a run appends to a table."""
        del name
        return self.number

    def run(self, number: int, *, publish: bool = True) -> dg.ExecuteInProcessResult:
        """Write a row, check it, publish it."""
        self.number = number
        return self._execute([*self.assets, *self.checks, *([self.publisher] if publish else [])])

    def publish_by_tags(self, number: int) -> None:
        """Write a row, and bring it to `main` and to the tag of each table, without a commit of all tables."""
        run_id = self.run(number, publish=False).run_id
        for asset in self.assets:
            table = self.lance.table(asset.key)
            sources = (table.head(f"run/{run_id}"),)
            one = Publication(candidate=asset.key, promoted=asset.key, table=table, sources=sources)
            about = landing_properties(one, RunChain(run_ids=(run_id,)))
            landed = table.merge(f"run/{run_id}", mode="ff-only", properties=about)
            place = table.tags.move if self.tag in table.tags.list() else table.tags.create
            place(self.tag, landed)
            table.branches.delete(f"run/{run_id}")
        # Tables of the time before there was a repository: a run that writes a table makes one.
        shutil.rmtree(Path(self.lance.root) / "_repository")

    def act(self, *selection: dg.AssetKey, **config: object) -> dg.ExecuteInProcessResult:
        """Materialize the promoted nodes, as *Materialize* does."""
        return self._execute(
            [*self.assets, *self.checks, self.publisher],
            selection=list(selection or self.publisher.keys),
            run_config={"ops": {self.publisher.node_def.name: {"config": config}}},
        )

    def seen(self, name: str = "orders") -> list[int]:
        """The ids that a run sees when it reads the tag."""
        table = self.lance.table(f"shop/{name}")
        return ids_of(table.read(self.lance.version_at(table, self.tag, None)))

    def _execute(self, assets: list[Any], **options: Any) -> dg.ExecuteInProcessResult:
        resources = {"lance": self.lance, "io_manager": LanceIOManager(lance=self.lance)}
        return dg.materialize(assets, resources=resources, instance=self.instance, raise_on_error=False, **options)
