"""Every storage request of every operation with every fault, with any two of them, and with every rival.

`enumeration` says what must hold. `make test` runs some of the plans of each operation, chosen by its name; a soak runs
all of them.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

from lance_dagster import LanceRepository
from tests.faults.enumeration import Enumeration, Rivalry, Template
from tests.faults.operations import MOVED, OPERATIONS, Operation, prepare, prepare_moved
from tests.repository import repository_operations
from tests.repository.scripted_repository import FAST, new_repository, run
from tests.soak import FACTOR, thinned

pytestmark = pytest.mark.scaled

T = TypeVar("T")
Record = Callable[[str, object], None]
_FEW = 4
_MOST_PAIRS = 400
REPOSITORY: Mapping[str, Operation] = {
    name: repository_operations.in_a_folder(name) for name in repository_operations.OPERATIONS
}


def chosen(plans: Iterable[T], name: str, few: int = _FEW) -> list[T]:
    """All plans in a soak, else a few of them."""
    found = [*plans]
    return found if FACTOR or len(found) <= few else random.Random(name).sample(found, few)


@pytest.fixture(scope="module")
def enumerated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Enumeration]:
    """What an operation on tables does, on copies of one folder."""
    kinds = {name: (OPERATIONS, prepare) for name in OPERATIONS} | {name: (MOVED, prepare_moved) for name in MOVED}
    folders = cache(lambda made: Template.of(tmp_path_factory.mktemp("enumerated") / "lake", made))
    return cache(lambda name: Enumeration(folders(kinds[name][1]), name, kinds[name][0][name]))


def of_repository(folder: Path, name: str) -> Enumeration:
    """What an operation on a repository does."""

    def made(place: Path) -> None:
        repository_operations.OPERATIONS[name].prepare(new_repository(place, "a", "b", "c"))

    return Enumeration(Template.of(folder / "lake", made), name, REPOSITORY[name])


@pytest.mark.parametrize("name", [*OPERATIONS, *MOVED])
def test_every_request_with_every_fault(enumerated: Callable[[str], Enumeration], name: str, record_property: Record) -> None:
    """Whatever happens to one request: nothing acknowledged is lost, and nothing is done twice."""
    found = enumerated(name)
    before = found.runs
    for plan in chosen(found.plans(), name):
        found.suffer(plan)
    record_property("runs with one fault", found.runs - before)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*OPERATIONS, *MOVED])
def test_any_two_requests_with_faults(enumerated: Callable[[str], Enumeration], name: str, record_property: Record) -> None:
    """The second fault meets what the package does about the first one."""
    found, chance = enumerated(name), random.Random(name)
    before = found.runs
    pairs = [*found.pairs(chance)]
    for plan in pairs if len(pairs) <= _MOST_PAIRS else chance.sample(pairs, _MOST_PAIRS):
        found.suffer(plan)
    record_property("runs with two faults", found.runs - before)


@pytest.mark.parametrize(
    "name, rival", thinned(product(OPERATIONS, OPERATIONS), kept=lambda pair: sum(map(ord, "".join(pair))) % 17 == 0, label=" beside ".join)
)
def test_a_rival_at_every_request(
    enumerated: Callable[[str], Enumeration], name: str, rival: str, record_property: Record
) -> None:
    """Both happened, one after the other; or one failed and did nothing, and can be repeated."""
    if OPERATIONS[name].alone or OPERATIONS[rival].alone:
        return
    rivalry = Rivalry(enumerated(name), enumerated(rival))
    for number in chosen(range(len(rivalry.actor.verbs)), name + rival, few=1):
        rivalry.meet(number)
    record_property("runs with a rival", rivalry.runs)


@pytest.mark.parametrize("name", REPOSITORY)
def test_every_request_of_a_repository_with_every_fault(tmp_path: Path, name: str, record_property: Record) -> None:
    """Readers of main and of the channel see a whole commit, before and after the operation is repeated."""
    found = of_repository(tmp_path, name)
    for plan in chosen(found.plans(), name):
        found.suffer(plan)
    record_property("runs with one fault", found.runs)


@pytest.mark.soak
@pytest.mark.parametrize("name", REPOSITORY)
def test_any_two_requests_of_a_repository_with_faults(tmp_path: Path, name: str, record_property: Record) -> None:
    """Also the same put twice: it is made again, and its answer is lost again."""
    found, chance = of_repository(tmp_path, name), random.Random(name)
    pairs = [*found.pairs(chance)]
    for plan in chance.sample(pairs, min(len(pairs), _MOST_PAIRS)):
        found.suffer(plan)
    record_property("runs with two faults", found.runs)


def _prepare_rivals(place: Path) -> None:
    repository = new_repository(place, "a", "b")
    repository.publish(run(repository, 1, "a", "b"), channel="production")
    repository.publish(run(repository, 2, "a", "b"), channel="production")
    repository.publish(run(repository, 3, "b"))
    run(repository, 4, "a", "b")
    run(repository, 5, "b")


RIVALS: Mapping[str, Callable[[LanceRepository], object]] = {
    "publish": lambda repository: repository.publish("run/4", channel="production"),
    "publish another": lambda repository: repository.publish("run/5"),
    "promote": lambda repository: repository.channels.promote("production", reason="good"),
    "roll back": lambda repository: repository.channels.rollback("production", reason="doubled"),
    "tag": lambda repository: repository.tags.create("v1", "production"),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Enumeration]:
    """What an operation does to one repository."""
    template = Template.of(tmp_path_factory.mktemp("rivals") / "lake", _prepare_rivals)

    def operation(name: str) -> Operation:
        act = RIVALS[name]
        return Operation(act=lambda folder: act(LanceRepository.open(folder, FAST)), atomic=False, tables=("a.lance", "b.lance"))

    return cache(lambda name: Enumeration(template, name, operation(name)))


@pytest.mark.parametrize(
    "name, rival", thinned(product(RIVALS, RIVALS), kept=lambda pair: pair[0] == "publish", label=" beside ".join)
)
def test_a_rival_at_every_request_of_a_repository(
    published: Callable[[str], Enumeration], name: str, rival: str, record_property: Record
) -> None:
    """Two publications, promotions and releases happen one after the other."""
    rivalry = Rivalry(published(name), published(rival))
    for number in chosen(range(len(rivalry.actor.verbs)), name + rival, few=1):
        rivalry.meet(number)
    record_property("runs with a rival", rivalry.runs)
