"""Time several ways of doing one thing in turn, and measure the memory that each takes."""

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lance_dagster.store import LocalStore

ROUNDS = 9
_FEWEST = 3
_SECONDS = 15.0
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def medians(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return how long each way takes, in seconds.

    Each is run once to warm up, then all in turn, so that a machine that slows down slows every one. Slow ways get
    fewer rounds.
    """
    for run in ways.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for number in range(ROUNDS):
        if number >= _FEWEST and time.perf_counter() - started > _SECONDS:
            break
        for name, run in ways.items():
            taken[name].append(timed(run))
    return {name: statistics.median(times) for name, times in taken.items()}


def timed(run: Callable[[], object]) -> float:
    """Return how long something takes, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak(run: Callable[[], object]) -> int:
    """Return how many bytes of memory something needs beyond what is in use before it.

    This is the kernel's high-water mark of this process, reset first. `ru_maxrss` cannot be used: a process inherits
    the value of the process that started it.
    """
    _CLEAR.write_text("5")
    before = _highest()
    run()
    return _highest() - before


def sizes(folder: Path) -> dict[Path, int]:
    """Return the size in bytes of every file below a folder."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def ms(seconds: float) -> str:
    """Return a time as text for people."""
    return f"{1000 * seconds:,.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _highest() -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


@contextmanager
def requests(verbs: Iterable[str]) -> Iterator[list[str]]:
    """Record calls of the storage; on object storage each is a request.

    Nested calls are not recorded, such as the put by which a local folder swaps a file.
    """
    made: list[str] = []
    within = threading.local()
    kept = {name: getattr(LocalStore, name) for name in verbs}

    def counting(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object, **named: object) -> object:
            if getattr(within, "call", False):
                return method(*given, **named)
            made.append(name)
            within.call = True
            try:
                return method(*given, **named)
            finally:
                within.call = False

        return counted

    for name, method in kept.items():
        setattr(LocalStore, name, counting(name, method))
    try:
        yield made
    finally:
        for name, method in kept.items():
            setattr(LocalStore, name, method)
