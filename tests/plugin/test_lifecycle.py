import dagster as dg

from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_ORDERS, Shop


def test_a_good_run_publishes_every_table_and_its_reader_sees_it(
    shop: Shop, instance: dg.DagsterInstance
) -> None:
    """Branch, audit, merge, tag, retire; the reader of the promoted node gets the new rows."""
    result = shop.run(instance)
    assert result.success
    assert shop.ids("production") == [1, 2, 3]
    assert shop.ids("main", CUSTOMERS) == [10, 20]
    assert shop.table().branches() == {}
    assert shop.script.seen == [[1, 2, 3]]
    event = instance.get_latest_materialization_event(PRODUCTION_ORDERS)
    print(event.asset_materialization.metadata)
    event = instance.get_latest_materialization_event(ORDERS)
    print(event.asset_materialization.metadata, event.asset_materialization.tags)
    print(shop.table().log())
