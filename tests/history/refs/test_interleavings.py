"""Several actors that make their requests in turns: the calls that succeeded have an order that explains the outcome.

The calls are held against a model in which each is one step: the rows of each branch, and what each tag names. A call
that failed may have had its effect or none, as it says; an append that failed has none. Afterwards every branch and tag
is read, `verify` finds no error, and no name is blocked.

Of two operations that make few requests, every schedule is run. An operation on a branch makes up to seventy: of these,
schedules with three switches are run, and of longer histories schedules at random. Both are chosen from a seed.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import product
from math import comb
from pathlib import Path
from random import Random
from typing import NamedTuple

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitStateUnknownError, LanceDagsterError
from lance_dagster.store import LocalStore
from tests import soak
from tests.history.refs.interleaver import Call, Exhaustive, Interleaver, at_random, in_parts
from tests.history.refs.schedule_tables import ForgetfulStore, assert_free, copied, let_time_pass, made_template
from tests.store.scripted import Script, ScriptedStore
from tests.table_factory import context_on, entries, sorted_rows

pytestmark = pytest.mark.slow

Row = tuple[str, int]
_APPEND = "append to "
_MAIN_2, _MAIN_3 = frozenset({("a", 1)}), frozenset({("a", 1), ("b", 2)})


class Line(NamedTuple):
    """A branch of the model: its rows, and whether it is still the one of the template, which has the version 3."""

    rows: frozenset[Row]
    original: bool = False


class Named(NamedTuple):
    """A tag of the model: the branch whose version it names, and whether it is held there."""

    branch: str
    held: bool = False


class Gone(NamedTuple):
    """The branch that had a name last and was deleted, as its recovery brings it back; no table shows it."""

    rows: frozenset[Row]


class Protected(NamedTuple):
    """The pattern that protects a branch, which is its name."""

    pattern: str


Entry = Line | Named | Gone | Protected
State = Mapping[str, Entry]
Step = Callable[[dict[str, Entry]], bool]
"""Change a state as a call does that succeeds; return False where it cannot succeed."""


class Operation(NamedTuple):
    """What an actor can do, and what that means."""

    act: Callable[[LanceTable], object]
    step: Step


def _shown(state: State) -> State:
    """Return what a table shows of a state."""
    shown: dict[str, Entry] = {}
    for name, entry in state.items():
        match entry:
            case Line():
                shown[name] = Line(entry.rows)
            case Named():
                shown[name] = Named(entry.branch)
            case Protected():
                shown[name] = entry
            case Gone():
                pass
    return shown


def _remove(state: dict[str, Entry], name: str) -> None:
    """Delete a branch, if there is one."""
    line = state.pop(name, None)
    if isinstance(line, Line):
        state[f"deleted {name}"] = Gone(line.rows)


def _is_protected(state: State, name: str) -> bool:
    return f"protection of {name}" in state


def _names(state: State, branch: str) -> bool:
    return any(isinstance(tag, Named) and tag.branch == branch for tag in state.values())


def _append(name: str, value: int = 0) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        line = state.get(name)
        if isinstance(line, Line):
            state[name] = line._replace(rows=line.rows | {("new", value)})
        return isinstance(line, Line) and not _is_protected(state, name)

    return Operation(lambda table: table.append(entries("new", value), branch=name), step)


def _operation(what: str, actor: int, place: int) -> Operation:
    """An operation as a call of an actor: each append has a row of its own."""
    dest = what.removeprefix(_APPEND)
    return OPERATIONS[what] if dest == what else _append(dest, 10 * actor + place)


def _create(name: str, *, exist_ok: bool = False) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        if not (exist_ok and name in state):
            # It may take the place of a branch whose deletion is under way, so it does not require that there is none.
            _remove(state, name)
            state[name] = Line(_MAIN_2)
        return True

    return Operation(lambda table: table.branches.create(name, "main@2", exist_ok=exist_ok), step)


def _delete(name: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        # A deletion that another process finished counts as done.
        _remove(state, name)
        return not _names(state, name) and not _is_protected(state, name)

    return Operation(lambda table: table.branches.delete(name), step)


def _reset(name: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        # It may take over a deletion that began after it found the branch, so it does not require that there is one.
        _remove(state, name)
        state[name] = Line(_MAIN_2)
        return not _names(state, name) and not _is_protected(state, name)

    return Operation(lambda table: table.branches.reset(name, "main@2"), step)


def _reset_own(name: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        line = state.get(name)
        state[name] = Line(_MAIN_3, original=True)
        return isinstance(line, Line) and line.original and not _is_protected(state, name)

    return Operation(lambda table: table.branches.reset(name, f"{name}@3"), step)


def _rename(old: str, new: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        line = state.pop(old, None)
        if line is None:
            # Repeated after another process finished it.
            return new in state
        protected = _is_protected(state, old) or _is_protected(state, new)
        possible = new not in state and not _names(state, old) and not protected
        state[new] = line
        return possible

    return Operation(lambda table: table.branches.rename(old, new), step)


def _recover(name: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        gone = state.get(f"deleted {name}")
        if name not in state and isinstance(gone, Gone):
            # Its versions come back under their numbers.
            state[name] = Line(gone.rows, original=("old", 1) in gone.rows)
        return isinstance(state.get(name), Line)

    return Operation(lambda table: table.branches.recover(name), step)


def _protect(name: str, *, held: bool) -> Operation:
    rule = f"protection of {name}"

    def step(state: dict[str, Entry]) -> bool:
        possible = held or rule in state
        state.pop(rule, None)
        if held:
            state[rule] = Protected(name)
        return possible

    if held:
        return Operation(lambda table: table.branches.protect([name]), step)
    return Operation(lambda table: table.branches.unprotect([name]), step)


def _merge(source: str, dest: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        found, into = state.get(source), state.get(dest)
        if isinstance(found, Line) and isinstance(into, Line):
            state[dest] = into._replace(rows=into.rows | found.rows)
        return isinstance(found, Line) and isinstance(into, Line)

    return Operation(lambda table: table.merge(source, into=dest), step)


def _nothing(act: Callable[[LanceTable], object]) -> Operation:
    return Operation(act, lambda _: True)


def _tag(name: str, branch: str, *, moves: bool = False) -> Operation:
    version = f"{branch}@3"

    def step(state: dict[str, Entry]) -> bool:
        tag, line = state.get(name), state.get(branch)
        possible = isinstance(line, Line) and line.original
        if moves and isinstance(tag, Named) and tag.branch == branch:
            # A move to where the tag is changes nothing, and is not refused while it is held.
            return possible
        state[name] = Named(branch)
        # A move creates a tag that is not there.
        return possible and (tag is None or (moves and isinstance(tag, Named) and not tag.held))

    if moves:
        return Operation(lambda table: table.tags.move(name, version), step)
    return Operation(lambda table: table.tags.create(name, version), step)


def _untag(name: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        tag = state.pop(name, None)
        return not (isinstance(tag, Named) and tag.held)

    return Operation(lambda table: table.tags.delete(name), step)


def _rename_tag(old: str, new: str) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        tag = state.pop(old, None)
        if not isinstance(tag, Named):
            return new in state
        possible = new not in state and not tag.held
        state[new] = tag
        return possible

    return Operation(lambda table: table.tags.rename(old, new), step)


def _hold(name: str, *, held: bool) -> Operation:
    def step(state: dict[str, Entry]) -> bool:
        tag = state.get(name)
        if isinstance(tag, Named):
            state[name] = tag._replace(held=held)
        return isinstance(tag, Named)

    if held:
        return Operation(lambda table: table.tags.hold(name, reason="it is tested"), step)
    return Operation(lambda table: table.tags.release(name, reason="it was tested"), step)


BRANCH_OPERATIONS: dict[str, Operation] = {
    "append to run": _append("run"),
    "append to new": _append("new"),
    "append to main": _append("main"),
    "create run": _create("run"),
    "create or get run": _create("run", exist_ok=True),
    "create new": _create("new"),
    "delete run": _delete("run"),
    "delete new": _delete("new"),
    "reset run": _reset("run"),
    "reset run to its own version": _reset_own("run"),
    "rename run to new": _rename("run", "new"),
    "rename new to run": _rename("new", "run"),
    "merge run": _merge("run", "main"),
    "sync run": _merge("main", "run"),
    "change metadata of run": _nothing(lambda table: table.branches.set_metadata("run", {"note": "changed"})),
    "tag run": _tag("release", "run"),
    "recover run": _recover("run"),
    "recover new": _recover("new"),
    "protect run": _protect("run", held=True),
    "unprotect run": _protect("run", held=False),
    "collect": _nothing(lambda table: table.maintenance.collect_garbage(timedelta(0), dry_run=False)),
}
TAG_OPERATIONS: dict[str, Operation] = {
    "create": _tag("release", "main"),
    "create on run": _tag("release", "run"),
    "move": _tag("release", "main", moves=True),
    "move to run": _tag("release", "run", moves=True),
    "delete": _untag("release"),
    "rename": _rename_tag("release", "candidate"),
    "rename back": _rename_tag("candidate", "release"),
    "hold": _hold("release", held=True),
    "release": _hold("release", held=False),
    "change metadata": _nothing(lambda table: table.tags.set_metadata("release", {"note": "changed"})),
}
OPERATIONS = BRANCH_OPERATIONS | {f"{name} release": operation for name, operation in TAG_OPERATIONS.items()}
# `make test-slow` runs these pairs, which have lost commits, blocked names or left a tag without its version.
_WORST = [
    ("delete run", "rename run to new"),
    ("reset run", "rename run to new"),
    ("reset run to its own version", "rename run to new"),
    ("rename run to new", "tag run"),
    ("delete run", "reset run"),
    ("recover run", "create run"),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> LanceTable:
    """Two versions of main, and a branch `run` with two commits of its own."""
    return made_template(tmp_path_factory.mktemp("interleavings"))


class Trial(NamedTuple):
    """What the actors do, on which kind of store, whether the tag `release` is there already, and `run` deleted."""

    template: LanceTable
    plans: Sequence[Sequence[str]]
    kind: type[LocalStore] = LocalStore
    tagged: bool = False
    deleted: bool = False

    def run(self, turns: Interleaver, told: str = "") -> None:
        """Run one schedule, and assert what holds afterwards; `told` says how to run it again."""
        uri = copied(self.template)
        if self.tagged:
            self._table(uri).tags.create("release", "main@2")
        if self.deleted:
            self._table(uri).branches.delete("run")
            let_time_pass(self._table(uri))
        turns.run([partial(self._calls, uri, actor) for actor in range(len(self.plans))])
        try:
            self._check(uri, turns)
        except (AssertionError, LanceDagsterError) as error:
            ends = (f"{one.actor} {self.plans[one.actor][one.place]}: {one.error or 'done'}" for one in turns.calls)
            raise AssertionError("\n".join([told, *ends, *turns.requests])) from error
        shutil.rmtree(uri)

    def _table(self, uri: Path) -> LanceTable:
        return LanceTable(context_on(self.kind(str(uri), durable=False)))

    def _calls(self, uri: Path, actor: int, script: Script) -> list[Callable[[], object]]:
        table = LanceTable(context_on(ScriptedStore(self.kind(str(uri), durable=False), script)))
        return [partial(_operation(what, actor, place).act, table) for place, what in enumerate(self.plans[actor])]

    def _explained(self, calls: Sequence[Call], begun: State, outcome: State) -> bool:
        """Tell whether the calls, in an order that does not contradict when they were made, have the outcome."""
        seen: set[tuple[frozenset[int], frozenset[tuple[str, Entry]]]] = set()

        def found(left: frozenset[int], state: State) -> bool:
            key = left, frozenset(state.items())
            if key in seen:
                return False
            seen.add(key)
            if not left:
                return outcome == _shown(state)
            ready = [one for one in left if not any(calls[other].ended < calls[one].began for other in left)]
            return any(found(left - {one}, after) for one in ready for after in self._after(calls[one], state))

        return found(frozenset(range(len(calls))), begun)

    def _after(self, call: Call, state: State) -> Iterator[State]:
        """Yield the states in which a call can leave the table."""
        what = self.plans[call.actor][call.place]
        if call.error is not None:
            yield state
            if what.startswith(_APPEND) and not isinstance(call.error, CommitStateUnknownError):
                return
            if what == "reset run":
                # A deletion that began meanwhile takes precedence, and may be given up after this one deleted the rows.
                without = dict(state)
                _remove(without, "run")
                yield without
        changed = dict(state)
        if _operation(what, call.actor, call.place).step(changed):
            yield changed

    def _check(self, uri: Path, turns: Interleaver) -> None:
        table = self._table(uri)
        outcome: dict[str, Entry] = {}
        for name in ("main", *table.branches.list()):
            rows = sorted_rows(table.read(name))
            outcome[name] = Line(frozenset(rows))
            seen = lance.dataset(str(uri)).checkout_version((None if name == "main" else name, None))
            assert len(set(rows)) == len(rows) == seen.count_rows(), name
        for name, tag in table.tags.list().items():
            table.read(name)
            outcome[name] = Named(tag.branch)
        for pattern in table.branches.protection().branches:
            outcome[f"protection of {pattern}"] = Protected(pattern)
        begun: dict[str, Entry] = {
            "main": Line(_MAIN_3, original=True),
            "run": Line(_MAIN_3 | {("old", 1), ("old", 2)}, original=True),
        }
        if self.deleted:
            _remove(begun, "run")
        if self.tagged:
            begun["release"] = Named("main")
        assert self._explained(turns.calls, begun, outcome), outcome
        assert [] == [problem for problem in table.maintenance.verify().problems if problem.severity == "error"]
        let_time_pass(table)
        table.branches.unprotect(table.branches.protection().branches)
        for name in table.tags.list():
            table.tags.release(name, reason="the test ends")
            table.tags.delete(name)
        for name in ("run", "new"):
            assert_free(table, name)


def _requests(template: LanceTable, what: str, *, tagged: bool = False, deleted: bool = False) -> int:
    """The number of requests that an operation makes alone."""
    turns = Interleaver(at_random(Random(0)))
    Trial(template, [[what]], tagged=tagged, deleted=deleted).run(turns)
    return len(turns.requests)


def _limit(usual: int, in_soak: int) -> int:
    """The largest number of schedules of a pair."""
    return in_soak if soak.DEEP else usual


@pytest.mark.parametrize("first, second", soak.pairs(TAG_OPERATIONS, TAG_OPERATIONS))
def test_schedules_of_two_operations_on_a_tag(
    template: LanceTable, first: str, second: str, record_property: Callable[[str, object], None]
) -> None:
    """Every schedule where they are few, and else as many at random."""
    # One of the two orders of a pair begins with a tag, the other one without.
    tagged, plans, limit = not first.startswith("create"), [[f"{first} release"], [f"{second} release"]], _limit(4, 60)
    trial, every, done = Trial(template, plans, tagged=tagged), Exhaustive(), 1
    lengths = [_requests(template, *plan, tagged=tagged) for plan in plans]
    if comb(sum(lengths), lengths[0]) <= limit:
        trial.run(Interleaver(every.choose))
        while every.next():
            trial.run(Interleaver(every.choose))
            done += 1
    else:
        for done in range(1, limit + 1):
            trial.run(Interleaver(at_random(Random(done))), f"seed {done}")
    record_property("schedules", done)


@pytest.mark.parametrize(
    "first, second",
    soak.thinned(
        [(first, second) for first in BRANCH_OPERATIONS for second in BRANCH_OPERATIONS],
        kept=lambda pair: pair in _WORST,
        label=" - ".join,
    ),
)
def test_schedules_of_two_operations_with_three_switches(
    template: LanceTable, first: str, second: str, record_property: Callable[[str, object], None]
) -> None:
    """One makes some of its requests, the other some of its own, the first one the rest, the other the rest."""
    # One of the two orders of a pair with a recovery begins with the branch, the other one after its deletion.
    deleted = first == "recover run"
    numbers = [range(1, _requests(template, what, deleted=deleted) + 1) for what in (first, second)]
    places = [*product(*numbers)]
    chosen = Random(soak.FIRST_SEED).sample(places, min(len(places), _limit(30, 100)))
    for number, (before, other) in enumerate(chosen):
        parts, kind = [(0, before), (1, other), (0, 10**3)], (LocalStore, ForgetfulStore)[number % 2]
        told = f"after {before} and {other} requests on {kind}"
        Trial(template, [[first], [second]], kind, deleted=deleted).run(Interleaver(in_parts(parts)), told)
    record_property("schedules", len(chosen))


def test_only_the_process_that_sealed_a_branch_deletes_its_file(template: LanceTable) -> None:
    """Without conditional deletions, the late request of a deletion would hit the branch that a reset made."""

    def choose(ready: Sequence[int]) -> int:
        marked = any(request == "0 compare_and_swap _refs/branches/run.json" for request in turns.requests)
        # The reset is about to seal the branch. The deletion does so first, and stops before it deletes the file.
        seals = marked and turns.wanted(0).startswith("compare_and_swap")
        return 1 if seals and 1 in ready and not turns.wanted(1).startswith("compare_and_delete") else ready[0]

    turns = Interleaver(choose)
    Trial(template, [["reset run"], ["delete run"]], ForgetfulStore).run(turns)


@pytest.mark.scaled
def test_random_schedules(template: LanceTable, record_property: Callable[[str, object], None]) -> None:
    """Two or three actors make two calls each, in an order that the seed gives."""
    for seed in range(soak.FIRST_SEED, soak.FIRST_SEED + soak.SEEDS):
        chance = Random(seed)
        plans = [chance.choices([*OPERATIONS], k=2) for _ in range(chance.choice((2, 3)))]
        kind, tagged = chance.choice((LocalStore, ForgetfulStore)), chance.random() < 1 / 2
        deleted = chance.random() < 1 / 4
        Trial(template, plans, kind, tagged, deleted).run(Interleaver(at_random(chance)), f"seed {seed}: {plans}")
    record_property("schedules", soak.SEEDS)
