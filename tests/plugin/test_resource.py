import re
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    AzureOptions,
    GoogleOptions,
    InvalidInputError,
    LanceIOManager,
    LanceResource,
    LanceTable,
    S3Options,
    SparkResource,
    TableNotFoundError,
)
from lance_dagster.plugin.provider_options import ProviderOptions
from lance_dagster.store.vocabulary import AZURE, GOOGLE, S3, Vocabulary
from tests.plugin.shop import ORDERS, Shop


@pytest.mark.parametrize(
    "key,metadata,expected",
    [
        ("orders", {}, "orders"),
        ("shop/orders", {}, "shop/orders"),
        ("eu/shop/orders", {}, "eu/shop/orders"),
        ("eu/shop/orders", {"lance/schema": "gold"}, "gold/orders"),
        ("eu/shop/orders", {"lance/schema": "gold/eu"}, "gold/eu/orders"),
        ("eu/shop/orders", {"lance/table": "raw/o", "lance/schema": "gold"}, "raw/o"),
        ("production/eu/orders", {"lance/candidate": "eu/orders"}, "eu/orders"),
        ("production/eu/orders", {"lance/candidate": "eu/orders", "lance/schema": "raw"}, "raw/orders"),
        ("production/eu/orders", {"lance/candidate": "eu/orders", "lance/table": "raw/o"}, "raw/o"),
    ],
)
def test_place_of_a_table(key: str, metadata: dict[str, object], expected: str) -> None:
    """The place of a table comes from metadata, else from the asset key; a promoted node has its candidate's place."""
    lake = LanceResource(root="/lake")
    assert f"/lake/{expected}.lance" == lake.uri_of(key, metadata)
    assert lake.uri_of(dg.AssetKey(key.split("/")), metadata) == lake.uri_of(key, metadata)


@pytest.mark.parametrize(
    "fields,says",
    [
        ({"root": ""}, "LanceResource.root is empty; give an absolute local path or s3://bucket/path"),
        ({"root": "lake"}, f"give an absolute path such as {str(Path.cwd() / 'lake')!r}"),
        ({"root": "s3:/bucket/lake"}, "root 's3:/bucket/lake' has one slash after s3:; give s3://..."),
        ({"root": "ftp://host/lake"}, "LanceResource.root 'ftp://host/lake': cannot store tables at ftp://"),
        ({"root": "/lake", "rot": "/x"}, "LanceResource has no field 'rot'; did you mean 'root'?"),
        (
            {"root": "/lake", "zone": "x"},
            "fields: azure, environment, environment_from, google, read_ref, root, s3, storage_options",
        ),
    ],
)
def test_wrong_field_is_named(fields: dict[str, str], says: str) -> None:
    """The error for a wrong field names the field and what would be right."""
    with pytest.raises(InvalidInputError) as caught:
        LanceResource(**fields)
    assert says in str(caught.value)


def test_root_is_a_path(tmp_path: Path) -> None:
    """A path object is accepted as a root, and a relative one is refused like a relative string."""
    assert LanceResource(root=tmp_path).uri_of("orders") == f"{tmp_path}/orders.lance"
    with pytest.raises(InvalidInputError):
        LanceResource(root=Path("lake"))


