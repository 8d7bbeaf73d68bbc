"""Tables on a server that speaks S3."""

import json
import os
import pickle
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lance_dagster import LanceTable
from lance_dagster.edit.creation import create
from lance_dagster.errors import ConditionalPutUnsupportedError, InvalidInputError, StoreError, TableNotFoundError
from lance_dagster.history.inventory import Kind, classify_key
from lance_dagster.store import PROBE_OBJECT, S3Store, open_store
from tests.conftest import S3Storage, free_port
from tests.servers.objects import FAULTS
from tests.store.conformance import StoreConformance
from tests.table_factory import SCHEMA, contents, context_on, entries

SECRET = "wJalrXUtnFEMI-secret"
KEY = "AKIA-key"

Through = Callable[[str, dict[str, Any], Callable[..., Any]], Any]


class TestS3Store(StoreConformance):
    """A bucket as a whole does what a store has to do; test_providers.py has a prefix of one."""

    @pytest.fixture
    def store(self, s3_storage: S3Storage) -> S3Store:
        """A place where nothing is yet."""
        return S3Store(s3_storage.uri, s3_storage.storage_options)


def test_a_long_listing_is_read_to_its_end(s3_storage: S3Storage) -> None:
    """A listing that the server sends in pages is one listing."""
    store = S3Store(s3_storage.uri, s3_storage.storage_options)
    for number in range(25):
        store.put(f"x/{number:03}", b"1")
        store.put(f"x/{number:03}/below", b"1")
    assert [f"{number:03}" for number in range(25)] == store.list("x")
    assert [f"{number:03}" for number in range(7)] == store.list("x", limit=7)


def test_a_bucket_that_does_not_exist_is_a_clear_error(s3_storage: S3Storage) -> None:
    """Every write and listing names what it could not do; nothing of the client's own errors comes out."""
    store = S3Store(f"{s3_storage.uri}-missing", s3_storage.storage_options)
    for verb in (
        lambda: store.put("a", b"1"),
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.compare_and_swap("a", b"1", "tag"),
        lambda: store.list("a"),
    ):
        with pytest.raises(StoreError, match="create the bucket"):
            verb()


def test_missing_credentials_are_an_error_that_says_where_they_come_from(tmp_path: Path) -> None:
    """Without credentials anywhere, the error names the variables and options that give them."""
    code = f"""
from lance_dagster import LanceTable, StoreError
try:
    LanceTable.open("s3://bucket/orders", {{"endpoint": "http://127.0.0.1:{free_port()}", "allow_http": "true"}})
except StoreError as error:
    print(error)
"""
    # Neither variables, nor files in the home folder, nor the service that gives machines of AWS their roles.
    found = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {**found, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert "Unable to locate credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in done.stdout


def test_a_server_that_does_not_answer_is_a_store_error() -> None:
    """A wrong endpoint is reported by every verb as a failure of the storage."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "endpoint": endpoint, "allow_http": "true"}
    with pytest.raises(StoreError, match="check the endpoint") as caught:
        S3Store("s3://bucket/table", options | {"client_retry_timeout": "1"}).list("a")
    assert SECRET not in str(caught.value)


def set_faults(storage: S3Storage, *faults: dict[str, object]) -> None:
    """Tell the server which of its next requests fail."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = storage.storage_options["aws_endpoint"] + FAULTS
    opener.open(urllib.request.Request(url, json.dumps(faults).encode())).close()  # noqa: S310 - of this machine


@pytest.mark.slow
def test_requests_are_repeated_by_time_and_not_by_number(s3_storage: S3Storage) -> None:
    """A server that is busy or closes the connection seven times is asked again; in the end the error has a hint."""
    store = S3Store(s3_storage.uri, s3_storage.storage_options)
    assert store.put_if_absent("first", b"1")
    for kind in ("503", "500", "reset_before"):
        set_faults(s3_storage, {"kind": kind, "part": "first", "times": 7})
        assert b"1" == store.get("first")
        set_faults(s3_storage, {"kind": kind, "method": "PUT", "part": kind, "times": 7})
        assert store.put_if_absent(kind, b"2")
    quick = S3Store(s3_storage.uri, {**s3_storage.storage_options, "client_retry_timeout": "1"})
    set_faults(s3_storage, {"kind": "503", "method": "GET", "part": "first", "times": 10**6})
    try:
        with pytest.raises(StoreError, match="fewer writers at once"):
            quick.get("first")
    finally:
        set_faults(s3_storage)
    with pytest.raises(InvalidInputError):
        S3Store(s3_storage.uri, {**s3_storage.storage_options, "client_retry_timeout": "soon"})


def test_a_wrong_key_is_a_store_error(s3_storage: S3Storage) -> None:
    """Missing credentials are found out by the client and reported as a failure of the storage."""
    options = {key: value for key, value in s3_storage.storage_options.items() if "key" not in key}
    with pytest.raises(StoreError):
        S3Store(s3_storage.uri, options | {"aws_access_key_id": KEY}).put("a", b"1")


def test_options_are_checked_before_anything_is_sent() -> None:
    """Options are checked before a request is sent, since pylance would ignore an unknown one."""
    with pytest.raises(InvalidInputError):
        open_store("s3://bucket/table", {"aws_secret_acces_key": SECRET})


def test_secrets_are_in_no_text(s3_storage: S3Storage) -> None:
    """What a log could show of a store, a table or a write target holds no credentials."""
    options = {**s3_storage.storage_options, "aws_secret_access_key": SECRET, "aws_access_key_id": KEY}
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=options)
    target = table.write_target()
    for shown in (table, target, S3Store(s3_storage.uri, options), table._context):  # noqa: SLF001 - its repr is the point
        assert SECRET not in repr(shown) + str(shown)
        assert KEY not in repr(shown) + str(shown)
    for broken in ({"aws_secret_access_key": SECRET, "typo": SECRET}, {"allow_http": "no", "endpoint": "http://x"}):
        with pytest.raises(InvalidInputError) as caught:
            open_store("s3://bucket/t", {**options, **broken})
        assert SECRET not in str(caught.value)


