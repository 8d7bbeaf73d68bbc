"""Repetition of what failed: after which errors, how many times or for how long, and with which pauses.

Loops that compare and swap are elsewhere: each attempt reads anew what it changes, and decides by what it reads.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lance_dagster.errors import CommitConflictError, LanceDagsterError, PermissionRefusedError, StoreError

_Result = TypeVar("_Result")
# More doublings would exceed what a float can hold, and no limit is reached so late.
_MOST_DOUBLINGS = 60
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""The HTTP statuses after which the same request may be answered later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Full jitter: each pause is a random time below a limit, which doubles after each attempt.

    Callers that failed at the same moment would otherwise come back at the same moment.

    Example: `Pauses(first=0.1, longest=10)` has the limits 0.1, 0.2, 0.4, ... 6.4, 10 and 10 seconds.
    """

    first: float
    longest: float = math.inf

    def drawn(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt; the first attempt is 0."""
        limit = min(self.longest, self.first * 2 ** min(attempt, _MOST_DOUBLINGS))
        return random.uniform(0, limit)  # noqa: S311  # no secret depends on it

    def wait(self, attempt: int) -> None:
        """Wait after an attempt."""
        time.sleep(self.drawn(attempt))


_REQUEST_PAUSES = Pauses(first=0.1, longest=10.0)


def repeated(
    attempt: Callable[[], _Result],
    again: Callable[[LanceDagsterError], bool],
    *,
    times: int | None = None,
    seconds: float = math.inf,
    pauses: Pauses | None = None,
) -> _Result:
    """Call something until it returns, and raise the error of the last call.

    Args:
        attempt: What is called.
        again: Tells whether another call may help after an error of this package; other errors are raised at once.
        times: The most calls.
        seconds: A call that fails after so many seconds is the last call. A pause may delay a call beyond this time.
        pauses: The pauses between two calls; without them, the next call is made at once.
    """
    deadline, number = time.monotonic() + seconds, 0
    while True:
        try:
            return attempt()
        except LanceDagsterError as error:
            number += 1
            if not again(error) or number == times or time.monotonic() > deadline:
                raise
        if pauses is not None:
            pauses.wait(number - 1)


def is_retryable_conflict(error: LanceDagsterError) -> bool:
    """Tell whether an error is a conflict with another commit after which the edit can be made on the new head."""
    return isinstance(error, CommitConflictError) and error.retryable


class TransientError(StoreError):
    """Report a request that failed in a way that may pass: nothing is known about its effect."""


def retried(send: Callable[[], _Result], seconds: float) -> _Result:
    """Repeat a request until it is answered, with full jitter between attempts.

    A write that is repeated may find the object that its first attempt wrote; the caller reads it back.

    Args:
        send: The request; it raises `TransientError` where a repetition may help.
        seconds: After how long the last error is raised. At least one attempt is made.

    Raises:
        PermissionRefusedError: The first answer refused the request, which changed nothing.
        StoreError: The request failed, or was refused after an attempt that may have been done.
    """
    deadline, number = time.monotonic() + seconds, 0
    lost: TransientError | None = None
    while True:
        try:
            return send()
        except PermissionRefusedError as error:
            if lost is None:
                raise
            # A token may expire between two attempts: this attempt changed nothing, but the attempt before may have.
            raise StoreError(
                f"{lost.complaint}; that attempt may have been done, and the next attempt failed: {error}"
            ) from error
        except TransientError as error:
            lost = error
            wait = _REQUEST_PAUSES.drawn(number)
            if time.monotonic() + wait > deadline:
                problem = f"{error.complaint}; gave up after {seconds:g} s of retries"
                raise StoreError(problem, remedy=error.remedy) from error
            time.sleep(wait)
            number += 1
