"""No error of the package, and no message of the command, shows a credential that was given as a part of a URI."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    AzureOptions,
    GoogleOptions,
    InvalidInputError,
    LanceDagsterError,
    LanceRepository,
    LanceResource,
    LanceResourceComponent,
    LanceTable,
    RefNotFoundError,
    S3Options,
    build_discovery_sensor,
    lance_assets,
)
from lance_dagster.cli.main import main
from lance_dagster.credentials import shown_uri, without_credentials
from lance_dagster.errors import CorruptFileError
from tests.table_factory import entries, new_table

SECRET = "canary-secret"
URIS = [
    *(f"{scheme}://user:{SECRET}@bucket/lake" for scheme in ("s3", "s3a", "gs", "az", "http", "hdfs", "S3")),
    f"abfss://box:{SECRET}@account.dfs.core.windows.net/lake",
    f"file://user:{SECRET}@host/lake",
    f"s3://key:with/slash/{SECRET}@bucket/lake",
    f"s3://{SECRET}@bucket/lake",
    f"s3:/user:{SECRET}@bucket/lake",
    f" s3://user:{SECRET}@bucket/lake",
    f"s3://user:{SECRET}@bucket/lake\n",
    f"s3://user:{SECRET}@bucket/../lake",
    f"s3://bucket/lake?X-Amz-Signature={SECRET}",
    f"s3://bucket/lake#{SECRET}",
    f"https://account.blob.core.windows.net/box/lake?sig={SECRET}",
]
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    "uri,expected",
    [
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("s3://user:secret@bucket/lake", "s3://...@bucket/lake"),
        ("s3://key:a/b@bucket/lake", "s3://...@bucket/lake"),
        ("s3:/user:secret@bucket", "s3:/...@bucket"),
        ("user:secret@bucket/lake", "...@bucket/lake"),
        ("s3://bucket/lake?sig=secret", "s3://bucket/lake..."),
        ("abfss://box@account.dfs.core.windows.net/lake", "abfss://box@account.dfs.core.windows.net/lake"),
        ("abfss://box:secret@account.dfs.core.windows.net/lake", "abfss://...@account.dfs.core.windows.net/lake"),
        ("/data/ann@home/lake", "/data/ann@home/lake"),
        ("ann@home/lake", "ann@home/lake"),
    ],
)
def test_a_uri_is_shown_without_credentials(uri: str, expected: str) -> None:
    """A user, a query and a fragment are hidden; paths and containers of Azure are not."""
    assert expected == shown_uri(uri)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("at s3://user:secret@bucket/lake, twice", "at s3://...@bucket/lake, twice"),
        ("'s3://secret@bucket' and 'gs://u:a/b@c'", "'s3://...@bucket' and 'gs://...@c'"),
        ("https://host/box?sig=secret&se=1 failed", "https://host/box?... failed"),
        ("lance+s3://user:secret@bucket/t?ref=main", "lance+s3://...@bucket/t?ref=main"),
    ],
)
def test_a_text_is_shown_without_credentials(text: str, expected: str) -> None:
    """Each URI in a text loses its user and its query."""
    assert expected == without_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        "lance+s3://bucket/t?ref=main@{2026-01-31T00:00Z}",
        "lance+abfss://box@account.dfs.core.windows.net/t?table=a&ref=main@3",
        "abfss://box@account.dfs.core.windows.net/t has main@3",
        "cannot read http://127.0.0.1:9000/bucket/a@b: 404",
        "is there no table at s3://bucket/orders? Then make one",
        "main:x is not run@3",
    ],
)
def test_other_texts_are_shown_whole(text: str) -> None:
    """Refs, ports, containers of Azure and questions are no credentials."""
    assert text == without_credentials(text)


CALLS: dict[str, Callable[[str, Path], object]] = {
    "open": lambda uri, _: LanceTable.open(uri),
    "create": lambda uri, _: LanceTable.create(uri, SCHEMA),
    "exists": lambda uri, _: LanceTable.exists(uri),
    "clone": lambda uri, path: new_table(path, entries("a", 1)).maintenance.clone(uri),
    "allow a base": lambda uri, path: new_table(path, entries("a", 1)).maintenance.allow_base(uri),
    "base of an option": lambda uri, path: LanceTable.open(path / "t", {"allowed_base_paths": uri}).read(),
    "open a repository": lambda uri, _: LanceRepository.open(uri),
    "create a repository": lambda uri, _: LanceRepository.create(uri),
    "table of a repository": lambda uri, path: LanceRepository.create(path / "lake").table(uri),
    "adopt": lambda uri, path: LanceRepository.create(path / "lake").adopt([uri]),
    "ref": lambda uri, path: new_table(path, entries("a", 1)).at(uri),
    "branch": lambda uri, path: new_table(path, entries("a", 1)).branches.create(uri),
    "resource": lambda uri, _: LanceResource(root=uri),
    "base of a resource": lambda uri, path: LanceResource(root=path, storage_options={"allowed_base_paths": uri}),
    "definitions": lambda uri, _: lance_assets([], root=uri),
    "component": lambda uri, _: LanceResourceComponent(root=uri).resource(),
    "table of an asset": lambda uri, path: LanceResource(root=path).uri_of("a", {"lance/table": f"{uri}/"}),
    "folder of an asset": lambda uri, path: LanceResource(root=path).uri_of("a", {"lance/schema": f"/{uri}"}),
    "sensor": lambda uri, _: build_discovery_sensor("new", folder=f"{uri}/"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("uri", URIS)
def test_no_error_shows_a_credential(tmp_path: Path, uri: str, call: str) -> None:
    """The error of each call that takes a URI, a path or a name hides it, with its causes and in its repr."""
    new_table(tmp_path / "t")
    with pytest.raises(LanceDagsterError) as caught:
        CALLS[call](uri, tmp_path)
    shown = "".join(traceback.format_exception(caught.value))
    # Lines of the source are those of this test, which has the name of the secret and not the secret.
    assert SECRET not in shown + repr(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["log"],
        ["repository", "log"],
        ["repository", "create"],
        ["no-such-command"],
        ["log", "t", "and"],
        ["merge", "t", "--into", "main"],
        ["log", "t", "--storage-option", "aws_region=x", "--no-such-option"],
    ],
)
@pytest.mark.parametrize("uri", URIS)
def test_no_message_of_the_command_shows_a_credential(
    capsys: pytest.CaptureFixture[str], uri: str, arguments: list[str]
) -> None:
    """A URI that is refused, and one in a place where no URI is expected, is shown without its credential."""
    with pytest.raises(SystemExit):
        main([*arguments, uri])
    out, err = capsys.readouterr()
    assert err.startswith("lance-dagster")
    assert SECRET not in out + err


ENDPOINTS = [f"https://user:{SECRET}@storage.example.com", f"https://storage.example.com/?sig={SECRET}"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "construct",
    [
        lambda endpoint: S3Options(endpoint=endpoint),
        lambda endpoint: AzureOptions(endpoint=endpoint),
        lambda endpoint: GoogleOptions(endpoint=endpoint),
        *(
            lambda endpoint, name=name: LanceResource(root="s3://bucket/lake", storage_options={name: endpoint})
            for name in (
                "aws_endpoint",
                "endpoint_url",
                "AWS_ENDPOINT",
                "azure_storage_endpoint",
                "google_base_url",
            )
        ),
        lambda endpoint: LanceResource(root="s3://bucket/lake", storage_options={"base_1.aws_endpoint": endpoint}),
        lambda endpoint: LanceResourceComponent(root="s3://b/l", storage_options={"endpoint": endpoint}).resource(),
        lambda endpoint: lance_assets([], root="s3://b/l", storage_options={"endpoint": endpoint}),
    ],
)
def test_no_endpoint_with_a_credential_is_kept(construct: Callable[[str], object], endpoint: str) -> None:
    """Dagster stores endpoints in the snapshot of each run, so one with a credential is refused as it is given."""
    with pytest.raises(InvalidInputError, match=r"endpoint.* cannot contain '@'") as caught:
        construct(endpoint)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "scheme,variable",
    [
        ("s3", "AWS_ENDPOINT_URL_S3"),
        ("s3", "AWS_ENDPOINT_URL"),
        ("az", "AZURE_STORAGE_ENDPOINT"),
        ("gs", "GOOGLE_BASE_URL"),
    ],
)
def test_no_endpoint_of_the_environment_is_shown(
    monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str, endpoint: str
) -> None:
    """An endpoint with a credential is refused where a variable gives it, to the process or to the resource."""
    monkeypatch.setenv(variable, endpoint)
    resource = LanceResource(root=f"{scheme}://bucket/lake")
    name = {"s3": "aws_endpoint", "az": "azure_storage_endpoint", "gs": "google_base_url"}[scheme]
    of_variable = LanceResource(root=f"{scheme}://bucket/lake", storage_options={name: dg.EnvVar(variable)})
    for call in (lambda: resource.table("a"), of_variable.process_config_and_initialize):
        with pytest.raises((InvalidInputError, ValueError), match="cannot contain '@'") as caught:
            call()
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_every_error_hides_what_it_quotes() -> None:
    """Errors that format their text themselves hide credentials too; their attributes have what was given."""
    uri = URIS[0]
    errors = (RefNotFoundError("main", [], uri), CorruptFileError(uri, "it is empty"), InvalidInputError(uri))
    for error in errors:
        assert re.search(r"s3://\.\.\.@bucket/lake", str(error))
        assert SECRET not in repr(error)
    assert uri == errors[0].where
