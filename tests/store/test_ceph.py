"""The stores' contract and races of writers on Ceph, a server of S3 that nobody wrote for tests: `make test-ceph`."""

from collections.abc import Iterator

import pytest

from lance_dagster import LanceTable
from lance_dagster.store import Store, open_store
from tests.conftest import S3Storage
from tests.process_race import race
from tests.servers.ceph import ceph, new_bucket
from tests.store.conformance import StoreConformance
from tests.store.whole_life import live_a_whole_life
from tests.table_factory import SCHEMA, entries

pytestmark = pytest.mark.ceph
WRITERS, ROUNDS = 4, 25


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway for all tests of this module."""
    with ceph(tmp_path_factory.mktemp("ceph")) as started:
        yield started


@pytest.fixture
def storage(endpoint: str) -> S3Storage:
    """A bucket of the test's own."""
    return new_bucket(endpoint)


class TestCeph(StoreConformance):
    """All verbs; a condition of a deletion is ignored by the releases of Debian 12 and 13."""

    deletes_conditionally = None

    @pytest.fixture
    def store(self, storage: S3Storage) -> Store:
        """A place where nothing is yet."""
        return open_store(f"{storage.uri}/deep/prefix", storage.storage_options)


def test_a_table_lives_a_whole_life(storage: S3Storage) -> None:
    """Every kind of operation, with pylance beside it."""
    live_a_whole_life(storage)


def _create(storage: S3Storage, writer: int) -> list[int]:
    store = open_store(storage.uri, storage.storage_options)
    return [number for number in range(ROUNDS) if store.put_if_absent(f"a/{number}", b"%d" % writer)]


def _count(storage: S3Storage) -> int:
    store, swapped = open_store(storage.uri, storage.storage_options), 0
    while swapped < ROUNDS:
        found = store.get_with_etag("counter")
        assert found is not None
        swapped += store.compare_and_swap("counter", b"%d" % (int(found[0]) + 1), found[1])
    return swapped


def _append(storage: S3Storage, writer: int) -> int:
    table = LanceTable.open(f"{storage.uri}/table", storage.storage_options)
    return len([table.append(entries("a", writer * ROUNDS + number)) for number in range(ROUNDS // 5)])


def test_one_of_many_processes_wins(storage: S3Storage) -> None:
    """Each name, each swap and each version is one process's, and what it was told is what is there."""
    created = race(_create, [(storage, writer) for writer in range(WRITERS)])
    assert list(range(ROUNDS)) == sorted(number for each in created for number in each)
    store = open_store(storage.uri, storage.storage_options)
    assert all(b"%d" % writer == store.get(f"a/{number}") for writer, own in enumerate(created) for number in own)
    store.put("counter", b"0")
    assert b"%d" % sum(race(_count, [(storage,)] * WRITERS)) == store.get("counter")
    table = LanceTable.create(f"{storage.uri}/table", SCHEMA, storage_options=storage.storage_options)
    appended = race(_append, [(storage, writer) for writer in range(WRITERS)])
    assert (sum(appended), sum(appended) + 1) == (table.count_rows(), table.head().number)
    assert table.maintenance.verify(deep=True).ok
