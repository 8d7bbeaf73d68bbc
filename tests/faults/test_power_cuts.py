"""Power cuts at every sync of every operation: what was acknowledged is there, and what was not is whole or absent."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.faults import operations
from tests.faults.catalogue import PUBLISHERS, REPOSITORY, Catalogue
from tests.faults.enumeration import Enumeration, do
from tests.faults.operations import MOVED, OPERATIONS
from tests.faults.power_cuts import Recorder, put_back
from tests.repository import scripted_repository
from tests.soak import FACTOR
from tests.table_factory import SCHEMA, contents, entries

pytestmark = [pytest.mark.slow, pytest.mark.scaled]

_FEW, _MANY = 6, 20
"""The number of power cuts of each operation in `make test-slow`, and in a soak for each unit of its factor."""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """The enumerations of the operations, on copies of the same folders."""
    return Catalogue(tmp_path_factory.mktemp("cut"))


def recorded(found: Enumeration) -> Recorder:
    """Do an operation durably, and note its syncs."""
    recorder = Recorder(found.template.fresh())
    with pytest.MonkeyPatch.context() as patch:
        for options in (operations._UNSYNCED, scripted_repository.FAST):  # noqa: SLF001 - tests are durable nowhere else
            patch.delitem(options, "durability")
        with recorder.watching():
            ended = do(found.operation, found.template.place, {})
    if ended.error is not None:
        raise ended.error
    return recorder


def test_a_table_several_new_folders_deep_survives_a_power_cut(tmp_path: Path) -> None:
    """The folders that lead to it are new, too: once it was made, it is there with its rows."""
    place = tmp_path / "place"
    place.mkdir()
    uri, recorder, made = place / "lake" / "team" / "project" / "t", Recorder(place), False
    with recorder.watching():
        LanceTable.create(uri, SCHEMA)
        recorder.note(done=True)
        LanceTable.open(uri).append(entries("a", 1))
    for number, moment in enumerate(recorder.moments):
        made = made or moment.done
        for state in moment.states(random.Random(number)) if made else ():
            shutil.rmtree(place)
            place.mkdir()
            put_back(place, state)
            rows = contents(LanceTable.open(uri))
            assert rows == [("a", 1)] or (moment is not recorder.moments[-1] and not rows)
    assert made


@pytest.mark.parametrize("name", [*OPERATIONS, *MOVED, *PUBLISHERS, *REPOSITORY])
def test_a_power_cut_at_every_sync(
    catalogue: Catalogue, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Nothing acknowledged is lost, nothing is there by half, and the operation can be repeated."""
    found, chance = catalogue.of(name), random.Random(name)
    moments = recorded(found).moments
    states = [(number, state, moment.done) for number, moment in enumerate(moments) for state in moment.states(chance)]
    chosen = chance.sample(states, min(FACTOR * _MANY or _FEW, len(states)))
    for number, state, done in chosen:
        shutil.rmtree(found.template.place)
        found.template.place.mkdir()
        put_back(found.template.place, state)
        found.survive(f"a power cut at sync {number} of {len(moments)}", done=done)
    record_property("power cuts", len(chosen))
