"""Locks of files, with which the writers of one host take turns."""

import fcntl
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack

# Seconds between two looks at a lock: of the writer that is next, and of the others, by how long they have waited. To
# look costs time of the processor, which the writer whose turn it is needs.
_HEAD_PAUSE, _SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0004, 0.003, 0.03


def lock(path: str, until: float, held: ExitStack, meanwhile: Callable[[], object] | None = None) -> bool:
    """Lock a file until `held` is closed, or go on without when the time is over; return whether another one had it.

    Waiting is by asking again and again, since a lock that a stopped process holds must not stop others. The longer a
    writer has waited, the more often it asks, so that it is served before one that came later. The writer with
    something to do `meanwhile` is the head of the queue: it does that first, and then asks all the time.
    """
    started, waited = time.monotonic(), False
    descriptor = _lock_file(path)
    if descriptor is None:
        return False
    held.callback(os.close, descriptor)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if meanwhile is not None and not waited:
                meanwhile()
            waited = True
        except OSError:
            # The file system has no locks.
            return waited
        else:
            return waited
        now = time.monotonic()
        if now > until:
            return waited
        longest = _LONGEST_PAUSE / (1 + (now - started) / _LONGEST_PAUSE)
        pause = _HEAD_PAUSE if meanwhile is not None else max(_SHORTEST_PAUSE, longest)
        time.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # no secret depends on it


def _lock_file(path: str) -> int | None:
    """Open a file for a lock, with its folder where that is missing; None where this user may not write."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o666)
    except OSError:
        return None
