"""Every store on object storage: the contract, a whole life of a table with pylance beside it, requests, and errors."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import InvalidInputError, PermissionRefusedError, StoreError
from lance_dagster.store import Store, open_store
from tests.conftest import CHECKOUT, S3Storage, bucket_on, free_port
from tests.servers.objects import FAULTS
from tests.store import providers
from tests.store.conformance import StoreConformance
from tests.store.providers import endpoint_of, requests_of
from tests.store.whole_life import live_a_whole_life
from tests.table_factory import SCHEMA, contents, entries

SECRET = "canary-secret"
PROVIDERS = ["s3", "azure", "google"]


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Azurite, once for all tests of a worker."""
    with providers.azurite(tmp_path_factory.mktemp("azure") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def google_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server for Google's interface, once for all tests of a worker."""
    with providers.google_server(tmp_path_factory.mktemp("google") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture(params=PROVIDERS)
def storage(request: pytest.FixtureRequest) -> S3Storage:
    """A fresh bucket or container of a provider."""
    match request.param:
        case "azure":
            return providers.azure_storage(request.getfixturevalue("azure_endpoint"))
        case "google":
            return providers.google_storage(request.getfixturevalue("google_endpoint"))
        case _:
            return bucket_on(request.getfixturevalue("s3_server"))


class TestEveryProvider(StoreConformance):
    """A prefix of a bucket does what a store has to do."""

    # Azure takes 256 in a request; the thousand of S3 is a test of the bucket as a whole.
    many = 259

    @pytest.fixture
    def store(self, storage: S3Storage) -> Store:
        """A place where nothing is yet."""
        return open_store(f"{storage.uri}/deep/prefix", storage.storage_options)


def test_a_table_lives_a_whole_life(storage: S3Storage) -> None:
    """A table works through its whole life on each provider."""
    live_a_whole_life(storage)


def test_a_place_that_does_not_exist_is_a_clear_error(storage: S3Storage) -> None:
    """A missing bucket or container is no missing object; nothing of the client's own errors comes out."""
    store = open_store(f"{storage.uri}-missing", storage.storage_options)
    for verb in (
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.compare_and_swap("a", b"1", "1"),
        lambda: store.list("a"),
    ):
        with pytest.raises(StoreError, match="-missing"):
            verb()


UNREACHABLE = {
    "az://bucket/t": {"account_name": "a", "account_key": SECRET + "=", "endpoint": "http://{}/a"},
    "gs://bucket/t": {"google_storage_token": SECRET, "google_base_url": "http://{}"},
}


@pytest.mark.parametrize("uri", UNREACHABLE)
def test_a_server_that_does_not_answer_is_a_store_error(uri: str) -> None:
    """Requests are repeated until the time is over; the error says how long that was, and shows no secret."""
    address = f"127.0.0.1:{free_port()}"
    options = {name: value.format(address) for name, value in UNREACHABLE[uri].items()}
    store = open_store(uri, options | {"allow_http": "true", "client_retry_timeout": "1"})
    with pytest.raises(StoreError, match="gave up after 1 s of retries") as caught:
        store.list("a")
    assert SECRET not in str(caught.value) + repr(store)


@pytest.mark.parametrize("storage", ["s3", "google"], indirect=True)
def test_a_response_that_is_late_is_not_waited_for(storage: S3Storage) -> None:
    """With a timeout a slow request is given up and repeated, and the error comes from this package."""
    options = {**storage.storage_options, "timeout": "200ms", "connect_timeout": "5s", "client_retry_timeout": "1"}
    store = open_store(f"{storage.uri}/x", options)
    store.put("a", b"1")
    set_faults(storage, {"kind": "slow", "part": "a", "seconds": 5.0, "times": 1})
    assert b"1" == store.get("a")
    set_faults(storage, {"kind": "slow", "part": "a", "seconds": 5.0, "times": 10**6})
    try:
        with pytest.raises(StoreError, match="gave up after 1 s of retries"):
            store.get("a")
    finally:
        set_faults(storage)
    # pylance reads both options, and refuses what is no duration.
    for name in ("timeout", "connect_timeout"):
        with pytest.raises(ValueError, match='failed to parse "soon" as Duration'):
            lance.dataset(f"{storage.uri}/x", storage_options={**options, name: "soon"})


def test_azure_does_not_wait_for_a_response_that_is_late() -> None:
    """A server that accepts connections and never answers is a failure of the storage, after the time of retries."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        options = {"account_name": "a", "skip_signature": "true", "endpoint": endpoint, "allow_http": "true"}
        store = open_store("az://c/t", options | {"timeout": "200ms", "client_retry_timeout": "1"})
        with pytest.raises(StoreError, match=r"0[.]2.*gave up after 1 s of retries"):
            store.get("a")


LISTED = """<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="http://localhost/a/" ContainerName="c"><Blobs>
<Blob><Name>t/data</Name><Properties><Last-Modified>Thu, 26 Nov 2026 17:00:00 GMT</Last-Modified>
<Content-Length>0</Content-Length><BlobType>BlockBlob</BlobType></Properties>
<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata></Blob>
<Blob><Name>t/data/x.lance</Name><Properties><Last-Modified>Thu, 26 Nov 2026 17:00:00 GMT</Last-Modified>
<Content-Length>3</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>
</Blobs><NextMarker /></EnumerationResults>"""


class HierarchicalAccount(BaseHTTPRequestHandler):
    """Answers every listing as an account with hierarchical namespaces does, which Azurite has none of."""

    def do_GET(self) -> None:
        """Send the folder `t/data`, with its metadata if asked for, and the file in it."""
        text = LISTED if "include=metadata" in self.path else LISTED.replace("<hdi_isfolder>true</hdi_isfolder>", "")
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def test_a_folder_of_azure_is_no_object() -> None:
    """An account with hierarchical namespaces lists its folders among the blobs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), HierarchicalAccount) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/a"
        options = {"account_name": "a", "skip_signature": "true", "endpoint": endpoint, "allow_http": "true"}
        found = [(entry.key, entry.size) for entry in open_store("az://c/t", options).walk("")]
        server.shutdown()
    assert [("data/x.lance", 3)] == found


