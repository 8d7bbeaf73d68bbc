"""Graph algorithms over a history, given a function that returns the parents of a node. Pure.

Nodes are any hashable values, so the algorithms are tested on dict literals. Parents may be unknown to the caller:
history that was cleaned up just ends.
"""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)
Parents = Callable[[N], Iterable[N]]
Rank = Callable[[N], tuple[float, ...]]


def walk(start: N, parents: Parents[N], rank: Rank[N], go_on: Callable[[N], bool]) -> list[N]:
    """Return a node and its ancestors, each once; of the nodes reached so far, the node of highest rank comes next.

    The walk ends at the first node for which `go_on` is false; that node is not returned.
    """
    ordered: list[N] = []
    visited = {start}
    reached = [(_lowest_first(rank(start)), 0, start)]
    while reached:
        node = heapq.heappop(reached)[2]
        if not go_on(node):
            break
        ordered.append(node)
        for parent in parents(node):
            if parent not in visited:
                visited.add(parent)
                # The count breaks ties, so nodes of equal rank come in the order they were reached and are never
                # compared.
                heapq.heappush(reached, (_lowest_first(rank(parent)), len(visited), parent))
    return ordered


def topological_order(nodes: Collection[N], parents: Parents[N], rank: Rank[N]) -> list[N]:
    """Return nodes sorted topologically, each before its parents, and otherwise by rank, highest first.

    Parents that are not among the nodes are ignored. Nodes on a cycle are left out.
    """
    children = dict.fromkeys(nodes, 0)
    for node in nodes:
        for parent in parents(node):
            if parent in children:
                children[parent] += 1
    # Kahn's algorithm with a heap: among the nodes whose children are all placed, the node of highest rank is next.
    ready = [(_lowest_first(rank(node)), place, node) for place, node in enumerate(children) if not children[node]]
    heapq.heapify(ready)
    ordered: list[N] = []
    while ready:
        node = heapq.heappop(ready)[2]
        ordered.append(node)
        for parent in parents(node):
            if parent in children:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, (_lowest_first(rank(parent)), len(children) + len(ordered), parent))
    return ordered


def simplified_parents(order: Sequence[N], parents: Parents[N], is_kept: Callable[[N], bool]) -> dict[N, tuple[N, ...]]:
    """Simplify a history to some of its nodes: return for each kept node its nearest kept ancestors.

    In the history `d -> c -> b -> a`, of which only `d` and `a` are kept, `a` becomes the parent of `d`.

    Args:
        order: All nodes, each before its parents.
        parents: The parents of a node; parents that are not in the order stay as they are.
        is_kept: Tells which nodes stay.
    """
    edges: dict[N, tuple[N, ...]] = {}
    # Oldest first, so that the edges of the parents are known when a child needs them.
    for node in reversed(order):
        direct: dict[N, None] = {}
        led: dict[N, None] = {}
        for parent in parents(node):
            through = parent in edges and not is_kept(parent)
            (led if through else direct).update(dict.fromkeys(edges[parent] if through else (parent,)))
        # An edge through a node that was left out is redundant where another path leads to the same ancestor.
        reachable = _reached((*direct, *led), edges) if led else frozenset()
        edges[node] = (*direct, *(parent for parent in led if parent not in reachable and parent not in direct))
    return {node: edges[node] for node in order if is_kept(node)}


def _reached(starts: Collection[N], edges: Mapping[N, tuple[N, ...]]) -> set[N]:
    """Return the nodes reachable from some nodes by at least one edge."""
    reachable: set[N] = set()
    remaining = list(starts)
    while remaining:
        for parent in edges.get(remaining.pop(), ()):
            if parent not in reachable:
                reachable.add(parent)
                remaining.append(parent)
    return reachable


def _lowest_first(rank: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-part for part in rank)
