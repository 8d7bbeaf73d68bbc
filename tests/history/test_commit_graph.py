"""Topological orders and shortened edges of histories that are mappings from a node to its parents."""

from random import Random

from hypothesis import given, strategies as st

from lance_dagster.history.commit_graph import simplified_parents, topological_order, walk

History = dict[int, tuple[int, ...]]

#   7
#   |\
#   5 6
#   |\|
#   3 4
#    \|
#     1
DIAMOND: History = {7: (5, 6), 6: (4,), 5: (3, 4), 4: (1,), 3: (1,), 1: ()}


def by_number(node: int) -> tuple[float, ...]:
    """The rank of a node is its number."""
    return (node,)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Up to 12 nodes, each with up to three older parents."""
    size = draw(st.integers(1, 12))
    choose = [
        st.lists(st.integers(0, node - 1), max_size=3, unique=True) if node else st.just([]) for node in range(size)
    ]
    return {node: tuple(draw(parents)) for node, parents in enumerate(choose)}


def ancestors(history: History, node: int) -> set[int]:
    """A node and all its ancestors."""
    return {node}.union(*(ancestors(history, parent) for parent in history[node]))


def test_everything_is_walked_once_newest_first() -> None:
    """Each node is walked once, however many paths lead to it."""
    assert [7, 6, 5, 4, 3, 1] == walk(7, DIAMOND.__getitem__, by_number, lambda _: True)


def test_a_walk_ends_where_it_is_told_to() -> None:
    """A refused node is not returned, and its parents are not looked up."""
    looked_at: list[int] = []

    def parents(node: int) -> tuple[int, ...]:
        looked_at.append(node)
        return DIAMOND[node]

    assert [7, 6, 5] == walk(7, parents, by_number, lambda node: node > 4)
    assert [7, 6, 5] == looked_at


@given(histories(), st.randoms(use_true_random=False))
def test_a_node_comes_before_its_parents_whatever_the_clocks_say(history: History, random: Random) -> None:
    """This holds for ranks in any order, with each node once."""
    ranks = {node: (random.random(),) for node in history}
    order = topological_order(history, history.__getitem__, ranks.__getitem__)
    assert sorted(history) == sorted(order)
    place = {node: at for at, node in enumerate(order)}
    assert all(place[node] < place[parent] for node, parents in history.items() for parent in parents)


@given(histories())
def test_true_clocks_are_followed(history: History) -> None:
    """If ranks fit the history, the order follows the ranks, and the walk has the same order."""
    newest = max(history)
    assert sorted(history, reverse=True) == topological_order(history, history.__getitem__, by_number)
    reached = sorted(ancestors(history, newest), reverse=True)
    assert reached == walk(newest, history.__getitem__, by_number, lambda _: True)


def test_a_circle_does_not_hold_up_the_rest() -> None:
    """A cycle is damage, and must not make a walk endless."""
    assert [3, 1] == topological_order([3, 2, 1, 0], {3: (1,), 2: (0,), 1: (), 0: (2,)}.__getitem__, by_number)
    assert [2, 0] == walk(2, {2: (0,), 0: (2,)}.__getitem__, by_number, lambda _: True)


@given(histories(), st.data())
def test_shortened_edges_lead_to_the_same_ancestors(history: History, data: st.DataObject) -> None:
    """By its edges a kept node reaches exactly its kept ancestors."""
    kept = data.draw(st.sets(st.sampled_from(sorted(history))))
    order = topological_order(history, history.__getitem__, by_number)
    edges = simplified_parents(order, history.__getitem__, kept.__contains__)
    assert kept == set(edges)
    for node in edges:
        assert ancestors(history, node) & kept == ancestors(edges, node)


def test_an_edge_that_another_way_makes_needless_is_left_out() -> None:
    """Node 7 reaches 1 through 5, but keeps its own parents."""
    kept = {7, 5, 3, 1}
    assert {7: (5,), 5: (3,), 3: (1,), 1: ()} == simplified_parents(
        [7, 6, 5, 4, 3, 1], DIAMOND.__getitem__, kept.__contains__
    )
    assert {2: (1, 0), 1: (0,), 0: ()} == simplified_parents(
        [2, 1, 0], {2: (1, 0), 1: (0,), 0: ()}.__getitem__, {0, 1, 2}.__contains__
    )


def test_parents_beyond_the_order_stay() -> None:
    """These parents exist, but are not shown."""
    assert {7: (5, 6), 6: (4,)} == simplified_parents([7, 6], DIAMOND.__getitem__, {7, 6}.__contains__)
