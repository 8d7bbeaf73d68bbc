"""The strict S3 server of the tests: what it refuses, and the faults that it makes on request."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_dagster.errors import StoreError
from lance_dagster.store import S3Store
from tests.conftest import S3Storage, bucket_on, server
from tests.servers.objects import FAULTS, REQUESTS

ALLOWED = {
    "Effect": "Allow",
    "Action": "s3:*",
    "Resource": ["arn:aws:s3:::lake", "arn:aws:s3:::lake/*"],
}


def account(**differences: object) -> dict[str, object]:
    """An account with temporary credentials that may do everything in the bucket `lake`."""
    policy = {"Statement": [ALLOWED]}
    return {"name": "role", "secret_access_key": "s", "session_token": "t", "policy": policy} | differences


def options(endpoint: str, **differences: str) -> dict[str, str]:
    """Storage options of the account `AK`."""
    given = {"access_key_id": "AK", "secret_access_key": "s", "session_token": "t", "region": "eu-west-1"}
    return {"endpoint": endpoint, "allow_http": "true"} | given | differences


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with accounts, one of them expired."""
    folder = tmp_path_factory.mktemp("guarded")
    old = account(expires=time.time() - 1)
    (folder / "accounts.json").write_text(json.dumps({"AK": account(), "OLD": old}))
    arguments = ("--accounts", str(folder / "accounts.json"))
    with server(folder / "server.log", "tests.servers.s3_server", *arguments) as address:
        yield f"http://{address}"


def test_signed_requests_of_both_clients_are_let_in(guarded: str) -> None:
    """The server accepts signatures of botocore and of pylance for odd names, conditions, ranges and copies."""
    given = options(guarded)
    store = S3Store("s3://lake/a b+ü", given)
    store._call("create_bucket")  # noqa: SLF001 - no verb of a store makes a bucket
    assert store.put_if_absent("x%2F1=?.json", b"0123")
    assert b"12" == store.get_range("x%2F1=?.json", 1, 3)
    assert store.copy_from("s3://lake/a b+ü/x%2F1=?.json", "y&z")
    assert ["x%2F1=?.json", "y&z"] == store.list("")
    lance.write_dataset(pa.table({"a": [1]}), "s3://lake/t.lance", storage_options=given)
    assert 1 == lance.dataset("s3://lake/t.lance", storage_options=given).count_rows()


@pytest.mark.parametrize(
    "differences,said",
    [
        ({"access_key_id": "other"}, "access key id you provided does not exist"),
        ({"secret_access_key": "wrong"}, "signature does not match"),
        ({"session_token": "wrong"}, "token is malformed"),
        ({"access_key_id": "OLD"}, "token has expired"),
        ({"skip_signature": "true"}, "Anonymous access is forbidden"),
    ],
)
def test_credentials_that_are_wrong_are_refused(guarded: str, differences: dict[str, str], said: str) -> None:
    """The error has the text of Amazon's server, and no other credentials are tried."""
    with pytest.raises(StoreError, match=said):
        S3Store("s3://lake", options(guarded, **differences)).put("a", b"1")


def test_one_of_many_writers_at_once_wins(s3_storage: S3Storage) -> None:
    """In each of many rounds exactly one of eight threads creates the object."""
    store = S3Store(s3_storage.uri, s3_storage.storage_options)
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(15):
            won = list(pool.map(lambda writer, key=f"k{round_}": store.put_if_absent(key, b"%d" % writer), range(8)))
            assert 1 == sum(won)
            assert b"%d" % won.index(True) == store.get(f"k{round_}")


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[S3Storage, Callable[..., Any]]]:
    """A bucket on a separate server, and a function that makes its next requests fail."""
    with server(tmp_path / "server.log", "tests.servers.s3_server") as address:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ask(path: str, body: object = None) -> Any:  # noqa: ANN401 - an answer in JSON, or none
            data = None if body is None else json.dumps(body).encode()
            with opener.open(urllib.request.Request(f"http://{address}{path}", data)) as answer:
                text = answer.read()
                return json.loads(text) if text else None

        yield bucket_on(f"http://{address}"), ask


@pytest.mark.parametrize("kind", ["503", "500", "409", "reset_before", "reset_after"])
def test_a_put_survives_what_goes_wrong_once(failing: tuple[S3Storage, Callable[..., Any]], kind: str) -> None:
    """The object is written once. A failed condition does not prove another writer, since the answer may be lost."""
    storage, ask = failing
    store = S3Store(storage.uri, storage.storage_options)
    assert store.put_if_absent("first", b"1")
    ask(REQUESTS)
    ask(FAULTS, [{"kind": kind, "method": "PUT", "part": "/second"}])
    written = store.put_if_absent("second", b"2")
    assert b"2" == store.get("second")
    assert written == (kind != "reset_after")
    assert 2 == sum(line.startswith("PUT") for line in ask(REQUESTS))


def test_a_short_answer_is_no_object(failing: tuple[S3Storage, Callable[..., Any]]) -> None:
    """A body that ends too early is read again, and never returned as the object."""
    storage, ask = failing
    store = S3Store(storage.uri, storage.storage_options)
    store.put("a", b"0123456789")
    ask(FAULTS, [{"kind": "truncated", "method": "GET", "part": "/a"}])
    assert b"0123456789" == store.get("a")
