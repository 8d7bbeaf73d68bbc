"""Operations in the web UI, in a browser: materialize, a failed check, promotion, rollback, hold, a tick."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from example_project.places import ROOT_VARIABLE
from lance_dagster import LanceRepository
from tests.conftest import HOST, free_port, wait_for
from tests.plugin.browser import Browser, browser_on
from tests.plugin.shop import Shop, shop_at

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
SENSOR = "locations/location.py/sensors/watch"
# The tree of the groups is beside the graph of all assets.
TREE_RIGHT = 540
CANDIDATE, PROMOTED = "shop/orders", "production/shop/orders"
DAGSTER_YAML = """
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
"""
LOCATION = """
import dagster as dg
from lance_dagster import build_ref_sensor
from tests.plugin.shop import ORDERS, shop_at

watch = build_ref_sensor("watch", [ORDERS], refs=("main", "production"), minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING)
defs = dg.Definitions.merge(
    shop_at(ROOT).definitions, dg.Definitions(sensors=[watch], executor=dg.in_process_executor)
)
"""
# The texts in the graph of all assets: `main` is a group of nodes beside it, and the shop has a group `production` too.
SHOWN = 'code_location:"example.py" and not group:"main"'
# This is the example without its sensors, which the daemon would run.
EXAMPLE = """
import dagster as dg
from example_project.definitions import build_definitions

def graph():
    made = build_definitions()
    return dg.Definitions(assets=made.assets, asset_checks=made.asset_checks, resources=made.resources)

defs = graph()
"""


@dataclass(frozen=True)
class Desk:
    """A browser that shows the web UI of the shop."""

    shop: Shop
    browser: Browser

    def publish(self, *, picture: str = "", **config: str) -> str:
        """Publish from the launchpad of the promoted orders; return the log of the run."""
        lines = "".join(f"      {name}: {value}\n" for name, value in config.items())
        return self.browser.launch(PROMOTED, f"ops:\n  publish_production:\n    config:\n{lines}", picture=picture)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """`dagster dev`, with its daemon, over an empty shop, and a browser on it."""
    top = tmp_path_factory.mktemp("browser")
    home, location, example, log = top / "dagster", top / "location.py", top / "example.py", top / "dev.log"
    shop = shop_at(str(top / "lake"))
    home.mkdir()
    (home / "dagster.yaml").write_text(DAGSTER_YAML)
    location.write_text(LOCATION.replace("ROOT", repr(shop.lance.root)))
    example.write_text(EXAMPLE)
    port = free_port()
    with browser_on(f"http://{HOST}:{port}") as browser, log.open("wb") as output:
        files = ["-f", str(location), "-f", str(example)]
        command = [sys.executable, "-m", "dagster", "dev", "-h", HOST, "-p", str(port), *files]
        environment = {**os.environ, "DAGSTER_HOME": str(home), ROOT_VARIABLE: str(top / "demo")}
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_for(process, port, log)
            yield Desk(shop, browser)
        finally:
            process.send_signal(signal.SIGINT)  # then it takes its web server, code server and daemon with it
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                # Dagster sometimes waits for its code server for ever.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_a_day_at_the_desk(desk: Desk) -> None:
    """Each operation in the web UI has its effect; all are in one test, as each starts where the last one ended."""
    shop, browser = desk.shop, desk.browser
    shop.play(orders=[1, 2, 3])
    assert "RUN_SUCCESS" in browser.materialize(CANDIDATE)
    assert "run/" in browser.open(f"assets/{CANDIDATE}", "Row count", "lance/branch")
    browser.picture("candidate", height=1550)
    assert shop.tag() is None
    assert "RUN_SUCCESS" in browser.materialize(PROMOTED)
    assert [1, 2, 3] == shop.ids("production")
    # The newest event is of the publisher, or of the sensor, where that has looked already: both name the tag.
    browser.open(f"assets/{PROMOTED}?view=events", "lance/tag")

    shop.play(orders=[-1])
    assert "RUN_FAILURE" in browser.materialize(CANDIDATE)
    browser.open(f"assets/{CANDIDATE}?view=checks", "ids_are_positive", "ids are not positive")
    browser.picture("failed-check", height=540)
    assert "RUN_SUCCESS" in browser.materialize(PROMOTED)
    assert [1, 2, 3] == shop.ids("production")
    (broken,) = shop.table().branches.list("run/*")
    assert "RUN_SUCCESS" in desk.publish(discard=broken, reason="a test delivery")
    assert {} == shop.table().branches.list("run/*")

    shop.play(orders=[4, 5])
    assert "RUN_SUCCESS" in browser.materialize(CANDIDATE)
    assert "RUN_SUCCESS" in browser.materialize(PROMOTED)
    assert [4, 5] == shop.ids("production")

    refused = desk.publish(ref="main@2", rollback="hold", reason="wrong prices")
    assert "RUN_FAILURE" in refused
    assert "set ref to production~1 or to the id of a commit" in refused
    assert [4, 5] == shop.ids("production")
    assert "RUN_SUCCESS" in desk.publish(
        ref="production~1", rollback="hold", reason="wrong prices", picture="launchpad"
    )
    assert [1, 2, 3] == shop.ids("production")
    lake = LanceRepository.open(shop.lance.root)
    back = lake.channels.get("production")
    assert back.hold is not None
    browser.open(f"assets/{PROMOTED}", "wrong prices", "lance/repository_commit", back.commit, "production@3")
    browser.picture("promoted-node", height=1500)
    refused = desk.publish(ref="main@3", reason="too early")
    assert "RUN_FAILURE" in refused
    assert "wrong prices; set release: true and a reason" in refused
    assert [1, 2, 3] == shop.ids("production")
    assert "RUN_SUCCESS" in desk.publish(release="true", ref="main@3", reason="the prices were right")
    assert [4, 5] == shop.ids("production")

    # The cursor counts a promotion, a promotion, the rollback, its release, and the promotion after it.
    again = lake.channels.get("production")
    browser.open(f"{SENSOR}", "Latest tick", f'"production":[5,"{again.commit}"]')


def test_the_graph_of_the_example(desk: Desk) -> None:
    """Each candidate leads to its promoted node, and the reader depends on promoted nodes."""
    groups = ",".join(f"global@global:{group}" for group in ("nyc", "production", "reports"))
    page = f"asset-groups~{quote(SHOWN)}/?expanded={groups}"
    text = desk.browser.open(page, "flight_features", "delay_by_carrier")
    assert 2 == text.count("flight_features")
    desk.browser.picture("asset-graph", height=870, left=TREE_RIGHT)
