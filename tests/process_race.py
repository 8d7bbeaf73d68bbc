"""Run jobs at the same moment, each in a process of its own."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

START_SECONDS = 120


def race(job: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a job with each of the arguments, all at once; the results in the order of the arguments.

    The job has to be a function of a module: the processes share nothing with this one but what is pickled.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(arguments))
    with context.Pool(len(arguments), initializer=_meet, initargs=(barrier,)) as pool:
        return pool.starmap(job, arguments, chunksize=1)


def _meet(barrier: Barrier) -> None:
    # What the jobs need is loaded before the start, or the first to have loaded it would be done before the last.
    import lance_dagster.table  # noqa: F401

    barrier.wait(START_SECONDS)
