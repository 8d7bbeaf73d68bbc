"""All schedules of two actors on one branch name: at each storage request of one, the other makes all its calls.

The rival's calls succeeded, so their results must hold afterwards: a branch that the rival made exists with its
commits, unless the rival deleted it, and no name stays blocked. The interrupted actor may fail with an error of this
package.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import ConflictError, LanceDagsterError, RefNotFoundError
from lance_dagster.history.refs.ref_files import READY, REMOVER
from lance_dagster.store import LocalStore
from tests import soak
from tests.history.refs.schedule_tables import ForgetfulStore, assert_free, copied, let_time_pass, made_template
from tests.store.scripted import PlugPulledError, Request, ScriptedStore
from tests.table_factory import context_of, context_on, entries, sorted_rows

pytestmark = pytest.mark.slow

Act = Callable[[LanceTable], object]
OWN_FILE = "_refs/branches/run.json"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Two versions of main, and a branch `run` with two commits of its own."""
    return made_template(tmp_path_factory.mktemp("schedules"))


@dataclass
class Scenario:
    """A copy of the template, and the acknowledged rows of the rival's branches, by name and id."""

    table: LanceTable
    told: dict[tuple[str, str], list[tuple[str, int]]] = field(default_factory=dict)
    row: int = 100

    def committed(self, name: str) -> None:
        """Append a row to a branch, and record its rows."""
        self.row += 1
        made = self.table.append(entries("rival", self.row), branch=name)
        branch = self.table.branches.get(name)
        self.told[name, branch.id] = sorted_rows(self.table.read(str(made)))

    def gone(self, name: str) -> None:
        """Record that the rival removed a branch."""
        self.told = {key: rows for key, rows in self.told.items() if key[0] != name}

    def delete(self, name: str = "run") -> None:
        """Delete a branch."""
        self.table.branches.delete(name)
        self.gone(name)

    def create(self, name: str = "run") -> None:
        """Create a branch, and commit to it."""
        self.table.branches.create(name, "main@2")
        self.committed(name)

    def take(self, name: str = "run") -> None:
        """Get or create a branch of the name, and commit to it."""
        self.table.branches.create(name, "main@2", exist_ok=True)
        self.committed(name)

    def reset(self, name: str = "run") -> None:
        """Reset a branch to a version of main, and commit to it."""
        self.table.branches.reset(name, "main@2")
        self.gone(name)
        self.committed(name)

    def reset_own(self, name: str = "run") -> None:
        """Reset a branch to its oldest version, and commit to it."""
        first = self.table.branches.get(name).first
        self.table.branches.reset(name, f"{name}@{first}")
        self.gone(name)
        self.committed(name)

    def rename(self, old: str = "run", new: str = "new") -> None:
        """Rename a branch, and commit to it under its new name."""
        made = self.table.branches.rename(old, new)
        self.gone(old)
        self.told[new, made.id] = sorted_rows(self.table.read(new))
        self.committed(new)

    def back(self) -> None:
        """Rename a branch back."""
        self.rename("new", "run")


Rival = Callable[[Scenario], None]

ACTORS: dict[str, Act] = {
    "delete": lambda table: table.branches.delete("run"),
    "reset": lambda table: table.branches.reset("run", "main@1"),
    "reset own": lambda table: table.branches.reset("run", "run@3"),
    "rename": lambda table: table.branches.rename("run", "new"),
    "create": lambda table: table.branches.create("run", "main@1"),
    "create or get": lambda table: table.branches.create("run", "main@1", exist_ok=True),
    "create new": lambda table: table.branches.create("new", "main@1"),
}
RIVALS: dict[str, tuple[Rival, ...]] = {
    "delete": (Scenario.delete,),
    "delete, create": (Scenario.delete, Scenario.create),
    "take": (Scenario.take,),
    "reset": (Scenario.reset,),
    "reset own": (Scenario.reset_own,),
    "rename": (Scenario.rename,),
    "rename, back": (Scenario.rename, Scenario.back),
    "rename, create": (Scenario.rename, Scenario.create),
    "delete, create, delete, create": (Scenario.delete, Scenario.create, Scenario.delete, Scenario.create),
}
_PAIRS = 6


@dataclass
class Actor:
    """An actor whose requests are counted, and which calls the rival before some of them."""

    scenario: Scenario
    parts: Mapping[int, Rival]
    asked: list[str] = field(default_factory=list)
    looked: dict[str, str] = field(default_factory=dict)
    late: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, request: Request) -> object:
        """Call the rival, and then send the request."""
        act = self.parts.get(len(self.asked))
        self.asked.append(f"{request.verb} {request.key}")
        if act is not None:
            with suppress(LanceDagsterError):
                act(self.scenario)
        if request.key.startswith("_refs/branches/") and request.verb.startswith("get"):
            name = Path(request.key).stem
            if name not in self.looked:
                found = context_of(self.scenario.table).refs.branches.find(name)
                self.looked[name] = found.id if found else ""
        return request.send()


