import signal
import time
from pathlib import Path

import dagster as dg
import pytest

from tests.forked_program import start
from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_CUSTOMERS, PRODUCTION_ORDERS, Shop, shop_at

pytestmark = pytest.mark.slow

MERGED, TAGGED = "_versions/*.manifest", "_refs/tags/*.json"


def execute(root: str, home: str) -> None:
    """Run the shop's job in this process, which is killed while it runs."""
    with dg.DagsterInstance.local_temp(home, overrides={"telemetry": {"enabled": False}}) as instance:
        shop_at(root).execute(instance)


def killed_when(shop: Shop, instance_folder: Path, key: dg.AssetKey, pattern: str, *, files: int) -> None:
    """Run the shop's job in a process of its own and kill it as soon as a table has some files."""
    table = Path(shop.lance.uri_of(key))
    process = start(execute, shop.lance.root, str(instance_folder))
    while process.is_alive():
        if sum(1 for _ in table.glob(pattern)) >= files:
            process.kill()
            break
        time.sleep(0.001)
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    "key,pattern,files,by_hand",
    [
        pytest.param(ORDERS, MERGED, 2, True, id="merging, by hand", marks=pytest.mark.soak),
        pytest.param(ORDERS, MERGED, 2, False, id="merging, from failure"),
        pytest.param(ORDERS, TAGGED, 1, False, id="tagging, from failure", marks=pytest.mark.soak),
        pytest.param(CUSTOMERS, TAGGED, 1, True, id="retiring, by hand"),
    ],
)
def test_killed_publisher_is_finished(
    shop: Shop, tmp_path: Path, key: dg.AssetKey, pattern: str, *, files: int, by_hand: bool
) -> None:
    """The next publisher completes whatever a killed publisher has left."""
    home = tmp_path / "dagster"
    home.mkdir()
    killed_when(shop, home, key, pattern, files=files)
    with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance:
        (run,) = instance.get_runs()
        instance.report_run_failed(run)
        if by_hand:
            assert shop.publish(instance, PRODUCTION_ORDERS, PRODUCTION_CUSTOMERS, ref=f"run/{run.run_id}").success
        else:
            options = dg.ReexecutionOptions.from_failure(run.run_id, instance)
            assert shop.execute(instance, options).success
    for table in (ORDERS, CUSTOMERS):
        assert shop.tag(table) == "main@2"
        assert shop.table(table).head().number == 2
        assert shop.table(table).branches.list("run/*") == {}
    assert shop.ids("production") == [1, 2, 3]
