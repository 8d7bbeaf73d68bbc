"""Orders and shortened edges of a history, given a function that returns the parents of a node. No I/O."""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)
Parents = Callable[[N], Iterable[N]]
Rank = Callable[[N], tuple[float, ...]]


def walk(start: N, parents: Parents[N], rank: Rank[N], go_on: Callable[[N], bool]) -> list[N]:
    """Return a node and its ancestors, each once; of those reached, the one of highest rank comes next.

    The walk ends at the first node that `go_on` refuses, which is not returned.
    """
    found: list[N] = []
    seen = {start}
    reached = [(_lowest_first(rank(start)), 0, start)]
    while reached:
        node = heapq.heappop(reached)[2]
        if not go_on(node):
            break
        found.append(node)
        for parent in parents(node):
            if parent not in seen:
                seen.add(parent)
                heapq.heappush(reached, (_lowest_first(rank(parent)), len(seen), parent))
    return found


def topological_order(nodes: Collection[N], parents: Parents[N], rank: Rank[N]) -> list[N]:
    """Return nodes in an order in which each comes before its parents, and otherwise by rank, highest first.

    Parents that are not among the nodes count for nothing. Nodes that are their own ancestors are left out.
    """
    children = dict.fromkeys(nodes, 0)
    for node in nodes:
        for parent in parents(node):
            if parent in children:
                children[parent] += 1
    ready = [(_lowest_first(rank(node)), place, node) for place, node in enumerate(children) if not children[node]]
    heapq.heapify(ready)
    found: list[N] = []
    while ready:
        node = heapq.heappop(ready)[2]
        found.append(node)
        for parent in parents(node):
            if parent in children:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, (_lowest_first(rank(parent)), len(children) + len(found), parent))
    return found


def simplified_parents(order: Sequence[N], parents: Parents[N], kept: Callable[[N], bool]) -> dict[N, tuple[N, ...]]:
    """Return for each node that is kept the nearest of its ancestors that are kept too.

    Args:
        order: All nodes, each before its parents.
        parents: The parents of a node; those that are not in the order are kept as they are.
        kept: Which nodes stay.
    """
    edges: dict[N, tuple[N, ...]] = {}
    for node in reversed(order):
        direct: dict[N, None] = {}
        led: dict[N, None] = {}
        for parent in parents(node):
            through = parent in edges and not kept(parent)
            (led if through else direct).update(dict.fromkeys(edges[parent] if through else (parent,)))
        # A way through nodes that are left out is drawn only where no other way leads there.
        known = _reached((*direct, *led), edges) if led else frozenset()
        edges[node] = (*direct, *(parent for parent in led if parent not in known and parent not in direct))
    return {node: edges[node] for node in order if kept(node)}


def _reached(starts: Collection[N], edges: Mapping[N, tuple[N, ...]]) -> set[N]:
    """Return what edges lead to from some nodes, those themselves only if another one leads there."""
    found: set[N] = set()
    left = list(starts)
    while left:
        for parent in edges.get(left.pop(), ()):
            if parent not in found:
                found.add(parent)
                left.append(parent)
    return found


def _lowest_first(rank: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-part for part in rank)
