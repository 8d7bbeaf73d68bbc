"""Run jobs at the same moment, each in a process of its own."""

import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.forked_program import ready_processes

START_SECONDS = 120


def race(job: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a job with each of the arguments, all at once; the results in the order of the arguments.

    The job has to be a function of a module: the processes share nothing with this one but what is pickled.
    """
    context = ready_processes()
    barrier = context.Barrier(len(arguments))
    with context.Pool(len(arguments), initializer=_meet, initargs=(barrier,)) as pool:
        results = pool.starmap(job, arguments, chunksize=1)
        # Their end is waited for. Leaving the block would terminate them, and wait for ever for one that ignores that.
        pool.close()
        pool.join()
        return results


def _meet(barrier: Barrier) -> None:
    # The server may have been started while signals were ignored, and hands that on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    barrier.wait(START_SECONDS)