def test_a_table_on_s3_lives_a_whole_life(s3_storage: S3Storage) -> None:
    """Create, append, branch, replace, merge, tag, move, read: the same as on a disk."""
    uri, options = f"{s3_storage.uri}/lake/table", s3_storage.storage_options
    with pytest.raises(TableNotFoundError):
        LanceTable.open(uri, options)
    table = LanceTable.create(f"{uri}/", SCHEMA, storage_options=options)
    table.append(entries("a", 1, 2, 3))
    table.branches.create("run")
    table.replace_where("value IN (2, 9)", entries("b", 9), branch="run")
    table.append(entries("c", 1))
    table.merge("run")
    assert [("a", 1), ("a", 3), ("b", 9), ("c", 1)] == contents(table)
    table.tags.move("production", "main")
    table.tags.move("production", "main@1", expected=table.head())
    table.branches.delete("run")
    again = pickle.loads(pickle.dumps(table))  # noqa: S301 - bytes of this test
    assert [] == contents(again, "production")
    assert {} == again.branches.list()
    dataset = again.to_lance()
    dataset.insert(entries("d", 1))
    assert 5 == LanceTable.open(uri, options).count_rows()


def test_rows_of_pylance_are_merged_on_s3(s3_storage: S3Storage) -> None:
    """Files that it put into the branch's folder are copied by the server, and survive the branch."""
    table = LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    table.append(entries("a", 1, 2))
    table.branches.create("run")
    dataset = table.to_lance("run")
    dataset.insert(entries("p", 1))
    dataset.delete("value = 2")
    table.append(entries("b", 1))
    table.merge("run")
    table.branches.delete("run")
    assert [("a", 1), ("b", 1), ("p", 1)] == contents(table)
    assert [] == S3Store(table.uri, table.storage_options).list("tree/run/_versions")


def test_no_version_hint_is_written_on_s3(s3_storage: S3Storage) -> None:
    """Hints are for stores with unordered listings; one that nobody updates would mislead."""
    LanceTable.create(f"{s3_storage.uri}/t", SCHEMA, storage_options=s3_storage.storage_options)
    names = S3Store(f"{s3_storage.uri}/t", s3_storage.storage_options).list("_versions")
    assert ["18446744073709551614.manifest"] == names


