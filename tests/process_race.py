"""Run jobs at the same moment, each in a separate process."""

import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.forked_program import ready_processes

START_SECONDS = 120


def race(job: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a job with each of the arguments at the same time; return the results in the order of the arguments.

    The job has to be a function of a module: the processes share nothing with this one but what is pickled.
    """
    context = ready_processes()
    barrier = context.Barrier(len(arguments))
    with context.Pool(len(arguments), initializer=_meet, initargs=(barrier,)) as pool:
        results = pool.starmap(job, arguments, chunksize=1)
        # Wait for the end of the processes: leaving the block would terminate them, and hang on one that ignores that.
        pool.close()
        pool.join()
        return results


def _meet(barrier: Barrier) -> None:
    # The fork server may have been started while signals were ignored, which its children inherit.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    barrier.wait(START_SECONDS)
