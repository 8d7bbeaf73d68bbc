from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceResource,
    LanceTable,
    MergeConflictError,
    build_publisher,
)
from tests.plugin.shop import failure

EU, US = dg.AssetKey(["eu", "shop", "orders"]), dg.AssetKey(["us", "shop", "orders"])


def location(root: str, *names: str, value: int = 1, metadata: Mapping[str, str] | None = None) -> dg.Definitions:
    """A code location whose assets write one row each."""

    def asset_of(name: str) -> dg.AssetsDefinition:
        @dg.asset(key=name.split("/"), metadata=metadata)
        def rows() -> pa.Table:
            return pa.table({"id": [value]})

        return rows

    lance = LanceResource(root=root)
    return dg.Definitions(
        assets=[asset_of(name) for name in names],
        resources={"lance": lance, "io_manager": LanceIOManager(lance=lance)},
    )


def run(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Materialize every asset of a code location."""
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance, raise_on_error=False)


def test_assets_with_the_same_last_parts_have_a_table_each(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The whole key decides about the place, and each table names its owner."""
    result = run(location(str(tmp_path), "eu/shop/orders", "us/shop/orders"), instance)
    lake = LanceResource(root=str(tmp_path))
    assert result.success
    for key in (EU, US):
        table = lake.table(key)
        assert f"{tmp_path}/{key.to_user_string()}.lance" == table.uri
        assert 1 == table.count_rows(f"run/{result.run_id}")
        assert {"dagster/asset": key.to_user_string()} == table.config.get()


def test_other_code_location_cannot_write_the_table_of_an_asset(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The refusal names both assets, the table and the remedies, and leaves no branch; a hand-over allows the write."""
    first = location(str(tmp_path), "eu/shop/orders", metadata={"lance/table": "orders"})
    second = location(str(tmp_path), "us/shop/orders", value=2, metadata={"lance/table": "orders"})
    assert run(first, instance).success
    refused = run(second, instance)
    table = LanceTable.open(str(tmp_path / "orders.lance"))
    said = failure(refused, "us__shop__orders")
    assert f"us/shop/orders cannot write {table.uri}: the table belongs to the asset eu/shop/orders" in said
    assert "by its metadata 'lance/table'" in said
    handover = f"LanceTable.open({table.uri!r}).config.set({{'dagster/asset': 'us/shop/orders'}})"
    assert handover in said
    assert f"run/{refused.run_id}" not in table.branches.list()
    exec(handover, {"LanceTable": LanceTable})  # noqa: S102 - the text of the error has to work as it is written
    assert run(second, instance).success
    assert "belongs to the asset us/shop/orders" in failure(run(first, instance), "eu__shop__orders")


def test_promoted_node_of_one_asset_is_no_place_for_another(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """An asset is refused when it writes the table of another asset's promoted node."""
    lance = LanceResource(root=str(tmp_path))
    assert run(location(str(tmp_path), "shop/orders"), instance).success
    publisher = build_publisher(["shop/orders"])
    spec = publisher.get_asset_spec(dg.AssetKey(["production", "shop", "orders"]))
    assert f"{tmp_path}/shop/orders.lance" == lance.uri_of(spec.key, spec.metadata)
    other = location(str(tmp_path), "gold/orders", metadata={"lance/table": "shop/orders"})
    assert "belongs to the asset shop/orders" in failure(run(other, instance), "gold__orders")


def test_table_of_another_program_gets_its_owner_on_the_branch_of_the_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The owner reaches main with the rows; an earlier started run of another asset then conflicts."""
    table = LanceTable.create(str(tmp_path / "orders.lance"), pa.schema({"id": pa.int64()}))
    runs = [
        run(location(str(tmp_path), name, metadata={"lance/table": "orders", "lance/write_mode": "append"}), instance)
        for name in ("eu/shop/orders", "eu/shop/orders", "us/shop/orders")
    ]
    assert all(one.success for one in runs)
    branches = [f"run/{one.run_id}" for one in runs]
    owners = [table.config.get(branch)["dagster/asset"] for branch in branches]
    assert ["eu/shop/orders", "eu/shop/orders", "us/shop/orders"] == owners
    assert {} == table.config.get()
    table.merge(branches[0])
    table.merge(branches[1])
    assert 2 == table.count_rows()
    assert {"dagster/asset": "eu/shop/orders"} == table.config.get()
    with pytest.raises(MergeConflictError, match="dagster/asset"):
        table.merge(branches[2])


def test_table_is_created_with_a_config(tmp_path: Path) -> None:
    """A new table gets the config in its first version; an existing table keeps its own config."""
    uri, schema = str(tmp_path / "t.lance"), pa.schema({"id": pa.int64()})
    table = LanceTable.create(uri, schema, config={"dagster/asset": "a"}, message="made")
    assert ({"dagster/asset": "a"}, 1) == (table.config.get("main@1"), table.head().number)
    assert "made" == table.head().message
    again = LanceTable.create(uri, schema, exist_ok=True, config={"dagster/asset": "b"})
    assert {"dagster/asset": "a"} == again.config.get()
    with pytest.raises(ValueError, match="config"):
        LanceTable.create(str(tmp_path / "u.lance"), schema, config={"a": 1})  # type: ignore[dict-item]
