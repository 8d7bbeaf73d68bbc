"""Several requests to the storage at the same time: almost all of the time of a request is waiting for the answer."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 8
"""How many requests wait at the same time, where a caller has no reason for another number."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def concurrently(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    at_once: int = AT_ONCE,
    progress: Callable[[int, int], object] | None = None,
) -> list[Result]:
    """Call `work` with each item, several at the same time, and return the results in the order of the items.

    `work` may use only what several threads may use: stores, and objects of its own. After an error the items that were
    begun end, and then the error of the first item that failed is raised.

    Args:
        work: The function.
        items: The items; a single item takes no thread, which would cost more than it saves.
        at_once: How many items at the same time; 1 for a local disk, where a request takes less time than a thread.
        progress: Called after each item with the number of items that are done and the number of all items.
    """
    items = list(items)
    threads = min(at_once, len(items))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        results: list[Result] = []
        # A pool starts no thread before it gets the first item.
        for result in pool.map(work, items) if threads > 1 else map(work, items):
            results.append(result)
            if progress is not None:
                progress(len(results), len(items))
        return results
