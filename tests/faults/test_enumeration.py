"""Every storage request of every operation with every fault, with any two faults, and with every rival.

`enumeration` says what must hold. `make test` runs some of the plans of each operation, chosen by its name; a soak runs
all of them, and checks that bugs which are put into the package are found.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

import lance_dagster
from tests.faults.catalogue import PUBLISHERS, REPOSITORY, Catalogue
from tests.faults.enumeration import Rivalry
from tests.faults.on_s3 import ON_S3, BucketCatalogue, kills_and_lost_answers, server_in_thread
from tests.faults.operations import MOVED, OPERATIONS
from tests.faults.seeded_bugs import BUGS, FOUND, Bug, hunt
from tests.soak import FACTOR, every, thinned

pytestmark = pytest.mark.scaled

T = TypeVar("T")
Record = Callable[[str, object], None]
_FEW = 4
_MOST_PAIRS = 100
TOGETHER = [name for name, operation in OPERATIONS.items() if not operation.alone]
"""Operations during which others may write."""


def chosen(plans: Iterable[T], name: str, few: int) -> list[T]:
    """All plans in a soak, otherwise a few of them."""
    found = [*plans]
    return found if FACTOR or len(found) <= few else random.Random(name).sample(found, few)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """The enumerations of the operations, on copies of the same folders."""
    return Catalogue(tmp_path_factory.mktemp("enumerated"))


@pytest.mark.parametrize("name", [*OPERATIONS, *MOVED, *PUBLISHERS, *REPOSITORY])
def test_every_request_with_every_fault(catalogue: Catalogue, name: str, record_property: Record) -> None:
    """After any fault of one request, nothing acknowledged is lost, and nothing is done twice."""
    found = catalogue.of(name)
    plans = chosen(found.plans(), name, _FEW)
    for plan in plans:
        found.suffer(plan)
    record_property("runs with one fault", len(plans))


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketCatalogue]:
    """The enumerations of the operations on a repository in a bucket."""
    with server_in_thread() as (server, endpoint):
        yield BucketCatalogue(tmp_path_factory.mktemp("buckets"), server, endpoint)


@pytest.mark.parametrize("name", thinned(ON_S3, kept=lambda name: name == "publish"))
def test_kills_and_lost_answers_on_s3(buckets: BucketCatalogue, name: str, record_property: Record) -> None:
    """On an object store, a process that dies anywhere or loses the answer to a write loses and repeats nothing."""
    found = buckets.of(name)
    plans = chosen(kills_and_lost_answers(found), name, _FEW // 2)
    for plan in plans:
        found.suffer(plan)
    record_property("kills and lost answers on S3", len(plans))


@pytest.mark.soak
@pytest.mark.parametrize("name", [*OPERATIONS, *MOVED, *PUBLISHERS, *REPOSITORY])
def test_any_two_requests_with_faults(catalogue: Catalogue, name: str, record_property: Record) -> None:
    """The package also survives a second fault, which may hit its reaction to the first one."""
    found, chance = catalogue.of(name), random.Random(name)
    pairs = [*found.pairs(chance)]
    plans = chance.sample(pairs, min(len(pairs), _MOST_PAIRS))
    for plan in plans:
        found.suffer(plan)
    record_property("runs with two faults", len(plans))


@pytest.mark.parametrize(
    "name, rival",
    [
        # Each operation is the actor and the rival at least once, and in none of these pairs one waits for the other.
        *thinned(product(TOGETHER, TOGETHER), kept=every(23), label=" beside ".join),
        *thinned(product(PUBLISHERS, PUBLISHERS), kept=every(6), label=" beside ".join),
    ],
)
def test_a_rival_at_every_request(catalogue: Catalogue, name: str, rival: str, record_property: Record) -> None:
    """An operation and its rival happen one after the other, or one fails without effect and can be repeated."""
    rivalry = Rivalry(catalogue.of(name), catalogue.of(rival))
    places = chosen(rivalry.places(), name + rival, 1)
    for place in places:
        rivalry.meet(place)
    record_property("runs with a rival", len(places))


def test_every_bug_fits_the_package() -> None:
    """The package has the code that each seeded bug replaces; otherwise only a soak would detect this."""
    package = Path(lance_dagster.__file__).parent
    assert {bug.name: bug.times for bug in BUGS} == {
        bug.name: (package / bug.module).read_text().count(bug.right) for bug in BUGS
    }


@pytest.mark.slow
@pytest.mark.parametrize("bug", thinned(BUGS, kept=every(13), label=lambda bug: bug.name))
def test_a_bug_in_the_package_is_found(bug: Bug) -> None:
    """The enumeration finds each of the seeded bugs, because it breaks one of the guarantees."""
    ended = hunt(bug)
    assert FOUND == ended.returncode, f"nothing was found: {ended.stdout}{ended.stderr}"