@pytest.mark.parametrize("uri", ["s3://b/t", "az://c/t", "gs://b/t"])
@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
@pytest.mark.parametrize("value", ["30", "soon", "0s", "1.5s", "-1s", "", "1h"])
def test_a_timeout_without_its_unit_is_refused(uri: str, name: str, value: str) -> None:
    """The error names the option and its units."""
    options = {"account_name": "a"} if uri.startswith("az") else {}
    with pytest.raises(InvalidInputError, match=f"option {name} .*ms, s or m"):
        open_store(uri, {**options, name: value})


@pytest.mark.parametrize(
    "uri,options,said",
    [
        ("s3://b/t", {"request_timeout": "30s"}, "unknown storage option 'request_timeout'"),
        ("az://c/t", {"acount_key": "x"}, "unknown storage option 'acount_key' of Azure .did you mean 'account_key'"),
        ("az://c/t", {"aws_region": "x"}, "unknown storage option 'aws_region' of Azure"),
        ("gs://b/t", {"servce_account": "x"}, "did you mean 'service_account'"),
        ("az://c/t", {"endpoint": "http://h/a"}, "set the storage option allow_http"),
        ("az://c/t", {"endpoint": "https://h/a?sig=x"}, "cannot contain '@', '[?]' or '#'"),
        ("gs://b/t", {"google_base_url": "http://h"}, "set the storage option allow_http"),
        ("gs://b/t", {"google_base_url": "https://"}, "the endpoint must be a URL"),
        ("az://c/t", {"endpoint": "https://[::1"}, "the endpoint must be a URL"),
        ("az://c/t", {"endpoint": ""}, "the endpoint must be a URL"),
        ("gs://b/t", {"client_retry_timeout": "soon"}, "client_retry_timeout is a number of seconds, not 'soon'"),
        ("abfss://c@acc.dfs.core.windows.net/t", {"account_name": "other"}, "names the storage account 'acc'"),
        ("abfss://c:pw@acc.dfs.core.windows.net/t", {}, "cannot contain a user before '@'"),
        ("az://c@acc/t", {}, "cannot contain a user before '@'"),
        ("s3://lake--use1-az4--x-s3/t", {}, "a directory bucket of S3 Express.*use a general purpose bucket"),
        ("hdfs://h/t", {}, "use a local path, s3://, az://, abfss:// or gs://"),
    ],
)
def test_what_would_not_work_is_refused(uri: str, options: dict[str, str], said: str) -> None:
    """Settings that cannot work are refused before a request is sent, with what would be right."""
    with pytest.raises(InvalidInputError, match=said):
        open_store(uri, options)