def test_secrets_are_not_shown() -> None:
    """Neither the repr nor the error for a wrong value shows a secret."""
    lake = LanceResource(root="s3://bucket/lake", storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(lake) + str(lake) + repr(LanceIOManager(lance=lake))
    with pytest.raises(ValueError, match="storage_options") as caught:
        LanceResource(root="/lake", storage_options={"aws_secret_access_key": ["hush"]})
    assert "hush" not in str(caught.value)


def test_root_and_options_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root and options come from environment variables, which need not be set when the definitions are loaded."""
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    lake = LanceResource(root=dg.EnvVar("LAKE"))
    assert "dagster/uri" not in lake.definition_metadata(ORDERS)

    @dg.asset(key=ORDERS)
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    manager = LanceIOManager(lance=lake)
    assert dg.materialize([orders], resources={"io_manager": manager}).success
    assert LanceTable.exists(str(tmp_path / "lake/shop/orders.lance"))


def test_wrong_root_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong root from the environment is reported when it is used, with the same message."""
    monkeypatch.setenv("LAKE", "lake")

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    manager = LanceIOManager(lance=LanceResource(root=dg.EnvVar("LAKE")))
    with pytest.raises(dg.DagsterResourceFunctionError) as caught:
        dg.materialize([orders], resources={"io_manager": manager})
    assert "LanceResource.root is relative: 'lake'" in str(caught.value.__cause__)


def test_open_pins_what_the_run_sees(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A table is opened on the branch of the run, or on main outside of a run, and stays at its version."""
    shop.run(instance)
    seen: list[object] = []

    @dg.asset(deps=[ORDERS])
    def look(context: dg.AssetExecutionContext) -> None:
        table = shop.lance.open(context, ORDERS)
        seen.append((table.version.branch, table.read(["id"], "id > 4")["id"].to_pylist(), table.count_rows()))
        table.table.append(pa.table({"id": [6]}), branch=table.version.branch)
        seen.append((table.count_rows(), table.scan().read_all().num_rows, table.to_lance().count_rows()))

    shop.play(orders=[4, 5])
    run = dg.materialize(
        [*shop.assets, look],
        selection=dg.AssetSelection.assets(ORDERS, look),
        instance=instance,
        resources=shop.resources,
    )
    assert seen == [(f"run/{run.run_id}", [5], 2), (2, 2, 2)]
    assert shop.lance.open(dg.build_asset_context(), ORDERS).ref == "main@2"
    assert shop.lance.open(None, ORDERS).schema.names == ["id"]


def test_read_ref_for_runs_without_a_branch(shop: Shop, instance: dg.DagsterInstance) -> None:
    """A resource whose `read_ref` is production never sees rows that are only on main."""
    shop.run(instance)
    shop.table().append(pa.table({"id": [9]}))
    reader = LanceResource(root=shop.lance.root, read_ref="production")
    assert reader.open(None, ORDERS).count_rows() == 3
    assert shop.lance.open(None, ORDERS).count_rows() == 4


def test_table_that_is_not_there(lake: LanceResource) -> None:
    """The error for a missing table has the name, the place, and possible reasons."""
    with pytest.raises(TableNotFoundError, match="no run has written it yet"):
        lake.table(ORDERS)


@pytest.mark.parametrize(
    "key,metadata,says",
    [
        (["shop", "", "orders"], {}, "a part of the path is ''"),
        (["..", "orders"], {}, "a part of the path is '..'"),
        (["a/../..", "orders"], {}, "'a/../..' has a character that is not allowed"),
        (["shop.lance", "orders"], {}, "'shop.lance' ends in .lance"),
        (["orders"], {"lance/table": "../other/orders"}, "a part of the path is '..'"),
        (["orders"], {"lance/table": "/etc/orders"}, "a part of the path is ''"),
        (["orders"], {"lance/table": "s3://bucket/orders"}, "a part of the path is ''"),
        (["orders"], {"lance/table": "shop/orders.lance"}, "'orders.lance' ends in .lance"),
        (["orders"], {"lance/schema": "./shop"}, "a part of the path is '.'"),
        (["orders"], {"lance/schema": "shop/../.."}, "a part of the path is '..'"),
        (["orders"], {"lance/candidate": "../orders"}, "a part of the path is '..'"),
        (["orders"], {"lance/table": "shop/..\\orders"}, "has a character that is not allowed"),
        (["or\0ders"], {}, "has a character that is not allowed"),
    ],
)
def test_table_cannot_leave_the_root(
    lake: LanceResource, key: list[str], metadata: dict[str, object], says: str
) -> None:
    """Neither the key nor the metadata of an asset leads out of the root or into another table."""
    with pytest.raises(InvalidInputError) as caught:
        lake.uri_of(dg.AssetKey(key), metadata)
    assert says in str(caught.value)


@pytest.mark.slow
def test_spark_session_is_started_when_asked_for(spark: object) -> None:
    """The resource returns the Spark session of the process."""
    assert SparkResource(app_name="x").session is spark
    with pytest.raises(InvalidInputError):
        SparkResource(maste="local")


def test_a_table_is_opened_at_a_version_or_a_ref_expression(tmp_path: Path) -> None:
    """Without a ref, a caller outside of a run reads main."""
    lake = LanceResource(root=str(tmp_path))
    table = LanceTable.create(lake.uri_of("lab/numbers"), pa.schema({"id": pa.int64()}))
    table.branches.create("fix")
    version = table.append(pa.table({"id": [1]}), branch="fix")
    table.append(pa.table({"id": [1]}), branch="fix")
    context = dg.build_asset_context()
    assert "fix@2" == lake.open(context, "lab/numbers", ref=version).ref
    assert "fix@3" == lake.open(context, "lab/numbers", ref="fix").ref
    assert "main@1" == lake.open(context, "lab/numbers").ref


def test_typed_options_of_azure_and_google() -> None:
    """Typed options become pylance's options; no text has their secrets, and a root has only one provider."""
    azure = AzureOptions(account_name="lake", account_key="hush", use_azure_cli=True)
    google = GoogleOptions(service_account_key="hush", anonymous=True)
    lakes = [LanceResource(root="az://c/x", azure=azure), LanceResource(root="gs://b/x", google=google)]
    assert [
        {"account_name": "lake", "account_key": "hush", "use_azure_cli": "true"},
        {"google_service_account_key": "hush", "google_skip_signature": "true"},
    ] == [lake.connection_options for lake in lakes]
    assert "hush" not in repr(lakes) + repr(azure) + repr(google)
    doubled = LanceResource(root="az://c/x", storage_options={"azure_storage_access_key": "x"}, azure=azure)
    with pytest.raises(InvalidInputError):
        doubled.connection_options  # noqa: B018
    with pytest.raises(InvalidInputError):
        LanceResource(root="az://c/x", azure=azure, google=google).connection_options  # noqa: B018
    with pytest.raises(InvalidInputError):
        AzureOptions(acount_name="x")  # type: ignore[call-arg]


def test_typed_options_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed options of S3 become pylance's options; variables are read in a run, and a wrong name is refused."""
    monkeypatch.setenv("HUSH", "hush")
    options = S3Options(region="eu", endpoint="http://minio:9000", allow_http=True, secret_access_key=dg.EnvVar("HUSH"))
    lake = LanceResource(root="s3://bucket/lake", s3=options)
    seen: list[dict[str, str]] = []

    @dg.asset
    def look(lance: LanceResource) -> None:
        seen.append(lance.connection_options)

    assert dg.materialize([look], resources={"lance": lake}).success
    expected = {"aws_region": "eu", "aws_endpoint": "http://minio:9000", "allow_http": "true"}
    assert [{**expected, "aws_secret_access_key": "hush"}] == seen
    assert "hush" not in repr(lake) + repr(S3Options(secret_access_key="hush"))
    with pytest.raises(InvalidInputError):
        S3Options(regoin="eu")  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError):
        LanceResource(root="s3://b/x", storage_options={"AWS_REGION": "us"}, s3=options).connection_options  # noqa: B018


def test_misspelt_storage_option_is_refused_at_once() -> None:
    """The error for a misspelt option has the nearest name, also for a base path and an unset variable."""
    for name in ("aws_secret_acess_key", "base_2.aws_secret_acess_key"):
        with pytest.raises(InvalidInputError, match=f"option '{name}' .did you mean 'aws_secret_access_key'"):
            LanceResource(root="s3://bucket/lake", storage_options={name: dg.EnvVar("SECRET")})
    LanceResource(root="/lake", storage_options={"durability": "process", "base_1.AWS_REGION": "eu"})


@pytest.mark.parametrize(
    "options, table",
    [(S3Options, S3), (AzureOptions, AZURE), (GoogleOptions, GOOGLE)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_typed_options_are_those_of_the_table(options: type[ProviderOptions], table: Vocabulary) -> None:
    """The class and the row of the page have the fields of the provider's table, in its order, and no other."""
    assert list(table.fields) == list(options.model_fields)
    page = (Path(__file__).parents[2] / "docs" / "dagster.md").read_text()
    (listed,) = re.findall(rf"`{options.__name__}\(([^)]*)\)`; ", page)
    assert table.fields.keys() == {name.strip().rstrip("=") for name in listed.split(",")}
