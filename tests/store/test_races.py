"""Processes that write the same names at the same moment: each name has one winner, and no swap is lost.

`make test-slow` races a few processes on local disk. A soak races twelve, on the S3 server of the tests too.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster.store import open_store
from tests import soak
from tests.conftest import S3Storage
from tests.process_race import race

CREATORS, NAMES = (12, 2500) if soak.DEEP else (4, 20)
SWAPPERS, SWAPS = (12, 20 * soak.FACTOR) if soak.DEEP else (3, 50)
pytestmark = [pytest.mark.slow, pytest.mark.scaled]


def create(storage: S3Storage, writer: int, names: int) -> list[int]:
    """Try to be the first to write each of the names; return those that were won."""
    store = open_store(storage.uri, storage.storage_options)
    return [number for number in range(names) if store.put_if_absent(f"v/{number}", b"%d" % writer)]


def swap(storage: S3Storage, times: int) -> int:
    """Add one to a shared number by compare-and-swap, until it succeeded so often; return how often it did not."""
    store, refused = open_store(storage.uri, storage.storage_options), 0
    while times:
        data, tag = store.get_with_etag("refs/tags/n") or (b"", "")
        swapped = store.compare_and_swap("refs/tags/n", b"%d" % (int(data) + 1), tag)
        times, refused = times - swapped, refused + (not swapped)
    return refused


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.soak)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> S3Storage:
    """A place that only this test uses."""
    if request.param == "disk":
        return S3Storage(uri=str(tmp_path), storage_options={})
    found: S3Storage = request.getfixturevalue("s3_storage")
    return found


def test_one_of_many_processes_gets_a_name(storage: S3Storage, record_property: Callable[[str, object], None]) -> None:
    """Each name is won by one process, whose bytes are what is read; every process wins or loses all of them."""
    won = race(create, [(storage, writer, NAMES) for writer in range(CREATORS)])
    assert dict.fromkeys(range(NAMES), 1) == Counter(number for names in won for number in names)
    store = open_store(storage.uri, storage.storage_options)
    for writer, names in enumerate(won):
        assert [b"%d" % writer] * len(names) == [store.get(f"v/{number}") for number in names]
    record_property("attempts", CREATORS * NAMES)


def test_no_swap_is_lost_between_processes(storage: S3Storage, record_property: Callable[[str, object], None]) -> None:
    """The shared number is the number of swaps that succeeded."""
    store = open_store(storage.uri, storage.storage_options)
    store.put("refs/tags/n", b"0")
    refused = race(swap, [(storage, SWAPS)] * SWAPPERS)
    assert b"%d" % (SWAPPERS * SWAPS) == store.get("refs/tags/n")
    record_property("swaps", SWAPPERS * SWAPS)
    record_property("refused swaps", sum(refused))