def run(template: LanceTable, act: Act, parts: Mapping[int, Rival], kind: type[LocalStore]) -> Actor:
    """Run one schedule; return the actor with its requests."""
    uri = copied(template)
    plain = LanceTable(context_on(kind(str(uri), durable=False)))
    scenario = Scenario(plain)
    actor = Actor(scenario, parts)
    interrupted = LanceTable(context_on(ScriptedStore(kind(str(uri), durable=False), actor)))
    error: LanceDagsterError | None = None
    try:
        act(interrupted)
    except LanceDagsterError as raised:
        error = raised
    check(scenario, actor, error)
    shutil.rmtree(uri)
    return actor


def check(scenario: Scenario, actor: Actor, error: LanceDagsterError | None) -> None:
    """Assert that the table has what was acknowledged to the rival."""
    table, told = LanceTable(context_on(scenario.table._context.store)), scenario.told  # noqa: SLF001 - without its caches
    for (name, own), rows in told.items():
        if actor.looked.get(name) == own:
            # The actor read this branch first, so its changes to it are intended.
            continue
        found = context_of(table).refs.branches.find(name)
        assert found is not None, (name, "is gone", actor.parts, error)
        assert (own, READY) == (found.id, found.state), (name, actor.parts, error)
        assert rows == sorted_rows(table.read(name)), (name, actor.parts, error)
        assert len(rows) == lance.dataset(table.uri).checkout_version((name, None)).count_rows()
    listed = lance.dataset(table.uri).branches.list()
    for name in table.branches.list():
        assert name in listed
        table.read(name)
    for name in ("run", "new"):
        let_time_pass(table)
        assert_free(table, name)


def schedules(
    template: LanceTable, act: Act, parts: tuple[Rival, ...], kind: type[LocalStore] = LocalStore
) -> Iterator[int]:
    """Run all schedules in which the rival makes its calls at one request, and some in which it makes them at two.

    Yields:
        The number of requests that the actor made.
    """

    def at_once(scenario: Scenario) -> None:
        for part in parts:
            part(scenario)

    place = 0
    while len(run(template, act, {place: at_once}, kind).asked) > place:
        place += 1
        yield place
    if len(parts) > 1:
        pairs = list(combinations(range(place), 2))
        for first, second in pairs[:: max(1, len(pairs) // _PAIRS)]:

            def rest(scenario: Scenario) -> None:
                for part in parts[1:]:
                    part(scenario)

            yield len(run(template, act, {first: parts[0], second: rest}, kind).asked)


@pytest.mark.parametrize("actor, rival", soak.pairs(ACTORS, RIVALS))
def test_no_schedule_of_two_loses_a_commit(template: LanceTable, actor: str, rival: str) -> None:
    """The actor does not apply its change to another branch than the one it read."""
    assert [] != list(schedules(template, ACTORS[actor], RIVALS[rival]))


def test_the_files_of_pylance_are_untouched(template: LanceTable) -> None:
    """Pylance reads the template."""
    assert "run" in lance.dataset(template.uri).branches.list()
    assert READY == json.loads(Path(template.uri, OWN_FILE).read_text())["metadata"]["lance_dagster.state"]


@pytest.mark.parametrize("rival", ["delete, create", "take", "reset"])
@pytest.mark.parametrize("actor", ["delete", "create"])
def test_no_schedule_loses_a_commit_without_conditional_deletions(template: LanceTable, actor: str, rival: str) -> None:
    """Only one process may send the deletion that could hit another branch; the name is free after its period."""
    assert [] != list(schedules(template, ACTORS[actor], RIVALS[rival], ForgetfulStore))


def test_a_tag_is_deleted_without_conditional_deletions(template: LanceTable) -> None:
    """It counts as deleted from its mark on; the name is free at once, or after a crash when the period has passed."""
    uri = copied(template)
    table = LanceTable(context_on(ForgetfulStore(str(uri), durable=False)))

    def dying(request: Request) -> object:
        if request.verb == "compare_and_delete":
            raise PlugPulledError
        return request.send()

    table.tags.create("release", "main")
    with pytest.raises(PlugPulledError):
        LanceTable(context_on(ScriptedStore(ForgetfulStore(str(uri), durable=False), dying))).tags.delete("release")
    assert {} == table.tags.list()
    with pytest.raises(RefNotFoundError):
        table.tags.get("release")
    with pytest.raises(ConflictError, match="the name is free 15 minutes later"):
        table.tags.create("release", "main@1")
    file = Path(table.uri, "_refs/tags/release.json")
    found = json.loads(file.read_text())
    found["metadata"][REMOVER] = "0 0"
    file.write_text(json.dumps(found))
    table.tags.create("release", "main@1")
    assert "main@1" == table.tags.get("release").ref
    table.tags.delete("release")
    assert not file.exists()
    table.tags.create("release", "main")