@pytest.mark.parametrize(
    "uri,option", [("s3://b/t", "session_token"), ("az://c/t", "bearer_token"), ("gs://b/t", "google_storage_token")]
)
def test_a_token_with_a_line_break_is_refused_and_not_shown(uri: str, option: str) -> None:
    """As it is read from a file; no header can hold it, and the clients' errors would show it."""
    with pytest.raises(InvalidInputError) as caught:
        open_store(uri, {option: f"{SECRET}\n"})
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        open_store(uri, {option: f"{SECRET}\ud800"})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "option,said", [("sas_token", "must be a shared access signature"), ("bearer_token", "sent over https only")]
)
def test_a_credential_that_azure_cannot_use_is_refused(option: str, said: str) -> None:
    """When the table is opened: the client is made with the first request. The error does not show the credential."""
    options = {"account_name": "a", "endpoint": "http://127.0.0.1:1/a", "allow_http": "true", option: SECRET}
    with pytest.raises(InvalidInputError, match=said) as caught:
        LanceTable.open("az://c/t", options)
    assert SECRET not in str(caught.value)


SERVICE_PRINCIPAL = {"client_id": "x", "client_secret": SECRET, "tenant_id": "a/b"}
PLAIN_HTTP = {"endpoint": "http://127.0.0.1:1/a", "allow_http": "true"}


@pytest.mark.parametrize(
    "options,said",
    [
        (PLAIN_HTTP, "https only, and the endpoint uses plain http; give account_key or sas_token"),
        ({**PLAIN_HTTP, **SERVICE_PRINCIPAL}, "https only, and the endpoint uses plain http"),
        (SERVICE_PRINCIPAL, "a tenant_id is a uuid or a domain"),
    ],
    ids=["no credentials", "service principal", "tenant"],
)
def test_an_identity_that_azure_cannot_use_is_refused(options: dict[str, str], said: str) -> None:
    """The library of Azure raises errors of Python for these, with the first request."""
    with pytest.raises(InvalidInputError, match=said) as caught:
        LanceTable.open("az://c/t", {"account_name": "a", **options})
    assert SECRET not in str(caught.value)


FROM_THE_ENVIRONMENT = """
import sys
import lance, pyarrow as pa
from lance_dagster import LanceTable
table = LanceTable.create(sys.argv[1], pa.schema([("a", pa.int64())]))
table.append(pa.table({"a": [1]}))
assert 1 == lance.dataset(table.uri).count_rows()
"""


