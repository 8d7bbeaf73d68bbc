"""Run jobs in processes of their own, at the same moment or one of them to its death."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Barrier
from typing import Any

START_SECONDS = 120
_LOADED = ["pytest", "lance", "lance_dagster.table", "tests.table_factory", "tests.faults.killed_operations"]


def ready_processes() -> ForkServerContext:
    """A context whose processes have loaded pylance and this package when they start.

    They are forked from a server that loaded both once. That is safe because the server never opens a table: pylance
    has started no thread in it.
    """
    context = multiprocessing.get_context("forkserver")
    # One list for all tests: the server starts with the first process, and reads the list only then.
    context.set_forkserver_preload(_LOADED)
    return context


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
