"""Run several actors step by step on one store: of those who want to make a request, one at a time may.

Each actor has a thread and a store of its own. Between two requests it runs alone, so a schedule is the order of the
requests and nothing else, and the same choices give the same schedule.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from random import Random

from lance_dagster.errors import LanceDagsterError
from tests.store.scripted import Request, Script

Choose = Callable[[Sequence[int]], int]
"""Given the numbers of the actors that want to make a request, in order, return that of the one which makes it."""
Actor = Callable[[Script], Sequence[Callable[[], object]]]
"""Given the script for its store, returns its calls."""
_STUCK_SECONDS = 120
# An actor that asks the same again and again waits for another one, which is to go on.
_REPEATED = 3


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an actor, by its place among its calls: when it began and ended, and the error that it raised.

    Moments are numbered over all actors.
    """

    began: int
    ended: int
    actor: int
    place: int
    error: LanceDagsterError | None


@dataclass
class Interleaver:
    """The order in which actors make their requests, and what they called."""

    choose: Choose
    calls: list[Call] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: dict[int, list[object]] = field(default_factory=dict)
    _last: dict[int, tuple[str, int]] = field(default_factory=dict)
    _granted: object | None = None
    _busy: bool = False
    _moments: "count[int]" = field(default_factory=count)

    def run(self, actors: Sequence[Actor]) -> None:
        """Run actors to their end."""
        self._waiting = {number: [] for number in range(len(actors))}
        with ThreadPoolExecutor(len(actors)) as pool:
            for acting in [pool.submit(self._act, number, actor) for number, actor in enumerate(actors)]:
                acting.result()

    def wanted(self, actor: int) -> str:
        """The request that an actor wants to make, or that it made last."""
        return self._last[actor][0]

    def _act(self, number: int, actor: Actor) -> None:
        try:
            for place, call in enumerate(actor(lambda request: self._send(number, request))):
                began, error = next(self._moments), None
                try:
                    call()
                except LanceDagsterError as raised:
                    error = raised
                self.calls.append(Call(began, next(self._moments), number, place, error))
        finally:
            with self._changed:
                del self._waiting[number]
                self._pick()

    def _send(self, number: int, request: Request) -> object:
        token = object()
        with self._changed:
            told = f"{request.verb} {request.key}"
            before, times = self._last.get(number, ("", 0))
            self._last[number] = (told, times + 1 if told == before else 1)
            self._waiting[number].append(token)
            self._pick()
            if not self._changed.wait_for(lambda: self._granted is token, _STUCK_SECONDS):
                raise TimeoutError(f"no actor goes on; the last requests were {self.requests[-5:]}")
            self._granted = None
            self.requests.append(f"{number} {told}")
        try:
            return request.send()
        finally:
            with self._changed:
                self._busy = False
                self._pick()

    def _pick(self) -> None:
        """Let the next actor make its request, once every actor that is left wants to make one."""
        if self._busy or not self._waiting or not all(self._waiting.values()):
            return
        ready = sorted(self._waiting)
        # One that waits for another to go on would otherwise be chosen until its patience ends.
        patient = [number for number in ready if self._last[number][1] < _REPEATED]
        self._busy, self._granted = True, self._waiting[self.choose(patient or ready)].pop(0)
        self._changed.notify_all()


def at_random(chance: Random) -> Choose:
    """Choose at random, but stay with an actor for a while: a schedule of many switches is seldom the worst."""
    stays = chance.choice((0.3, 0.6, 0.8, 0.92))
    last = -1

    def choose(ready: Sequence[int]) -> int:
        nonlocal last
        if last not in ready or chance.random() >= stays:
            last = chance.choice(ready)
        return last

    return choose


def in_parts(parts: Sequence[tuple[int, int]]) -> Choose:
    """Let actors make so many requests each, one part after the other, and then all that is left in their order.

    Args:
        parts: The number of an actor, and of the requests that it makes before the next part begins.
    """
    left = [number for number, times in parts for _ in range(times)]

    def choose(ready: Sequence[int]) -> int:
        # An actor that has ended, or that waits for another, gives its place to the next part.
        while left and left[0] not in ready:
            left.pop(0)
        return left.pop(0) if left else ready[0]

    return choose


class Exhaustive:
    """The choices of every schedule, one after the other: `choose` follows one, and `next` goes on to another."""

    def __init__(self) -> None:
        """Begin with the schedule that always takes the first actor."""
        self._path: list[int] = []
        self._widths: list[int] = []

    def choose(self, ready: Sequence[int]) -> int:
        """Choose as this schedule says."""
        place = len(self._widths)
        if place == len(self._path):
            self._path.append(0)
        self._widths.append(len(ready))
        return ready[self._path[place]]

    def next(self) -> bool:
        """Go on to the next schedule; return False after the last one."""
        while self._path and self._path[-1] == self._widths[len(self._path) - 1] - 1:
            self._path.pop()
        self._widths = []
        if self._path:
            self._path[-1] += 1
        return bool(self._path)
