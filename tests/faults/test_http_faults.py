"""Every HTTP request of operations on S3 with every fault of a server; `http_faults` says what must hold."""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.faults.http_faults import OPERATIONS, HttpEnumeration, Wire, faults_of, wire
from tests.soak import FACTOR

pytestmark = pytest.mark.scaled
_FEW = 2


@pytest.fixture(scope="module")
def prepared() -> Iterator[Wire]:
    """A table on a server of this process."""
    with wire() as made:
        yield made


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_http_request_with_every_fault(
    prepared: Wire, name: str, record_property: Callable[[str, object], None]
) -> None:
    """After any fault of one request, of this package or of pylance, nothing is lost or done twice."""
    found = HttpEnumeration(prepared, name)
    faults = [*faults_of(found.requests)]
    # At least one of the faults is that of a write.
    writes = [fault for fault in faults if fault.method != "GET"]
    chance = random.Random(name)
    chosen = faults if FACTOR else [chance.choice(writes), *chance.sample(faults, _FEW - 1)]
    for fault in chosen:
        found.suffer(fault)
    record_property("runs with one HTTP fault", len(chosen))