def test_credentials_come_from_the_environment(storage: S3Storage) -> None:
    """Under the names that pylance reads them by, once in a process; both open a table without options."""
    names = {
        "aws_endpoint": "AWS_ENDPOINT_URL",
        "azure_storage_endpoint": "AZURE_STORAGE_ENDPOINT",
        "allow_http": "AWS_ALLOW_HTTP",
        "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
        "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    }
    given = {names.get(option, option.upper()): value for option, value in storage.storage_options.items()}
    run_alone(FROM_THE_ENVIRONMENT, f"{storage.uri}/t", **given)


def run_alone(program: str, *arguments: str, **environment: str) -> None:
    """Run a program in a separate process, which has to succeed."""
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr


def set_faults(storage: S3Storage, *faults: dict[str, object]) -> None:
    """Tell the server of S3 or Google which of its next requests fail."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    given = urllib.request.Request(endpoint_of(storage) + FAULTS, json.dumps(faults).encode())  # noqa: S310 - of this machine
    opener.open(given).close()


@pytest.mark.parametrize("storage", ["s3", "google"], indirect=True)
def test_an_operation_costs_the_requests_that_the_page_says(storage: S3Storage) -> None:
    """One for nearly everything; the first conditional write makes seven more, to know the server."""
    store = open_store(f"{storage.uri}/x", storage.storage_options)
    on_s3 = storage.uri.startswith("s3:")
    first = requests_of(storage, lambda: store.put_if_absent("a/b", b"0"))
    assert 8 == len(first)
    for verb, count in (
        (lambda: store.put("a/b", b"1"), 1),
        (lambda: store.put_if_absent("a/b", b"1"), 1),
        (lambda: store.compare_and_swap("a/b", b"1", "1"), 1),
        (lambda: store.get("a/b"), 1),
        (lambda: store.get("a/none"), 1),
        (lambda: store.get_range("a/b", 0, 1), 1),
        (lambda: store.get_with_etag("a/b"), 1),
        (lambda: store.list("a", limit=3), 1),
        (lambda: store.sizes("a"), 1),
        (lambda: store.folders(""), 1),
        (lambda: store.compare_and_delete("a/b", "1"), 1),
        (lambda: store.delete("a/b"), 1),
        (lambda: store.delete_many(["a/b", "a/c"]), 1 if on_s3 else 2),
        (store.now, 3 if on_s3 else 2),
    ):
        found = requests_of(storage, verb)
        assert count == len(found), found


def test_one_of_many_writers_at_once_wins(storage: S3Storage) -> None:
    """In each round exactly one of eight threads makes the object, and one replaces it."""
    store = open_store(f"{storage.uri}/x", storage.storage_options)
    with ThreadPoolExecutor(8) as pool:
        for key in ("first", "second", "third"):
            made = list(pool.map(lambda writer, key=key: store.put_if_absent(key, b"%d" % writer), range(8)))
            data, tag = store.get_with_etag(key) or (b"", "")
            assert (1, b"%d" % made.index(True)) == (sum(made), data)
            swapped = list(
                pool.map(lambda writer, key=key, tag=tag: store.compare_and_swap(key, b"x%d" % writer, tag), range(8))
            )
            assert (1, b"x%d" % swapped.index(True)) == (sum(swapped), store.get(key))


FORKED = """
import os, sys
from lance_dagster.store import open_store
uri, *pairs = sys.argv[1:]
store = open_store(uri, dict(zip(pairs[::2], pairs[1::2])))
store.put("parent", b"1")
child = os.fork()
if not child:
    os._exit(0 if store.get("parent") == b"1" and store.put_if_absent("child", b"2") else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status or (0 if store.get("child") == b"2" else 2))
"""


def test_a_store_works_in_a_forked_process(storage: S3Storage) -> None:
    """The child makes connections of its own, and those of the parent go on."""
    given = [part for pair in storage.storage_options.items() for part in pair]
    run_alone(FORKED, f"{storage.uri}/forked", *given)


def test_azures_own_spelling_is_the_same_place(azure_endpoint: str) -> None:
    """A container and an account in the host; pylance opens the table by the same URI."""
    storage = providers.azure_storage(azure_endpoint)
    options = dict(storage.storage_options)
    uri = f"abfss://{storage.uri.removeprefix('az://')}@{options.pop('account_name')}.dfs.core.windows.net/t"
    table = LanceTable.create(uri, SCHEMA, storage_options=options)
    table.branches.create("run/1")
    table.append(entries("a", 1), branch="run/1")
    table.merge("run/1")
    assert uri == table.uri
    given = options | {"account_name": providers.ACCOUNT}
    assert 1 == lance.dataset(uri, storage_options=given).count_rows()
    assert 1 == LanceTable.open(f"{storage.uri}/t", given).head().rows


def test_a_shallow_clone_lies_on_another_provider(s3_storage: S3Storage, google_endpoint: str) -> None:
    """It reads the files of its source with the options of the source."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1))
    there = providers.google_storage(google_endpoint)
    clone = table.maintenance.clone(f"{there.uri}/t", storage_options=there.storage_options)
    assert [("a", 1)] == contents(clone) == contents(LanceTable.open(clone.uri, clone.storage_options))


@pytest.mark.parametrize("kind", ["503", "500", "429", "reset_before", "reset_after"])
def test_a_put_on_google_survives_what_goes_wrong_once(google_endpoint: str, kind: str) -> None:
    """It is written once. A condition that failed is no proof of another writer: the first answer may be lost."""
    storage = providers.google_storage(google_endpoint)
    store = open_store(storage.uri, storage.storage_options)
    assert store.put_if_absent("first", b"1")
    set_faults(storage, {"kind": kind, "method": "POST", "part": "second"})
    assert (kind != "reset_after") == store.put_if_absent("second", b"2")
    assert b"2" == store.get("second")


@pytest.mark.parametrize("storage", ["s3", "google"], indirect=True)
def test_a_refusal_after_a_lost_answer_does_not_hide_what_landed(storage: S3Storage) -> None:
    """A token that expires between two attempts: the append landed once and says so; a plain refusal stays one."""
    table = LanceTable.create(f"{storage.uri}/t", SCHEMA, storage_options=storage.storage_options)
    write = {"method": "PUT" if storage.uri.startswith("s3:") else "POST", "part": "_versions"}
    set_faults(storage, {"kind": "reset_after", **write}, {"kind": "403", **write, "times": 99})
    try:
        assert 2 == table.append(entries("a", 1)).number
        with pytest.raises(PermissionRefusedError):
            table.append(entries("b", 1))
    finally:
        set_faults(storage)
    assert [("a", 1)] == contents(table)


def test_a_signature_is_in_no_log(azure_endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    """Azure's signatures stand in the query of each request, and the library below logs requests at the level DEBUG."""
    options = {"account_name": providers.ACCOUNT, "azure_storage_endpoint": azure_endpoint, "allow_http": "true"}
    store = open_store("az://nowhere/t", options | {"sas_token": f"{providers.canary_sas()}"})
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as caught:
        store.get("a")
    assert "connectionpool" in caplog.text
    signature = providers.canary_sas().rpartition("sig=")[2].rstrip("=")
    assert signature not in caplog.text + str(caught.value) + repr(caught.value.__cause__)


def test_no_text_of_a_store_shows_a_secret(tmp_path: Path) -> None:
    """Neither a key nor a signature, in whichever way a log shows the object."""
    signed = {"account_name": "a", "sas_token": providers.canary_sas()}
    for uri, options in (("az://c/t", {"account_name": "a", "account_key": SECRET}), ("az://c/t", signed)):
        assert "canary" not in repr(open_store(uri, options)) + str(open_store(uri, options))
    (tmp_path / "key.json").write_text(f'{{"private_key": "{SECRET}"}}')
    twice = json.dumps(f'{{"private_key": "{SECRET}"}}')
    for given in ({"google_service_account": str(tmp_path / "key.json")}, {"service_account_key": twice}):
        store = open_store("gs://b/t", given)
        with pytest.raises(InvalidInputError, match="its key file holds a JSON object") as caught:
            store.get("a")
        assert SECRET not in str(caught.value) + repr(store)


KEY_TEXT = json.dumps({"type": "service_account", "private_key": SECRET})


@pytest.mark.filterwarnings("ignore:The load_credentials_from_file:DeprecationWarning")
@pytest.mark.parametrize("options", [{"application_credentials": KEY_TEXT}, {}], ids=["option", "environment"])
def test_a_key_that_is_given_as_a_path_is_not_shown(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's library quotes the path of a file that is missing, and somebody may give the content of the file."""
    if not options:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", KEY_TEXT)
    with pytest.raises(StoreError, match="content is given as service_account_key") as caught:
        open_store("gs://b/t", options).get("a")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
