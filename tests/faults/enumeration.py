"""Enumerate every storage request of an operation with everything that can happen at it.

An operation is done on a fresh copy of a folder, through stores that call a script before each request. The first run
counts the requests. Then each request gets each fault that fits it, alone or together with a fault of another request,
or a rival that does another whole operation at that moment. The state that readers find (`independent_reader`) must be:

- The operation returned: the state is that after an undisturbed run.
- `CommitStateUnknownError`, or the process died: the state is that before or after, for each name by itself where an
  operation moves several. A single transient fault never gives "unknown".
- Any other error of the package: the state is that before, if the operation is one commit or one move of a name.
- With a rival: the state is that after doing the two operations one after the other, in one of both orders.
- After that the caller repeats the operation, or resumes its transaction: the state is that after an undisturbed run,
  and this reader, pylance and `verify` find no version that contradicts another version or a file.
"""

import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lance
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import CommitStateUnknownError, LanceDagsterError, StoreError
from lance_dagster.format.transaction import Transaction
from lance_dagster.store import LocalStore, Store
from lance_dagster.store.s3 import S3Store
from tests.faults.independent_reader import Found, read_folder
from tests.faults.operations import Operation
from tests.store.scripted import CONDITIONAL, LISTINGS, READS, PlugPulledError, Request, ScriptedStore


class Fault(StrEnum):
    """What happens to one request."""

    ERROR = "error before"
    LOST = "made, the answer is lost"
    LATE = "timeout, made later"
    REFUSED = "not made, the condition is said to fail"
    DENIED = "made, the condition is said to fail"
    STALE = "the listing lags"
    CUT = "the answer is cut"
    OUTAGE = "error from here on"
    LAST = "made, then error from here on"
    DIES = "dies before"
    DIED = "dies after"


_RANDOM = re.compile(r"[0-9a-f]{8,}[0-9a-f@-]*|(?<=-)[0-9]{6,}")
LASTING = frozenset({Fault.OUTAGE, Fault.LAST})
_FITTING: Sequence[tuple[frozenset[str], tuple[Fault, ...]]] = (
    (CONDITIONAL, (Fault.REFUSED, Fault.DENIED)),
    (LISTINGS, (Fault.STALE,)),
    (frozenset({"get", "get_range", "get_with_etag"}), (Fault.CUT,)),
)
_PATIENCE_SECONDS = 1.0
_AFTER_A_WRITE = (Fault.LOST, Fault.LATE, Fault.LAST, Fault.DIED)


def fitting(verb: str, *, alone: bool = False) -> tuple[Fault, ...]:
    """The faults of a request; a fault after a read is left out, as it equals one before the next request."""
    found = [Fault.ERROR, Fault.OUTAGE, Fault.DIES]
    found += [fault for verbs, faults in _FITTING if verb in verbs for fault in faults]
    found += [] if verb in READS else _AFTER_A_WRITE
    return tuple(fault for fault in found if not (alone and fault is Fault.STALE))


class Asked(NamedTuple):
    """A request that was made: its verb, and the keys it is about."""

    verb: str
    keys: tuple[str, ...]

    def commutes(self, other: "Asked") -> bool:
        """Whether the order of two requests is irrelevant: neither writes what the other one reads, lists or writes."""
        if self.verb in READS and other.verb in READS:
            return True
        return not any(_meet(own, key) for own in self.places() for key in other.places())

    def places(self) -> Iterator[str]:
        """The keys of the request; a folder that it lists ends in a slash."""
        # A listing sees every key below its folder.
        return (f"{key}/" if self.verb in LISTINGS else key for key in self.keys)


def _meet(one: str, other: str) -> bool:
    return (
        one == other or (one.endswith("/") and other.startswith(one)) or (other.endswith("/") and one.startswith(other))
    )


Event = Fault | Callable[[], object]
"""A fault, or a rival that acts."""


