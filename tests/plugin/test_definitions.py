# ruff: noqa: ANN401 - what Dagster takes is handed on as it comes
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    RowCount,
    S3Options,
    build_publisher,
    build_ref_sensor,
    build_table_checks,
    ref_asset_specs,
    validate_definitions,
)

DAYS = dg.StaticPartitionsDefinition(["a", "b"])
LAKE = LanceResource(root="/lake")
_DAY = {"lance/partition_expr": "day"}


def asset(key: str, metadata: Mapping[str, Any] | None = None, **options: Any) -> dg.AssetsDefinition:
    """An asset whose value the IO manager stores."""

    def rows() -> pa.Table:
        return pa.table({"id": [1]})

    made: dg.AssetsDefinition = dg.asset(key=key.split("/"), metadata=metadata, **options)(rows)
    return made


def definitions(
    *assets: Any,
    checks: Sequence[Any] = (),
    sensors: Sequence[Any] = (),
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Definitions over one root, unless resources are given."""
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        sensors=sensors,
        resources=resources or {"lance": LAKE, "io_manager": LanceIOManager(lance=LAKE)},
    )


def findings(defs: dg.Definitions) -> list[str]:
    """The lines of the validation error; empty when the definitions are accepted."""
    try:
        assert defs is validate_definitions(defs)
    except InvalidInputError as error:
        first, *lines = str(error).splitlines()
        assert first == "these definitions cannot work:"
        return [line.removeprefix("- ") for line in lines]
    return []


def only(defs: dg.Definitions) -> str:
    """The one finding."""
    (found,) = findings(defs)
    return found


def test_definitions_without_a_mistake_are_returned() -> None:
    """Definitions with partitions, publisher, checks, sensors, external nodes and foreign assets are accepted."""
    orders = asset("shop/orders", {"lance/write_mode": "append", "owner": "shop", "dagster/x": 1})
    days = asset("days", {"lance/partition_expr": "day"}, partitions_def=DAYS)

    @dg.asset(partitions_def=DAYS, metadata={"mode": "their own"})
    def stores_itself() -> None:
        pass

    @dg.asset(partitions_def=DAYS, metadata={"mode": "their own"})
    def reports_itself() -> dg.MaterializeResult:  # type: ignore[type-arg]
        return dg.MaterializeResult()

    @dg.asset(ins={"orders": dg.AssetIn(["production", "shop", "orders"], metadata={"lance/columns": ["id"]})})
    def report(orders: pa.Table) -> None:
        pass

    defs = definitions(
        orders,
        days,
        stores_itself,
        reports_itself,
        report,
        build_publisher([orders]),
        build_publisher([days], tag="daily", partitions_def=DAYS, unchecked=True),
        *ref_asset_specs([orders], lance=LAKE),
        dg.AssetSpec("elsewhere", metadata={"mode": "of another system"}),
        checks=build_table_checks(orders, [RowCount(minimum=1)]),
        sensors=[build_ref_sensor("refs", [orders])],
    )
    assert [] == findings(defs)
    assert 9 == len(list(defs.resolve_all_asset_specs()))


@pytest.mark.parametrize(
    "metadata,says",
    [
        ({"lance/write_mod": "append"}, "there is no setting 'lance/write_mod'; did you mean 'lance/write_mode'?"),
        ({"write_mode": "append"}, "metadata 'write_mode' would be ignored; did you mean 'lance/write_mode'?"),
        ({"mode": "append"}, "metadata 'mode' would be ignored; did you mean 'lance/write_mode'?"),
        ({"partition_expr": "day"}, "metadata 'partition_expr' would be ignored; did you mean 'lance/partition_expr'?"),
        (
            {"lance_write_mode": "append"},
            "metadata 'lance_write_mode' would be ignored; did you mean 'lance/write_mode'",
        ),
        (
            {"lance.partition_expr": "day"},
            "'lance.partition_expr' would be ignored; did you mean 'lance/partition_expr'",
        ),
        ({"lance/write_mode": "replce"}, "lance/write_mode must be one of"),
        ({"lance/table": ""}, "lance/table must be text that is not empty, not ''"),
        ({"lance/columns": ["id"]}, "lance/columns has no meaning in the metadata of an asset that is written"),
        ({"lance/table": "../orders"}, "no table can be at '../orders' below the root"),
    ],
)
def test_settings_of_an_asset_that_are_not_understood_are_refused(metadata: dict[str, Any], says: str) -> None:
    """The finding for an unknown setting names the asset and the nearest known setting."""
    found = only(definitions(asset("shop/orders", metadata)))
    assert found.startswith("asset shop/orders: ")
    assert says in found


def test_checks_and_publishers_of_a_misspelt_asset() -> None:
    """A check of an asset that is not there is never evaluated, and nobody would miss it."""
    orders, size = asset("shop/orders"), [RowCount()]
    publisher, known = build_publisher([orders]), build_table_checks(orders, size)
    assert [] == findings(definitions(orders, publisher, checks=[*known, *build_table_checks("far/away", size)]))
    found = only(definitions(orders, publisher, checks=[*known, *build_table_checks("shop/ordrs", size)]))
    assert found == "a check is for shop/ordrs, which is not an asset here; did you mean 'shop/orders'?"
    found = only(definitions(orders, build_publisher(["shop/ordres"], unchecked=True)))
    assert "publisher publish_production is for shop/ordres, which is not an asset here" in found


def test_a_partition_column_without_partitions() -> None:
    """Without partitions every run would replace the rows of all days."""
    found = only(definitions(asset("days", {"lance/partition_expr": "day"})))
    assert found.startswith("asset days has the metadata 'lance/partition_expr', and no partitions")


def test_settings_of_inputs_that_are_not_understood_are_refused() -> None:
    """The finding for a wrong setting of an input names the input and its reader, which may be a check."""

    @dg.asset(ins={"rows": dg.AssetIn(["shop", "orders"], metadata={"column": ["id"]})})
    def report(rows: pa.Table) -> None:
        pass

    @dg.asset_check(
        asset="customers", additional_ins={"o": dg.AssetIn(["shop", "orders"], metadata={"lance/reff": "x"})}
    )
    def known(customers: pa.Table, o: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=customers.num_rows >= o.num_rows)

    found = findings(definitions(asset("shop/orders"), asset("customers"), report, checks=[known]))
    assert (
        "input rows (shop/orders) of report: metadata 'column' would be ignored; did you mean 'lance/columns'"
        in found[0]
    )
    assert (
        "input o (shop/orders) of customers_known: there is no setting 'lance/reff'; did you mean 'lance/ref'"
        in found[1]
    )
    assert 2 == len(found)


def test_two_assets_on_one_table_are_refused() -> None:
    """Two assets may not share a table, nor use that of a promoted node; below different roots they may."""
    orders = asset("shop/orders")
    copy = asset("gold/orders", {"lance/schema": "shop"})
    said = "several assets are on one table, shop/orders below /lake: gold/orders, shop/orders; each would replace"
    assert said in only(definitions(orders, copy))
    publisher = build_publisher([asset("old/orders", {"lance/table": "shop/orders"})], unchecked=True)
    assert "shop/orders below /lake: old/orders, shop/orders" in only(definitions(orders, publisher))
    other = LanceResource(root="/other")
    copy = asset("gold/orders", {"lance/schema": "shop"}, io_manager_key="second")
    managers = {"io_manager": LanceIOManager(lance=LAKE), "second": LanceIOManager(lance=other)}
    assert [] == findings(definitions(orders, copy, resources=managers))


@pytest.mark.parametrize(
    "metadata,says",
    [
        ({}, "has partitions, but no metadata 'lance/partition_expr'"),
        (
            {"lance/partition_expr": "day", "lance/write_mode": "overwrite"},
            "its metadata says write_mode 'overwrite'",
        ),
    ],
)
def test_partitioned_assets_that_would_lose_rows_are_refused(metadata: dict[str, Any], says: str) -> None:
    """A partitioned asset needs a partition column, and may not overwrite, which would delete other partitions."""
    assert says in only(definitions(asset("days", metadata, partitions_def=DAYS)))


def test_an_io_manager_that_overwrites_replaces_partitions() -> None:
    """The default of an IO manager is for all assets: of a partitioned asset it means the partitions of the run."""
    days = asset("days", {"lance/partition_expr": "day"}, partitions_def=DAYS)
    resources = {"io_manager": LanceIOManager(lance=LAKE, write_mode="overwrite")}
    assert [] == findings(definitions(days, resources=resources))


@pytest.mark.parametrize("manager", ["", "upsert"])
def test_an_upsert_without_keys_is_refused(manager: str) -> None:
    """By its metadata or that of its IO manager."""
    resources = {"io_manager": LanceIOManager(lance=LAKE, write_mode=manager)}
    mode = {} if manager else {"lance/write_mode": "upsert"}
    said = only(definitions(asset("stock", mode), resources=resources))
    assert "asset stock upserts, but has no metadata 'lance/keys'" in said
    assert [] == findings(definitions(asset("stock", {**mode, "lance/keys": ["id"]}), resources=resources))


@pytest.mark.parametrize("given", [{"contry": "country", "day": "day"}, {"country": "country"}, "country"], ids=str)
def test_misspelt_dimensions_are_refused(given: object) -> None:
    """The columns of the partitions are named by the dimensions of the asset, and by all of them."""
    country = dg.StaticPartitionsDefinition(["de", "fr"])
    both = dg.MultiPartitionsDefinition({"country": country, "day": DAYS})
    found = only(definitions(asset("orders", {"lance/partition_expr": given}, partitions_def=both)))
    assert 'lance/partition_expr of orders must be {"country": "<column>", "day": "<column>"}, not ' in found
    right = asset("orders", {"lance/partition_expr": {"day": "day", "country": "country"}}, partitions_def=both)
    assert [] == findings(definitions(right))


def test_publisher_of_a_table_without_a_blocking_check_is_refused() -> None:
    """A table needs a blocking check, a check that the publisher names, or `unchecked`."""
    orders = asset("shop/orders")
    soft = build_table_checks(orders, [RowCount(minimum=1)], blocking=False)
    found = only(definitions(orders, build_publisher([orders]), checks=soft))
    assert "publisher publish_production publishes shop/orders without one blocking check" in found
    assert "unchecked=True" in found
    assert [] == findings(definitions(orders, build_publisher([orders], checks=soft), checks=soft))
    assert [] == findings(definitions(orders, build_publisher([orders], unchecked=True)))


def test_nodes_that_look_elsewhere_are_refused() -> None:
    """Builders are refused that have only the key of an asset with its own place, or that have another root."""
    orders = asset("shop/orders", {"lance/table": "raw/orders"})
    found = only(definitions(orders, build_publisher(["shop/orders"], unchecked=True)))
    assert "asset production/shop/orders reads another table than shop/orders writes, raw/orders; give" in found
    other = LanceResource(root="/other")
    checks = build_table_checks(orders, [RowCount(minimum=1)])
    resources = {"lance": other, "io_manager": LanceIOManager(lance=LAKE)}
    found = "\n".join(findings(definitions(orders, build_publisher([orders]), checks=checks, resources=resources)))
    said = "looks below /other, but the IO manager of shop/orders writes below /lake"
    assert f"asset production/shop/orders {said}" in found
    assert f"check 'row_count' of shop/orders {said}" in found


def test_assets_that_another_manager_stores_are_refused() -> None:
    """An asset whose table is checked or published is refused when Dagster's own IO manager stores its rows."""
    orders, plain = asset("shop/orders"), asset("plain")
    checks = build_table_checks(orders, [RowCount(minimum=1)])
    found = only(definitions(orders, plain, checks=checks, resources={"lance": LAKE}))
    assert (
        "asset shop/orders is stored by Dagster's default IO manager, so its rows reach no table that could be "
        "checked; give resources={'io_manager': LanceIOManager(lance=...)}, or annotate the asset `-> None` or "
        "`-> dg.MaterializeResult` if it writes its table itself"
    ) == found
    resources = {"lance": LAKE, "io_manager": LanceIOManager(lance=LAKE), "files": dg.FilesystemIOManager()}
    other = asset("shop/orders", io_manager_key="files")
    found = only(definitions(other, build_publisher([other], unchecked=True), resources=resources))
    assert "asset shop/orders is stored by the IO manager 'files', a FilesystemIOManager, so its rows reach no" in found
    assert "table that could be published; give resources={'files': LanceIOManager(lance=...)}" in found


def test_assets_that_write_their_table_need_no_manager() -> None:
    """An asset without a value, a generator, a graph and a key of another code location are accepted with checks."""

    @dg.asset
    def stores_itself() -> None:
        pass

    @dg.asset
    def reports_itself() -> dg.MaterializeResult:  # type: ignore[type-arg]
        return dg.MaterializeResult()

    @dg.asset
    def yields() -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        yield dg.MaterializeResult()

    @dg.multi_asset(specs=[dg.AssetSpec("first"), dg.AssetSpec("second")])
    def both():  # type: ignore[no-untyped-def]  # noqa: ANN202  # Dagster wants an annotation for each output, or none
        pass

    @dg.op
    def stored() -> None:
        pass

    @dg.graph_asset
    def graph() -> Any:
        return stored()

    keys = ["stores_itself", "reports_itself", "yields", "first", "second", "graph", "elsewhere"]
    checks = [check for key in keys for check in build_table_checks(key, [RowCount(minimum=1)])]
    written = (stores_itself, reports_itself, yields, both, graph)
    defs = definitions(*written, build_publisher(keys), checks=checks, resources={"lance": LAKE})
    assert [] == findings(defs)


def test_missing_resources_are_refused() -> None:
    """The resources that assets, checks and sensors lack are named."""
    orders = asset("shop/orders")
    found = findings(
        definitions(
            orders,
            build_publisher([orders]),
            checks=build_table_checks(orders, [RowCount(minimum=1)], resource_key="lake"),
            sensors=[build_ref_sensor("refs", [orders], resource_key="lake")],
            resources={"io_manager": LanceIOManager(lance=LAKE)},
        )
    )
    assert [
        "sensor refs needs a resource 'lake'; the definitions have io_manager",
        "publish_production needs a resource 'lance'; the definitions have io_manager",
        "shop__orders_row_count needs a resource 'lake'; the definitions have io_manager",
    ] == found


def test_everything_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has one line for each finding, and no environment variable is read."""
    monkeypatch.delenv("LAKE", raising=False)
    lance = LanceResource(root=dg.EnvVar("LAKE"))
    defs = definitions(
        asset("a", {"lance/table": "t", "write_mode": "append"}),
        asset("b", {"lance/table": "t"}, partitions_def=DAYS),
        build_publisher(["a"]),
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
    )
    found = "\n".join(findings(defs))
    for said in ("'write_mode' would be ignored", "one table, t below EnvVar LAKE: a, b", "b has partitions, but"):
        assert said in found
    assert "publishes a without one blocking check" in found


@pytest.mark.parametrize("manager_only", [True, False])
def test_secrets_as_text_are_refused(*, manager_only: bool) -> None:
    """Secrets as plain text are refused, since Dagster shows them; the value of a variable is not shown."""
    said = "has a secret, aws_secret_access_key, as text"
    for fields in (
        {"storage_options": {"aws_secret_access_key": "hush"}},
        {"s3": S3Options(secret_access_key="hush")},
    ):
        lance = LanceResource(root="s3://bucket/lake", **fields)
        resources = {"io_manager": LanceIOManager(lance=lance)} | ({} if manager_only else {"lance": lance})
        found = findings(definitions(resources=resources))
        assert len(resources) == len(found)
        assert said in found[0]
        assert "hush" not in "".join(found)
    hidden = LanceResource(root="s3://bucket/lake", s3=S3Options(secret_access_key=dg.EnvVar("HUSH")))
    assert [] == findings(definitions(resources={"lance": hidden}))


def test_loading_a_code_location_brings_nothing_heavy() -> None:
    """Definitions of every kind load without Arrow, the format, the merge and the engines, which only a run imports."""
    program = """
import sys
import dagster as dg
import lance_dagster as ld

@dg.asset
def orders(): ...

@ld.table_check(asset=orders)
def has_rows(table): return table.count_rows() > 0

defs = ld.lance_assets([orders], root="/lake", checks={"orders": [ld.RowCount(minimum=1), ld.Unique("id")]})
sweeper = ld.build_branch_sweeper("sweeper", [orders], waiting="publish", publisher=ld.build_publisher([orders]))
discovery = ld.build_discovery_sensor("discovery")
maintenance = ld.build_maintenance_job([orders], schedule="0 3 * * 0")
nodes = [ld.promoted_asset_spec(orders, tag="gold"), *ld.ref_asset_specs([orders])]
others = dg.Definitions(nodes, asset_checks=[has_rows], sensors=[sweeper, discovery], jobs=[maintenance.job])
whole = ld.validate_definitions(dg.Definitions.merge(defs, others))
whole.resolve_all_asset_specs()
used = [ld.LanceTablesComponent, ld.PinnedTable, ld.pipes_extras, ld.tag_moved, ld.Freshness]

engines = {"lance", "pandas", "polars", "pyspark", "numpy", "pyarrow", "google.protobuf", "fsspec", "s3fs"}
core = {f"lance_dagster.{name}" for name in ("table", "merge", "history", "datafiles", "edit", "format.codec")}
core |= {f"lance_dagster.store.{name}" for name in ("azure", "google", "local", "s3")}
found = (engines | core) & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_validated_definitions_bring_only_what_defines_them() -> None:
    """Loading a publisher, checks and the resources imports nothing that only a run or a sensor needs."""
    program = """
import sys
import dagster as dg
import lance_dagster as ld

@dg.asset
def orders(): ...

lance = ld.LanceResource(root="/lake")
ld.validate_definitions(dg.Definitions(
    [orders, ld.build_publisher([orders])],
    asset_checks=ld.build_table_checks(orders, [ld.RowCount(minimum=1)]),
    resources={"lance": lance, "io_manager": ld.LanceIOManager(lance=lance)},
))
late = ("plugin.run_branch", "plugin.checks.evaluation", "plugin.checks.value_checks", "plugin.operate.ref_tick")
found = {f"lance_dagster.{name}" for name in (*late, "plugin.operate.maintenance_job", "store.interface")}
assert not found & set(sys.modules), found & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
