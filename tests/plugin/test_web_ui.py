"""The GraphQL requests of the buttons in Dagster's web UI, sent to a real web server."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from tests.conftest import HOST, free_port, wait_for
from tests.plugin.shop import PRODUCTION_ORDERS, Shop, shop_at

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
RUN_SECONDS = 60
# Without the daemon nobody would launch a queued run.
DAGSTER_YAML = """
telemetry: {enabled: false}
run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}
"""
LOCATION = """
import dagster as dg
from lance_dagster import build_ref_sensor
from tests.plugin.shop import CUSTOMERS, ORDERS, shop_at

shop = shop_at(ROOT)
watch = build_ref_sensor("watch", [ORDERS, CUSTOMERS], refs=("main", "production"))
nightly = dg.ScheduleDefinition("nightly", target=dg.AssetSelection.all(), cron_schedule="0 3 * * *")
defs = dg.Definitions.merge(
    shop.definitions, dg.Definitions(sensors=[watch], schedules=[nightly], executor=dg.in_process_executor)
)
"""
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "location.py"}
LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PythonError { message }
} }"""
RUN = """query($id: ID!) { runOrError(runId: $id) { ... on Run {
  status
  eventConnection { events { ... on ExecutionStepFailureEvent { error { message } } } }
} } }"""
RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
AUTOMATION = """query($repository: RepositorySelector!) {
  sensorsOrError(repositorySelector: $repository) { ... on Sensors { results { name } } }
  schedulesOrError(repositorySelector: $repository) { ... on Schedules { results { name } } }
}"""
PAGE = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  groupName description
  assetMaterializations(limit: 1) { metadataEntries { label ... on TextMetadataEntry { text } } }
} } }"""


@dataclass(frozen=True)
class WebUI:
    """A running web server over the shop."""

    shop: Shop
    port: int

    def ask(self, query: str, **variables: object) -> dict[str, Any]:
        """Return the answer to a GraphQL query."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            body = json.dumps({"query": query, "variables": variables})
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            answer = json.load(connection.getresponse())
        finally:
            connection.close()
        assert "errors" not in answer, answer
        data: dict[str, Any] = answer["data"]
        return data

    def launch(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Launch the promoted orders as the launchpad does, and return the answer of the server."""
        selection = {"assetSelection": [{"path": PRODUCTION_ORDERS.path}], "assetCheckSelection": []}
        params = {
            "selector": {**REPOSITORY, "pipelineName": "__ASSET_JOB", **selection},
            "runConfigData": {"ops": {"publish_production": {"config": config}}},
        }
        launched: dict[str, Any] = self.ask(LAUNCH, params=params)["launchRun"]
        return launched

    def publish(self, **config: object) -> tuple[str, str]:
        """The final status of a run launched with some config, and why its step failed, if it did."""
        launched = self.launch(config)
        assert launched["__typename"] == "LaunchRunSuccess", launched
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            run = self.ask(RUN, id=launched["run"]["runId"])["runOrError"]
            if run["status"] in ("SUCCESS", "FAILURE"):
                events = run["eventConnection"]["events"]
                return run["status"], "".join(event["error"]["message"] for event in events if "error" in event)
            time.sleep(0.2)
        pytest.fail(f"the run did not end in {RUN_SECONDS} seconds: {run}")


@pytest.fixture(scope="module")
def web_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebUI]:
    """A web server on a shop that published twice; then somebody else committed to `main`."""
    top = tmp_path_factory.mktemp("web_ui")
    home, location, log = top / "dagster", top / "location.py", top / "server.log"
    shop = shop_at(str(top / "lake"))
    home.mkdir()
    (home / "dagster.yaml").write_text(DAGSTER_YAML)
    location.write_text(LOCATION.replace("ROOT", repr(shop.lance.root)))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for ids in ([1, 2, 3], [4, 5]):
            shop.play(orders=ids)
            assert shop.run(instance).success
    shop.table().append(pa.table({"id": [99]}))

    port = free_port()
    command = [sys.executable, "-m", "dagster_webserver", "-h", HOST, "-p", str(port)]
    command += ["-f", str(location), "-d", str(CHECKOUT)]
    with log.open("wb") as output:
        environment = {**os.environ, "DAGSTER_HOME": str(home)}
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(process, port, log)
        yield WebUI(shop, port)
    finally:
        process.send_signal(signal.SIGINT)  # then it takes its code server with it
        process.wait(timeout=30)


def test_rollback_and_forward(web_ui: WebUI) -> None:
    """*Materialize* restores an older version and the newer one again, and the node's page says from where and why."""
    shop = web_ui.shop
    assert shop.tag() == "main@3"
    for ref, ids in (("main@2", [1, 2, 3]), ("main@3", [4, 5])):
        before = shop.tag()
        assert web_ui.publish(ref=ref, reason=f"better than {before}") == ("SUCCESS", "")
        # Both versions are older than the tag's, so each is committed to main again.
        after = shop.tag()
        assert after not in (before, ref)
        assert shop.ids("production") == ids
        page = web_ui.ask(PAGE, key={"path": PRODUCTION_ORDERS.path})["assetNodeOrError"]
        (made,) = page["assetMaterializations"]
        entries = {entry["label"]: entry.get("text") for entry in made["metadataEntries"]}
        assert (before, after) == (entries["lance/from"], entries["lance/to"])
        assert entries["lance/reason"] == f"better than {before}"


def test_page_of_a_promoted_node(web_ui: WebUI) -> None:
    """The page of a promoted node says how to roll back, and all promoted nodes are in one group."""
    page = web_ui.ask(PAGE, key={"path": PRODUCTION_ORDERS.path})["assetNodeOrError"]
    assert page["groupName"] == "production"
    assert "Open launchpad" in page["description"]


def test_wrong_field(web_ui: WebUI) -> None:
    """The error for an unknown config field names it and the known ones, before there is a run."""
    runs = web_ui.ask(RUNS)
    refused = web_ui.launch({"version": 2})
    assert refused["__typename"] == "RunConfigValidationInvalid"
    (error,) = refused["errors"]
    assert 'unexpected config entry "version"' in error["message"]
    assert all(field in error["message"] for field in ("ref", "reason", "dry_run", "ignore_failed_checks"))
    assert web_ui.ask(RUNS) == runs


def test_version_nobody_audited(web_ui: WebUI) -> None:
    """The run that would promote a foreign commit fails, its failure says why, and the tag stays."""
    before = web_ui.shop.tag()
    status, failure = web_ui.publish(ref="main@4", reason="it looks fine")
    assert status == "FAILURE"
    assert "refused to publish shop/orders" in failure
    assert "main@4 was not made by a published run" in failure
    assert web_ui.shop.tag() == before


def test_automation_is_listed(web_ui: WebUI) -> None:
    """The page of automations has the sensor and the schedule."""
    listed = web_ui.ask(AUTOMATION, repository=REPOSITORY)
    assert [one["name"] for one in listed["sensorsOrError"]["results"]] == ["watch"]
    assert [one["name"] for one in listed["schedulesOrError"]["results"]] == ["nightly"]
