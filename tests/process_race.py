"""Run jobs at the same moment, each in a process of its own."""

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
        return pool.starmap(job, arguments, chunksize=1)


def _meet(barrier: Barrier) -> None:
    barrier.wait(START_SECONDS)
