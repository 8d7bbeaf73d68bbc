"""No file that a run leaves behind contains a credential."""

import logging
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest

from lance_dagster import (
    LanceIOManager,
    LanceResource,
    LanceTable,
    RowCount,
    S3Options,
    build_publisher,
    build_table_checks,
)
from lance_dagster.store import S3Store
from tests.conftest import S3Storage, free_port
from tests.plugin.leaks import leaks

pytestmark = pytest.mark.slow

SECRET, TOKEN, SIGNATURE, PASSWORD = "canary-secret", "canary-token", "canary-signature", "canary-password"
SIGNED = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Security-Token={TOKEN}&X-Amz-Signature={SIGNATURE}"


@pytest.fixture
def debug_log(tmp_path: Path) -> Iterator[Path]:
    """A file with everything that any library logs."""
    path = tmp_path / "debug.log"
    handler, root = logging.FileHandler(path), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield path
    root.setLevel(before)
    root.removeHandler(handler)
    handler.close()


@pytest.fixture
def resource(s3_storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> LanceResource:
    """A resource over a bucket, whose temporary credentials are in the environment."""
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    return LanceResource(
        root=f"{s3_storage.uri}/lake",
        s3=S3Options(
            access_key_id="test-key",
            secret_access_key=dg.EnvVar("LAKE_SECRET"),
            session_token=dg.EnvVar("LAKE_TOKEN"),
            region="us-east-1",
            endpoint=s3_storage.storage_options["aws_endpoint"],
            allow_http=True,
        ),
    )


@dg.asset(key_prefix="shop")
def orders(context: dg.AssetExecutionContext) -> pd.DataFrame:
    """Three orders."""
    context.log.info("three orders")
    return pd.DataFrame({"amount": [1, 2, 3]})


def failing(name: str, uri: str, **storage_options: str) -> dg.AssetsDefinition:
    """An asset that opens a table at an impossible place."""

    @dg.asset(name=name)
    def opened() -> None:
        LanceTable.open(uri, storage_options)

    return opened


def test_a_run_leaves_no_credential_behind(
    resource: LanceResource, stored_instance: dg.DagsterInstance, debug_log: Path, tmp_path: Path
) -> None:
    """Runs that publish and runs that fail: no database, log or object holds a secret, token, signature or password."""
    assets = [orders, *build_table_checks(orders, [RowCount(minimum=1)]), build_publisher([orders])]
    definitions = dg.Definitions(
        assets=assets,
        jobs=[dg.define_asset_job("daily")],
        resources={"lance": resource, "io_manager": LanceIOManager(lance=resource)},
    )
    daily = definitions.resolve_job_def("daily")
    assert daily.execute_in_process(instance=stored_instance).success
    nowhere = f"http://127.0.0.1:{free_port()}"
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": SECRET, "aws_session_token": TOKEN, "allow_http": "true"}
    for asset in (
        failing("userinfo", f"s3://key:{PASSWORD}@bucket/orders.lance"),
        failing("signed", f"s3://bucket/orders.lance?{SIGNED}"),
        failing("presigned", f"https://bucket.s3.amazonaws.com/orders.lance?{SIGNED}"),
        failing("fragment", f"s3://bucket/orders.lance#{PASSWORD}"),
        failing("endpoint", "s3://bucket/orders", **keys, aws_endpoint=f"http://u:{PASSWORD}@127.0.0.1:1/"),
        failing("signed_endpoint", "s3://bucket/orders", **keys, aws_endpoint=f"{nowhere}/?{SIGNED}"),
        failing("nowhere", "s3://bucket/orders", **keys, aws_endpoint=nowhere, aws_region="us-east-1"),
        failing("misspelt", "s3://bucket/orders", **keys, aws_regoin=PASSWORD),
    ):
        assert not dg.materialize([asset], instance=stored_instance, raise_on_error=False).success
    options = resource.process_config_and_initialize().connection_options
    store = S3Store(resource.root, options)
    for entry in store.walk(""):
        target = tmp_path / "bucket" / entry.key
        target.parent.mkdir(parents=True, exist_ok=True)
        store.download(entry.key, target)
    assert (tmp_path / "bucket" / "shop" / "orders.lance").is_dir()
    assert debug_log.stat().st_size
    assert [] == leaks(tmp_path, SECRET, TOKEN, SIGNATURE, PASSWORD)


@pytest.mark.parametrize("typed", [False, True])
def test_a_credential_as_text_is_not_stored_with_the_run(
    s3_storage: S3Storage, stored_instance: dg.DagsterInstance, tmp_path: Path, *, typed: bool
) -> None:
    """A credential given as text is not in the run's snapshot, though Dagster stores each resource's configuration."""
    options = {**s3_storage.storage_options, "aws_secret_access_key": SECRET, "aws_session_token": TOKEN}
    given: dict[str, object] = {"storage_options": options}
    if typed:
        typed_options = S3Options(
            access_key_id="k",
            secret_access_key=SECRET,
            session_token=TOKEN,
            region="us-east-1",
            endpoint=options["aws_endpoint"],
            allow_http=True,
        )
        given = {"s3": typed_options}
    resource = LanceResource(root=f"{s3_storage.uri}/lake", **given)
    assets = [orders, *build_table_checks(orders, [RowCount(minimum=1)]), build_publisher([orders])]
    resources = {"lance": resource, "io_manager": LanceIOManager(lance=resource)}
    definitions = dg.Definitions(assets=assets, jobs=[dg.define_asset_job("daily")], resources=resources)
    assert definitions.resolve_job_def("daily").execute_in_process(instance=stored_instance).success
    assert 3 == resource.table("shop/orders").count_rows()
    assert [] == leaks(tmp_path, SECRET, TOKEN)


@pytest.mark.parametrize("place", ["root", "endpoint"])
def test_a_credential_in_a_variable_is_not_stored_with_the_run(
    stored_instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, debug_log: Path, tmp_path: Path, place: str
) -> None:
    """A root or an endpoint that a variable gives, and that has a credential, fails each run and is not stored."""
    monkeypatch.setenv("LAKE_ROOT", f"s3://user:{PASSWORD}@bucket/lake" if place == "root" else "s3://bucket/lake")
    monkeypatch.setenv("LAKE_URL", f"http://user:{PASSWORD}@127.0.0.1:1" if place == "endpoint" else "http://a.example")
    endpoint = S3Options(endpoint=dg.EnvVar("LAKE_URL"), allow_http=True)
    resource = LanceResource(root=dg.EnvVar("LAKE_ROOT"), s3=endpoint)
    assets = [orders, *build_table_checks(orders, [RowCount(minimum=1)]), build_publisher([orders])]
    resources = {"lance": resource, "io_manager": LanceIOManager(lance=resource)}
    done = dg.materialize(assets, resources=resources, instance=stored_instance, raise_on_error=False)
    assert not done.success
    assert debug_log.stat().st_size
    assert [] == leaks(tmp_path, PASSWORD)


def test_the_search_finds_what_dagster_compresses(stored_instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """The search finds the configuration of another resource in the snapshot, which Dagster compresses."""

    class Careless(dg.ConfigurableResource):  # type: ignore[type-arg]
        password: str

    @dg.asset
    def opened(careless: Careless) -> None:
        assert careless.password

    done = dg.materialize([opened], resources={"careless": Careless(password=PASSWORD)}, instance=stored_instance)
    assert done.success
    assert [("dagster/history/runs.db", PASSWORD)] == sorted(set(leaks(tmp_path, PASSWORD)))[:1]
