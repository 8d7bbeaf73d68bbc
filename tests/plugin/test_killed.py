import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from tests.plugin.shop import CUSTOMERS, ORDERS, PRODUCTION_CUSTOMERS, PRODUCTION_ORDERS, Shop

RUN = """
import sys
import dagster as dg
from tests.plugin.shop import shop_at

quiet = {"telemetry": {"enabled": False}}
with dg.DagsterInstance.local_temp(sys.argv[2], overrides=quiet) as instance:
    shop_at(sys.argv[1]).execute(instance)
"""
MERGED, TAGGED = "_versions", "_refs/tags"


def killed_when(shop: Shop, instance_folder: Path, key: dg.AssetKey, folder: str, *, entries: int) -> None:
    """Run the shop's job in a process of its own and kill it as soon as a folder of a table has some entries."""
    watched = Path(shop.lance.uri_of(key), folder)
    command = [sys.executable, "-c", RUN, shop.lance.root, str(instance_folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if watched.exists() and sum(1 for _ in watched.glob("[!.]*[!n]")) >= entries:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    "key,folder,entries",
    [(ORDERS, MERGED, 2), (ORDERS, TAGGED, 1), (CUSTOMERS, TAGGED, 1)],
    ids=["while merging", "while tagging", "while retiring"],
)
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "from failure"])
def test_killed_publisher_is_finished(
    shop: Shop, tmp_path: Path, key: dg.AssetKey, folder: str, *, entries: int, by_hand: bool
) -> None:
    """A publisher that is killed for good leaves nothing that the next one does not put right."""
    home = tmp_path / "dagster"
    home.mkdir()
    killed_when(shop, home, key, folder, entries=entries)
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
        assert shop.table(table).branches() == {}
    assert shop.ids("production") == [1, 2, 3]
