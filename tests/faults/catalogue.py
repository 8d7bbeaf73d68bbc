"""The operations whose faults are enumerated, and the folders that they start from."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from lance_dagster import LanceRepository
from tests.faults.enumeration import Enumeration, Template
from tests.faults.operations import MOVED, OPERATIONS, Operation, prepare, prepare_moved
from tests.repository import repository_operations
from tests.repository.scripted_repository import FAST, new_repository, run

Prepare = Callable[[Path], object]
PREFIX = "repository: "


def _prepare_rivals(folder: Path) -> None:
    repository = new_repository(folder, "a", "b")
    for number in (1, 2):
        repository.publish(run(repository, number, "a", "b"), channel="production")
    repository.publish(run(repository, 3, "b"))
    run(repository, 4, "a", "b")
    run(repository, 5, "b")


def _of(act: Callable[[LanceRepository], object]) -> Operation:
    return Operation(
        act=lambda folder: repository_operations.complete(LanceRepository.open(folder, FAST), act),
        atomic=False,
        reads=True,
        tables=("a.lance", "b.lance"),
    )


PUBLISHERS: Mapping[str, Operation] = {
    "publish 4": _of(lambda repository: repository.publish("run/4", channel="production")),
    "publish 5": _of(lambda repository: repository.publish("run/5")),
    "promote": _of(lambda repository: repository.channels.promote("production", reason="good")),
    "roll back": _of(lambda repository: repository.channels.rollback("production", reason="doubled")),
    "release": _of(lambda repository: repository.tags.create("v1", "production")),
}
"""Operations on one repository, each of which can be the rival of each other one."""


def _with_tables(name: str) -> Prepare:
    prepared = repository_operations.OPERATIONS[name].prepare
    return lambda folder: prepared(new_repository(folder, "a", "b", "c"))


REPOSITORY: Mapping[str, Operation] = {
    f"{PREFIX}{name}": repository_operations.in_a_folder(name) for name in repository_operations.OPERATIONS
}
"""Operations on a repository, each with a folder of its own."""
_KNOWN: Mapping[str, tuple[Prepare, Operation]] = {
    **{name: (prepare, operation) for name, operation in OPERATIONS.items()},
    **{name: (prepare_moved, operation) for name, operation in MOVED.items()},
    **{name: (_prepare_rivals, operation) for name, operation in PUBLISHERS.items()},
    **{name: (_with_tables(name.removeprefix(PREFIX)), operation) for name, operation in REPOSITORY.items()},
}


class Catalogue:
    """Enumerations by the names of their operations; a folder that several of them start from is made once."""

    def __init__(self, folder: Path) -> None:
        """Take the parent folder of all these folders."""
        self._folder = folder
        self.of = cache(self._of)
        self._template = cache(self._made)

    def _of(self, name: str) -> Enumeration:
        made, operation = _KNOWN[name]
        return Enumeration(self._template(made), name, operation)

    def _made(self, made: Prepare) -> Template:
        place = self._folder / f"{len(list(self._folder.iterdir()))}"
        place.mkdir()
        return Template.of(place / "lake", made)