class UnreliableStore(S3Store):
    """A store whose requests go through a function first: how a network loses answers and a server differs."""

    def __init__(self, storage: S3Storage, through: Through) -> None:
        """Take the bucket, and the function; it gets the method, the arguments and how to send them."""
        super().__init__(storage.uri, storage.storage_options)
        self.through = through
        self.process = uuid.uuid4().hex

    @property
    def _server(self) -> str:
        """The server by a name of its own: nothing is known about it, as in a process that has just started."""
        return f"{super()._server} {self.process}"

    def _call(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401 - what the server answers
        return self.through(method, arguments, lambda **given: super(UnreliableStore, self)._call(method, **given))


@pytest.mark.parametrize("begun", [False, True], ids=["no probe object", "a probe object"])
def test_a_lost_answer_is_no_server_that_ignores_conditions(s3_storage: S3Storage, *, begun: bool) -> None:
    """Whichever answer of the first requests is lost, or repeated by the client: the write succeeds once."""
    plain = S3Store(s3_storage.uri, s3_storage.storage_options)
    for lost in range(9):
        for repeated in (False, True):
            asked: list[str] = []

            def through(
                method: str,
                arguments: dict[str, Any],
                send: Callable[..., Any],
                *,
                lost: int = lost,
                repeated: bool = repeated,
                asked: list[str] = asked,
            ) -> object:
                asked.append(method)
                answer = send(**arguments)
                if len(asked) - 1 == lost and arguments["Key"] != f"key-{lost}-{repeated}":
                    if repeated and method == "put_object":
                        return send(**arguments)
                    if not repeated:
                        raise OSError("the answer is lost")
                return answer

            if not begun:
                plain.delete(PROBE_OBJECT)
            store = UnreliableStore(s3_storage, through)
            assert store.put_if_absent(f"key-{lost}-{repeated}", b"1")
            assert store.deletes_conditionally()
    assert [PROBE_OBJECT] == [f"_refs/{name}" for name in plain.list("_refs")]


def test_a_server_that_never_answers_is_not_called_one_that_ignores_conditions(s3_storage: S3Storage) -> None:
    """A server without answers is not said to ignore conditions, and nothing is written."""

    def through(method: str, arguments: dict[str, Any], send: Callable[..., Any]) -> object:  # noqa: ARG001 - all alike
        raise OSError("no route to the server")

    with pytest.raises(StoreError, match="cannot tell whether") as raised:
        UnreliableStore(s3_storage, through).put_if_absent("key", b"1")
    assert not isinstance(raised.value, ConditionalPutUnsupportedError)


def test_servers_that_ignore_conditions_are_told_apart(s3_storage: S3Storage) -> None:
    """Without conditional puts there is no commit; without conditional deletions one process at a time deletes."""

    def puts(_: str, arguments: dict[str, Any], send: Callable[..., Any]) -> object:
        return send(**{key: value for key, value in arguments.items() if key != "IfNoneMatch"})

    def deletions(method: str, arguments: dict[str, Any], send: Callable[..., Any]) -> object:
        return send(**{key: value for key, value in arguments.items() if method != "delete_object" or key != "IfMatch"})

    def swaps(method: str, arguments: dict[str, Any], send: Callable[..., Any]) -> object:
        return send(**{key: value for key, value in arguments.items() if method != "put_object" or key != "IfMatch"})

    plain = S3Store(s3_storage.uri, s3_storage.storage_options)
    for begun in (False, True):
        # The table may have been copied from a server that obeys conditions.
        if begun:
            plain.put(PROBE_OBJECT, b"1")
        with pytest.raises(ConditionalPutUnsupportedError):
            UnreliableStore(s3_storage, puts).put_if_absent("key", b"1")
        context = context_on(UnreliableStore(s3_storage, puts))
        with pytest.raises(ConditionalPutUnsupportedError):
            create(context, SCHEMA, {})
        plain.put("ref", b"1")
        _, tag = plain.get_with_etag("ref") or (b"", "")
        with pytest.raises(ConditionalPutUnsupportedError):
            UnreliableStore(s3_storage, swaps).compare_and_swap("ref", b"2", tag)
        assert b"1" == plain.get("ref")
        store = UnreliableStore(s3_storage, deletions)
        assert store.put_if_absent("key", b"1")
        assert not store.deletes_conditionally()
        assert store.compare_and_delete("key", "any")
        assert store.get("key") is None
    assert b"1" == plain.get(PROBE_OBJECT)


def test_the_first_conditional_write_asks_what_is_counted_here(s3_storage: S3Storage) -> None:
    """Seven requests probe a table, one of them a read; later processes send one for each kind of condition."""
    asked: list[str] = []

    def through(method: str, arguments: dict[str, Any], send: Callable[..., Any]) -> object:
        asked.append(method.removesuffix("_object"))
        return send(**arguments)

    def sent() -> list[str]:
        found = list(asked)
        asked.clear()
        return found

    store = UnreliableStore(s3_storage, through)
    store.put_if_absent("key", b"1")
    assert ["put", "put", "put", "put", "delete", "delete", "put"] == sent()
    store.compare_and_swap("key", b"2", "tag")
    store.deletes_conditionally()
    assert ["put"] == sent()
    again = UnreliableStore(s3_storage, through)
    again.put_if_absent("key", b"2")
    assert ["put", "put"] == sent()
    again.compare_and_swap("key", b"2", "tag")
    assert ["put", "put"] == sent()
    again.deletes_conditionally()
    assert ["delete"] == sent()
    again.put_if_absent("key", b"2")
    again.compare_and_swap("key", b"2", "tag")
    again.deletes_conditionally()
    assert ["put", "put"] == sent()


def test_a_process_probes_a_bucket_once(s3_storage: S3Storage) -> None:
    """What one table shows of a server holds for the other tables of the bucket, in this process."""
    for number in range(2):
        LanceTable.create(f"{s3_storage.uri}/t{number}", SCHEMA, storage_options=s3_storage.storage_options)
    plain = S3Store(s3_storage.uri, s3_storage.storage_options)
    assert [True, False] == [plain.get(f"t{number}/{PROBE_OBJECT}") is not None for number in range(2)]


def test_a_collection_keeps_the_probe_object() -> None:
    """The next process needs it, and it is no leftover however old it is."""
    assert Kind.NAME == classify_key(PROBE_OBJECT, ()).kind
    assert Kind.TEMPORARY == classify_key("_refs/.probe-4f2a", ()).kind
