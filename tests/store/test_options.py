"""Spellings of URIs, and names of storage options."""

import re
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError
from lance_dagster.store import canonical_uri, open_store
from lance_dagster.store.options import base_options, s3fs_options, table_options
from lance_dagster.store.vocabulary import AZURE, GOOGLE, S3


@pytest.mark.parametrize(
    "given,canonical",
    [
        ("/lake/t", "/lake/t"),
        ("/lake/t/", "/lake/t"),
        ("/lake//x/../t", "/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("file:///lake/my%20t/", "/lake/my t"),
        ("FILE:///lake/t", "/lake/t"),
        ("s3://bucket/lake/t", "s3://bucket/lake/t"),
        ("s3://bucket//lake/t/", "s3://bucket/lake/t"),
        ("s3a://bucket/t", "s3://bucket/t"),
        ("s3n://bucket/t", "s3://bucket/t"),
        ("S3://Bucket/T", "s3://Bucket/T"),
        ("s3://bucket", "s3://bucket"),
        ("AZ://container//t/", "az://container/t"),
        ("abfss://container@account.dfs.core.windows.net/t/", "abfss://container@account.dfs.core.windows.net/t"),
        ("gs://bucket/t/", "gs://bucket/t"),
        ("s3://bucket/a%/100%zz", "s3://bucket/a%/100%zz"),
        (Path("/lake/t"), "/lake/t"),
    ],
)
def test_a_place_has_one_spelling(given: str | Path, canonical: str) -> None:
    """Every spelling of a place is normalized to one, and normalizing it again changes nothing."""
    assert canonical == canonical_uri(given)
    assert canonical == canonical_uri(canonical)


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base path is kept by pylance as it was given, and resolved against wherever it runs."""
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "lake/t") == canonical_uri("lake/t")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path / "t") == canonical_uri("~/t")


@pytest.mark.parametrize(
    "given,said",
    [
        ("", "cannot be empty"),
        ("  ", "cannot be empty"),
        ("s3://bucket/t?versionId=1", "cannot contain '[?]' or '#'"),
        ("s3://bucket/t#x", "cannot contain '[?]' or '#'"),
        ("s3:///t", "scheme://bucket/path"),
        ("s3://bucket/a/../b", r"cannot contain '\.'"),
        (None, "has to be text or a path, not None"),
        (Path("s3://bucket/t"), "'s3:/bucket/t' lacks a slash; give a URI s3:// as text"),
        ("s3://bucket/a%20b/t", "not percent-encoded.*write 's3://bucket/a b/t'"),
        ("gs://bucket/a%2fb", "not percent-encoded.*write 'gs://bucket/a/b'"),
        ("s3://bucket/orders ", "cannot begin or end with white space"),
        ("s3://bucket/orders\u3000", "cannot begin or end with white space"),
        ("s3://bucket/or\tders", "cannot contain control characters"),
        ("/lake/or\nders", "cannot contain control characters"),
        ("file:///lake/or%0Aders", "cannot contain control characters"),
        ("/lake/a?b", "cannot contain '[?]', where pylance cuts it"),
        ("file:///lake/a%3Fb", "cannot contain '[?]', where pylance cuts it"),
        ("file://sub/t", "names the host 'sub'; a local path has three slashes"),
        ("file:///data/orders#1", "has a query or a fragment; in a file URI, '#' is written %23"),
        ("file:///data/orders?x", "has a query or a fragment"),
    ],
)
def test_a_uri_that_is_none_is_refused(given: Any, said: str) -> None:  # noqa: ANN401 - what a caller may give
    """An invalid URI is refused, and the error says what is wrong."""
    with pytest.raises(InvalidInputError, match=said):
        canonical_uri(given)


@pytest.mark.parametrize("uri", ["lake/\udcff/t", "s3://bucket/\udcff"])
def test_a_place_that_pylance_cannot_open_is_refused(uri: str) -> None:
    """The name of a folder need not be UTF-8 on local disk, and Python shows its bytes as surrogates."""
    with pytest.raises(InvalidInputError):
        open_store(uri)


@pytest.mark.parametrize("given", [["a"], "a=b", {1: "a"}])
def test_storage_options_are_a_mapping(given: Any) -> None:  # noqa: ANN401 - what a caller may give
    """The error shows the form of one, and not what was given: it may be secret."""
    with pytest.raises(InvalidInputError, match="such as"):
        LanceTable.open("s3://bucket/t", given)


@pytest.mark.parametrize("name", ["allowed_base_paths", "durability", "record_digests", "base_1.durability", "region"])
@pytest.mark.parametrize("given", [["a"], None, Path("/a")], ids=["list", "None", "path"])
def test_the_value_of_an_option_is_text(name: str, given: Any) -> None:  # noqa: ANN401 - what a caller may give
    """Another value is refused before anything is opened, by the name of its option."""
    with pytest.raises(InvalidInputError):
        LanceTable.open("/lake/orders", {name: given})


@pytest.mark.parametrize(
    "uri",
    [
        "file://user:secret@host/x.lance",
        "file:///lake/x.lance?sig=secret",
        "/lake/x.lance?sig=secret",
        "s3:/b/x?sig=secret",
        "s3:/u:secret@b/x",
        "https:/host/c/x?sig=secret",
        "s3://u:secret@b/x\n",
        "s3://u:se/secret@b/x\n",
        "s3://b/x\n?sig=secret",
        "s3://b/x%3Fsig=secret",
        " s3://b/x?sig=secret",
    ],
)
def test_what_may_be_a_credential_in_a_refused_uri_is_not_shown(uri: str) -> None:
    """Whatever is wrong with the URI: errors reach logs and Dagster's pages."""
    with pytest.raises(InvalidInputError) as caught:
        canonical_uri(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["hdfs", "abfs", "memory", "http"])
def test_a_scheme_that_cannot_hold_tables_is_refused(scheme: str) -> None:
    """The message names what can be used."""
    with pytest.raises(
        InvalidInputError,
        match=rf"cannot store tables at {scheme}://; use a local path, s3://, az://, abfss:// or gs://",
    ):
        open_store(f"{scheme}://bucket/t")


def test_options_are_understood_with_and_without_prefix() -> None:
    """The two spellings pylance takes are one option here, in any case."""
    plain = {
        "access_key_id": "k",
        "secret_access_key": "s",
        "session_token": "t",
        "region": "r",
        "endpoint": "https://e",
    }
    prefixed = {f"AWS_{name.upper()}": value for name, value in plain.items()}
    found = s3fs_options(plain)
    assert found == s3fs_options(prefixed)
    assert ("k", "s", "t", False) == (found["key"], found["secret"], found["token"], found["anon"])
    assert {"endpoint_url": "https://e", "region_name": "r"} == found["client_kwargs"]


@pytest.mark.parametrize(
    "options,style",
    [
        ({}, "auto"),
        ({"endpoint": "https://e"}, "path"),
        ({"endpoint": "https://e", "virtual_hosted_style_request": "true"}, "virtual"),
    ],
)
def test_a_server_of_ones_own_is_addressed_by_path(options: dict[str, str], style: str) -> None:
    """A custom endpoint is addressed by path, since it need not have a host name per bucket."""
    assert {"addressing_style": style} == s3fs_options(options)["config_kwargs"]["s3"]


@pytest.mark.parametrize(
    "options,said",
    [
        (
            {"acces_key_id": "k"},
            r"option 'acces_key_id' \(did you mean 'access_key_id'\?\); known: aws_access_key_id, ",
        ),
        ({"endpoint": "http://e"}, "the endpoint uses plain http; set the storage option allow_http to 'true'"),
        ({"endpoint": "http://e", "allow_http": "false"}, "set the storage option allow_http"),
        ({"region": 3}, "storage option 'region' must be a string, not int"),
        ({"endpoint": "localhost:9000"}, "the endpoint must be a URL such as https://storage.example.com:9000"),
        ({"endpoint": ""}, "the endpoint must be a URL"),
        ({"endpoint": "http://"}, "the endpoint must be a URL"),
        ({"endpoint": "http://[::1"}, "the endpoint must be a URL"),
        ({"endpoint": "http://host:port"}, "the endpoint must be a URL"),
    ],
)
def test_an_option_that_would_not_work_is_refused(options: dict[str, str], said: str) -> None:
    """An option without effect is refused, and the error says what would be right."""
    with pytest.raises(InvalidInputError, match=said):
        s3fs_options(options)


def test_a_plain_endpoint_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables would be listed there, and pylance could read none of them."""
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e")
    with pytest.raises(InvalidInputError, match="plain http"):
        s3fs_options({"region": "r"})
    assert s3fs_options({"allow_http": "true"})
    assert s3fs_options({"endpoint": "https://e"})
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert s3fs_options({"region": "r"})


@pytest.mark.parametrize("uri,provider", [("s3://b/t", "AWS"), ("az://c/t", "AZURE"), ("gs://b/t", "GOOGLE")])
@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
def test_a_timeout_of_the_environment_counts_unless_one_is_given(
    uri: str, provider: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are variables that pylance reads."""
    monkeypatch.setenv(f"{provider}_{name.upper()}", "soon")
    with pytest.raises(InvalidInputError):
        open_store(uri, {})
    assert uri == open_store(uri, {f"{provider}_{name}": "2m"}).uri


def test_listings_are_never_remembered() -> None:
    """Listings are not cached, because other writers create objects."""
    assert s3fs_options({})["use_listings_cache"] is False


def test_a_base_path_has_the_tables_options_and_its_own() -> None:
    """Its own come first; those of other bases are no concern of it, and a local folder takes none."""
    given = {"region": "a", "access_key_id": "k", "base_1.region": "b", "base_12.region": "c"}
    assert {"region": "a", "access_key_id": "k"} == table_options(given)
    assert {"region": "b", "access_key_id": "k"} == base_options(given, 1, "s3://bucket/x")
    assert {"region": "a", "access_key_id": "k"} == base_options(given, 2, "s3://bucket/x")
    assert {} == base_options(given, 1, "file:///x")


def test_a_base_path_on_another_provider_has_none_of_the_tables_credentials() -> None:
    """Also where the other provider has an option of that name; a timeout applies to both."""
    given = {"endpoint": "https://s3", "token": "t", "access_key_id": "k", "timeout": "9s", "record_digests": "true"}
    shared = {"timeout": "9s", "record_digests": "true"}
    assert shared == base_options(given, 1, "az://container/x")
    own = {"google_base_url": "https://g"}
    assert shared | own == base_options({**given, "base_1.google_base_url": "https://g"}, 1, "gs://bucket/x")
    assert {"region": "a"} == base_options({**own, "base_2.region": "a"}, 2, "s3://bucket/x")


def test_a_local_table_takes_options_for_its_bases_alone(tmp_path: Path) -> None:
    """A local table takes options only for its bases, since an option of its own would have no effect."""
    assert str(tmp_path) == open_store(tmp_path, {"base_1.region": "a"}).uri
    with pytest.raises(InvalidInputError):
        open_store(tmp_path, {"region": "a"})


def test_the_page_lists_every_option() -> None:
    """Each option of each provider, by the first of its names, and those of this package."""
    page = (Path(__file__).parent.parent.parent / "docs" / "guides" / "access.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_]+)`", page.partition("## Storage options")[2].partition("\n## ")[0]))
    known = {"durability", "allowed_base_paths", "check_files", "record_digests"}
    known |= {spelt for spelt in S3.names if spelt.startswith("aws_")}
    known |= {option.spellings[0] for vocabulary in (AZURE, GOOGLE) for option in vocabulary.options.values()}
    assert known <= listed
