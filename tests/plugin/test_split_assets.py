"""Multi-assets that Dagster executes in several steps, because another table is computed between their tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceRepository,
    LanceResource,
    RowCount,
    build_publisher,
    build_table_checks,
    lance_assets,
    validate_definitions,
)
from lance_dagster.plugin.table_asset import TableAsset

TABLES = ("first", "middle", "last")
CHECKS = {name: [RowCount(minimum=1)] for name in TABLES}


def surrounding(*skipped: str, reads: str = "middle") -> dg.AssetsDefinition:
    """A multi-asset of a first and a last table, the last of which is computed from another asset."""

    @dg.multi_asset(
        outs={name: dg.AssetOut(is_required=False) for name in ("first", "last")},
        internal_asset_deps={"first": set(), "last": {dg.AssetKey(reads.split("/"))}},
        deps=[reads],
        can_subset=True,
    )
    def outer(context: dg.AssetExecutionContext) -> Iterator[dg.Output[pa.Table]]:
        for key in context.selected_asset_keys:
            if (name := key.to_user_string()) not in skipped:
                yield dg.Output(pa.table({"id": [1]}), name)

    return outer


@dg.asset(deps=["first"])
def middle() -> pa.Table:
    """A table between the other two."""
    return pa.table({"id": [1, 2]})


def definitions(root: Path, tables: Sequence[TableAsset], *assets: dg.AssetsDefinition) -> dg.Definitions:
    """The assets, their checks, and a publisher of these tables."""
    lance = LanceResource(root=str(root))
    return dg.Definitions(
        [*assets, build_publisher(tables)],
        asset_checks=[check for name, checks in CHECKS.items() for check in build_table_checks(name, checks)],
        jobs=[dg.define_asset_job("load_and_publish", "*")],
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
    )


@pytest.mark.parametrize("skipped", [(), ("last",)], ids=["nothing", "last"])
@pytest.mark.parametrize("usual", [True, False], ids=["lance_assets", "build_publisher"])
def test_all_tables_are_published_by_one_commit(tmp_path: Path, skipped: Sequence[str], *, usual: bool) -> None:
    """One step publishes the tables before, between and after, and leaves out an optional one that was skipped."""
    outer = surrounding(*skipped)
    if usual:
        defs = lance_assets([outer, middle], root=tmp_path, checks=CHECKS)
    else:
        defs = validate_definitions(definitions(tmp_path, [outer, middle], outer, middle))
    for number in (1, 2):
        assert defs.resolve_job_def("load_and_publish").execute_in_process().success
        repository = LanceRepository.open(tmp_path)
        assert sorted({*TABLES} - {*skipped}) == sorted(repository.at("production"))
        assert number == sum("publish" in commit.message for commit in repository.log("production"))


@pytest.mark.parametrize("tables", [TABLES, ("first", "last")])
def test_a_publisher_that_knows_only_keys_is_refused(tmp_path: Path, tables: Sequence[str]) -> None:
    """Dagster would split the publisher too, and no step of it may publish a part of a run."""
    defs = definitions(tmp_path, tables, surrounding(), middle)
    with pytest.raises(InvalidInputError):
        validate_definitions(defs)


def test_publishers_of_other_assets_may_know_only_keys(tmp_path: Path) -> None:
    """This holds for a multi-asset that nothing stands between, and for a table that one publisher publishes alone."""
    outer = surrounding(reads="source")
    validate_definitions(definitions(tmp_path, TABLES, outer, middle))
    validate_definitions(definitions(tmp_path, ["first"], surrounding(), middle))


def test_a_publisher_of_layers_may_be_split(tmp_path: Path) -> None:
    """Where a table is computed from a published one, Dagster splits the publisher, and each step is a publication."""

    @dg.asset(name="middle", deps=[dg.AssetKey(["production", "first"])])
    def layer() -> pa.Table:
        return pa.table({"id": [1, 2]})

    defs = validate_definitions(definitions(tmp_path, TABLES, surrounding(), layer))
    names = {node.name for node in defs.resolve_job_def("load_and_publish").graph.nodes}
    assert {"publish_production", "publish_production_2"} <= names