@dataclass(slots=True)
class Disturbance:
    """The script of one run: what happens at which request."""

    plan: Mapping[int, Event]
    requests: list[Asked] = field(default_factory=list)
    dead: bool = False
    out: bool = False
    rival: LanceDagsterError | None = None
    _late: list[tuple[int, Request]] = field(default_factory=list)
    _rivals: list[Future[None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inside: threading.local = field(default_factory=threading.local)

    def __call__(self, request: Request) -> Any:  # noqa: ANN401 - what the verb answers
        """Send the request, or apply the event that the plan has for it."""
        if getattr(self._inside, "rival", False):
            return request.send()
        with self._lock:
            number = len(self.requests)
            self.requests.append(Asked(request.verb, tuple(request.key.split(" "))))
            self.arrive(number)
        event = self.plan.get(number)
        if self.dead:
            raise PlugPulledError
        if self.out:
            raise _failed(request)
        if isinstance(event, Fault):
            # Several threads may send requests in another order than in the run whose requests were counted.
            return self._suffer(event, request, number) if event in fitting(request.verb) else request.send()
        if event is not None:
            self._let_in(event)
        return request.send()

    def arrive(self, number: int | None = None) -> None:
        """Send the delayed requests that arrive up to the request of this number; None for all."""
        for due, request in [*self._late]:
            if number is None or due <= number:
                self._late.remove((due, request))
                with suppress(StoreError):
                    request.send()

    def end(self) -> None:
        """Send the requests that are still delayed, and take the end of a rival that waited for the operation."""
        self.arrive()
        for rival in self._rivals:
            try:
                rival.result()
            except LanceDagsterError as error:
                self.rival = error

    def _let_in(self, act: Callable[[], object]) -> None:
        """Let a rival act, and go on when it is done or has waited for a second.

        A writer waits up to a minute for a reset of its branch, which would be in vain if the reset did not go on.
        """
        pool = ThreadPoolExecutor(1)
        self._rivals.append(pool.submit(self._act, act))
        pool.shutdown(wait=False)
        wait(self._rivals, _PATIENCE_SECONDS)

    def _act(self, act: Callable[[], object]) -> None:
        self._inside.rival = True
        act()

    def _suffer(self, fault: Fault, request: Request, number: int) -> Any:  # noqa: ANN401 - what the verb answers
        if fault is Fault.STALE:
            return _lagging(request)
        if fault is Fault.CUT:
            return _cut(request.send())
        self.dead = fault in (Fault.DIES, Fault.DIED)
        self.out = fault in LASTING
        if fault in (Fault.LOST, Fault.DENIED, Fault.LAST, Fault.DIED):
            request.send()
        if fault is Fault.LATE:
            self._late.append((number + 2, request))
        if self.dead:
            raise PlugPulledError
        if fault in (Fault.REFUSED, Fault.DENIED):
            return False
        raise _failed(request)


def _failed(request: Request) -> StoreError:
    return StoreError(f"no answer to {request.verb} {request.key}")


def _cut(answer: Any) -> Any:  # noqa: ANN401 - what the verb answers
    if isinstance(answer, tuple):
        return answer[0][: len(answer[0]) // 2], answer[1]
    return answer if answer is None else answer[: len(answer) // 2]


def _lagging(request: Request) -> Any:  # noqa: ANN401 - what the verb answers
    """A listing without its first name: of manifests that is the newest, as their names count down."""
    answer = request.send()
    if isinstance(answer, dict):
        return dict([*answer.items()][1:])
    if answer and not isinstance(answer, Sequence):
        answer = [*answer]
    return answer[1:]


@contextmanager
def instrumented(script: Callable[[Request], Any]) -> Iterator[None]:
    """Let every store that is opened inside the block follow a script."""

    def opened(root: str, *, durable: bool = True) -> Store:
        return ScriptedStore(LocalStore(root, durable=durable), script)

    def opened_on_s3(uri: str, storage_options: Mapping[str, str]) -> Store:
        return ScriptedStore(S3Store(uri, storage_options), script)

    with pytest.MonkeyPatch.context() as patch:
        # Stores are created only in `open_store`, which takes their classes from the modules of the providers.
        patch.setattr("lance_dagster.store.local.LocalStore", opened)
        patch.setattr("lance_dagster.store.s3.S3Store", opened_on_s3)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an operation ended."""

    error: BaseException | None
    rival: LanceDagsterError | None
    requests: Sequence[Asked]

    @property
    def died(self) -> bool:
        """Whether the process died."""
        return isinstance(self.error, PlugPulledError)

    @property
    def unknown(self) -> bool:
        """Whether the caller was told that the state of the commit is unknown."""
        return isinstance(self.error, CommitStateUnknownError)


def do(operation: Operation, folder: Path, plan: Mapping[int, Event]) -> Ended:
    """Do an operation with the events of a plan."""
    script, error = Disturbance(plan), None
    with instrumented(script):
        try:
            operation.act(folder)
        except (LanceDagsterError, PlugPulledError) as raised:
            error = raised
    script.end()
    return Ended(error=error, rival=script.rival, requests=script.requests)


class Violation(AssertionError):  # noqa: N818 - it is what was looked for
    """A guarantee of the package that does not hold."""


@dataclass(frozen=True, slots=True)
class Template:
    """A folder that is made once and copied to the same place before each run."""

    place: Path
    kept: Path

    @staticmethod
    def of(place: Path, prepare: Callable[[Path], object]) -> "Template":
        """Make the folder."""
        prepare(place)
        kept = place.with_name(f"{place.name}-kept")
        shutil.copytree(place, kept)
        return Template(place, kept)

    def fresh(self) -> Path:
        """Restore the folder to the state in which it was made."""
        shutil.rmtree(self.place)
        shutil.copytree(self.kept, self.place)
        return self.place

    def look(self) -> Found:
        """What an independent reader finds there."""
        return read_folder(self.place)

    def files(self) -> Iterator[str]:
        """The files there, by their paths below the folder."""
        return (path.relative_to(self.place).as_posix() for path in self.place.rglob("*") if path.is_file())

    def table(self, name: str) -> tuple[str, Mapping[str, str] | None]:
        """The URI of a table there, and what it takes to open it."""
        return str(self.place / name), None


class Place(Protocol):
    """Where an operation is done: a folder or a bucket that is restored before each run."""

    @property
    def place(self) -> Path:
        """The folder, or a copy of the bucket."""
        ...

    def fresh(self) -> Path:
        """Restore the initial state."""
        ...

    def look(self) -> Found:
        """What an independent reader finds there."""
        ...

    def files(self) -> Iterator[str]:
        """The files there, by their paths."""
        ...

    def table(self, name: str) -> tuple[str, Mapping[str, str] | None]:
        """The URI of a table there, and what it takes to open it."""
        ...


@dataclass(slots=True)
class Enumeration:
    """One operation on copies of one folder."""

    template: Place
    name: str
    operation: Operation
    runs: int = 0
    checked: set[object] = field(default_factory=set)
    before: Found = field(init=False)
    after: Found = field(init=False)
    requests: Sequence[Asked] = field(init=False)

    def __post_init__(self) -> None:
        """Do the operation undisturbed, to learn its requests and its result."""
        self.template.fresh()
        self.before = self.template.look()
        ended = do(self.operation, self.template.place, {})
        if ended.error is not None:
            raise ended.error
        self.after, self.requests = self.template.look(), ended.requests
        # Without a request every store bypassed the script, and nothing would be enumerated.
        assert self.requests, f"{self.name} makes no request that the script sees"

    def verb(self, number: int) -> str:
        """The verb of a request of the undisturbed run; empty beyond its last request."""
        return self.requests[number].verb if number < len(self.requests) else ""

    def plans(self) -> Iterator[Mapping[int, Fault]]:
        """Every request with every fault that fits it."""
        for number, asked in enumerate(self.requests):
            for fault in fitting(asked.verb, alone=self.operation.alone):
                yield {number: fault}

    def pairs(self, chance: random.Random) -> Iterator[Mapping[int, Fault]]:
        """Every pair of requests, each with a random fault; the operation goes on after the first one."""
        for first, second in combinations(range(len(self.requests)), 2):
            kinds = [
                [
                    fault
                    for fault in fitting(self.requests[number].verb, alone=self.operation.alone)
                    if fault not in ends
                ]
                for number, ends in ((first, LASTING | {Fault.DIES, Fault.DIED}), (second, frozenset[Fault]()))
            ]
            yield {first: chance.choice(kinds[0]), second: chance.choice(kinds[1])}

    def suffer(self, plan: Mapping[int, Fault]) -> None:
        """Do the operation with faults and check the state, then repeat it and check the state again.

        Raises:
            Violation: A guarantee does not hold.
        """
        self.runs += 1
        folder = self.template.fresh()
        ended = self.held(plan, lambda: do(self.operation, folder, plan))
        found = self.template.look()
        if self.operation.reads and Fault.STALE in plan.values() and (ended.error is None or len(plan) > 1):
            # A lagging listing is as if a rival had committed meanwhile. The operation then worked on an older version,
            # so after a second fault a repetition on the present version would be another operation.
            self.sound(plan, ended, found)
            return
        self._judge(plan, ended, found)
        self._repeat(plan, ended, found)

    def survive(self, cut: str, *, done: bool) -> None:
        """Check the folder that a power cut left, then repeat the operation unless it was done, and check again.

        Args:
            cut: Says when the power was cut and what was lost, for messages.
            done: Whether the operation had returned.

        Raises:
            Violation: A guarantee does not hold.
        """
        self.runs += 1
        ended = Ended(error=None if done else PlugPulledError(), rival=None, requests=())
        found = self.held(cut, self.template.look)
        self._judge(cut, ended, found)
        self._repeat(cut, ended, found)

    def _judge(self, plan: Mapping[int, Fault] | str, ended: Ended, found: Found) -> None:
        short = not isinstance(plan, str) and len(plan) == 1 and not LASTING & set(plan.values())
        if ended.error is None:
            self.expect(found.refs == self.after.refs, "it returned and is not done", plan, ended, found)
        elif ended.unknown or ended.died or not self.operation.atomic or self._open(ended):
            self.expect(not (ended.unknown and short), "one fault makes it unknown", plan, ended, found)
            self.expect(self._partly(found), "it is neither done nor not done", plan, ended, found)
        else:
            self.expect(found.refs == self.before.refs, "it raised and is done", plan, ended, found)
        self.sound(plan, ended, found)

    def _open(self, ended: Ended) -> bool:
        """Whether the error leaves open whether a name moved."""
        return isinstance(ended.error, StoreError) and not self.operation.commits

    def _partly(self, found: Found) -> bool:
        """Whether the state is that before or after; where names move one by one, for each name by itself."""
        if self.operation.atomic:
            return found.refs in (self.before.refs, self.after.refs)
        names = (self.before.refs.keys() | self.after.refs.keys() | found.refs.keys()) - {*self.operation.drafts}
        return all(found.refs.get(name) in (self.before.refs.get(name), self.after.refs.get(name)) for name in names)

    def _repeat(self, plan: Mapping[int, Fault] | str, ended: Ended, found: Found) -> None:
        folder, done = self.template.place, found.refs == self.after.refs
        if isinstance(ended.error, CommitStateUnknownError) and self.operation.resumes:
            table, transaction = LanceTable.open(folder / "table"), ended.error.transaction
            assert isinstance(transaction, Transaction)
            self.held(plan, lambda: table.commit(transaction, branch=self.operation.branch))
        elif ended.error is not None and not (done and self.operation.once):
            again = self.held(plan, lambda: do(self.operation, folder, {}))
            # A second deletion finds nothing to delete.
            self.expect(done or again.error is None, f"it cannot be repeated: {again.error}", plan, ended, found)
        found = self.template.look()
        self.expect(found.refs == self.after.refs, "repeated, it is not done", plan, ended, found)
        self.sound(plan, ended, found)
        self.held(plan, lambda: self.check_others(found))

    def check_others(self, found: Found) -> None:
        """Let pylance and `verify` check the result, unless they checked one with the same names and files before."""
        files = self.template.files()
        seen = frozenset(found.refs.items()), tuple(sorted(_RANDOM.sub("*", name) for name in files))
        if seen not in self.checked:
            check_others(self.template, found, self.operation.tables)
            self.checked.add(seen)

    def held(self, plan: object, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Call `act`, and add the plan to the message of whatever it raises."""
        try:
            return act()
        except Violation:
            raise
        except LanceDagsterError as error:
            raise Violation(f"{self.name} with {self._told(plan)}: {type(error).__name__}: {error}") from error
        except BaseException as error:
            # The package should raise no other exceptions.
            error.add_note(f"{self.name} with {self._told(plan)}")
            raise

    def sound(self, plan: object, ended: Ended, found: Found) -> None:
        """Raise a violation for problems that the files did not have before."""
        new = found.problems - self.before.problems
        self.expect(not new, f"files contradict each other: {sorted(new)}", plan, ended, found)

    def expect(self, holds: bool, what: str, plan: object, ended: Ended, found: Found) -> None:  # noqa: FBT001
        """Raise a violation that lists the names that differ, unless something holds."""
        if not holds:
            changed = {
                name: (self.before.refs.get(name), found.refs.get(name), self.after.refs.get(name))
                for name in self.before.refs.keys() | self.after.refs.keys() | found.refs.keys()
                if not self.before.refs.get(name) == found.refs.get(name) == self.after.refs.get(name)
            }
            raise Violation(
                f"{self.name} with {self._told(plan)}: {what}; it ended with {ended.error!r}, a rival with "
                f"{ended.rival!r}; before, found and expected: {changed}"
            )

    def _told(self, plan: object) -> str:
        if not isinstance(plan, Mapping):
            return str(plan)
        return ", ".join(
            f"{number} {self.verb(number)}: {getattr(event, 'value', 'a rival')}" for number, event in plan.items()
        )


@dataclass(slots=True)
class Rivalry:
    """An operation, and a rival that does another operation at each of its requests."""

    actor: Enumeration
    rival: Enumeration
    runs: int = 0
    orders: tuple[Found, ...] = field(init=False)
    rival_first: Ended = field(init=False)

    def __post_init__(self) -> None:
        """Do both, one after the other, in both orders."""
        found, ends = [], []
        for first, second in ((self.actor, self.rival), (self.rival, self.actor)):
            folder = self.actor.template.fresh()
            do(first.operation, folder, {})
            ends.append(do(second.operation, folder, {}))
            done = ends[-1]
            if done.error is not None and second.operation.instead is not None:
                done = do(replace(second.operation, act=second.operation.instead), folder, {})
            found.append((self.actor.template.look(), done.error is None))
        # Of two equal operations, the second may complete what the first began; after the first it would be refused.
        same = [self.actor.after] if self.actor.after.refs == self.rival.after.refs else []
        self.orders = (*(state for state, both in found if both), *same)
        self.rival_first = ends[1]

    def places(self) -> list[int]:
        """The requests before which the action of the rival can make a difference.

        For any other request it is irrelevant whether the rival acts before or after it.
        """
        others = self.rival.requests
        return [
            number
            for number, asked in enumerate(self.actor.requests)
            if not all(asked.commutes(other) for other in others)
        ]

    def meet(self, number: int) -> None:
        """Let the rival in before one request.

        Raises:
            Violation: The two did not happen one after the other.
        """
        self.runs += 1
        folder = self.actor.template.fresh()
        plan: dict[int, Event] = {number: lambda: self.rival.operation.act(folder)}
        actor = self.actor
        ended = actor.held(plan, lambda: do(actor.operation, folder, plan))
        found = actor.template.look()
        told = f"{self.rival.name!r} at {number} {actor.verb(number)}"
        acted, rivalled = ended.error is None, ended.rival is None
        allowed = [self.rival.after] if rivalled else [actor.before]
        if acted:
            allowed = [*self.orders] if rivalled else [actor.after]
        elif ended.unknown or not actor.operation.atomic:
            allowed += [*self.orders] if rivalled else [actor.after]
        fits = any(found.refs == state.refs for state in allowed)
        if not acted and not actor.operation.atomic:
            fits = fits or _mixed(found, allowed)
        actor.expect(
            fits, f"the two did not happen one after the other: {[a.refs for a in allowed]}", told, ended, found
        )
        actor.sound(told, ended, found)
        if not acted:
            again = actor.held(told, lambda: do(actor.operation, folder, {}))
            blocked = again.error is not None and self.rival_first.error is None and found.refs == self.rival.after.refs
            actor.expect(not blocked, f"it cannot be repeated: {again.error}", told, ended, found)
        actor.held(told, lambda: actor.check_others(actor.template.look()))


def _mixed(found: Found, allowed: Sequence[Found]) -> bool:
    names = set(found.refs).union(*(state.refs for state in allowed))
    return all(any(found.refs.get(name) == state.refs.get(name) for state in allowed) for name in names)


def check_others(place: Place, found: Found, tables: Sequence[str]) -> None:
    """Check that pylance reads the rows that were found, and that `verify` finds no error.

    Raises:
        Violation: Pylance reads other rows, or `verify` finds an error.
    """
    for name in (name for name in tables if (place.place / name / "_versions").is_dir()):
        uri, options = place.table(name)
        table = LanceTable.open(uri, options)
        errors = [str(problem) for problem in table.maintenance.verify().problems if problem.severity == "error"]
        if errors:
            raise Violation(f"verify says {errors}")
        dataset = lance.dataset(uri, storage_options=None if options is None else dict(options))
        dataset.validate()
        refs: dict[str, Any] = {"main": dataset} | {
            ref: dataset.checkout_version((ref, None)) for ref in table.branches.list() if "published/" not in ref
        }
        for ref, version in refs.items():
            rows = tuple(sorted((tuple(row.values()) for row in version.to_table().to_pylist()), key=repr))
            if rows != found.refs[f"{name} {ref}"]:
                raise Violation(f"pylance reads {rows} on {ref} of {name}")
