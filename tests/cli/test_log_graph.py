"""Histories drawn as lanes."""

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from lance_dagster.cli.log_command import Cells, draw, lanes_width

History = list[tuple[str, tuple[str, ...]]]


def text(cells: Cells) -> str:
    """A line as text."""
    return "".join(cells.get(place, (" ", 0))[0] for place in range(lanes_width(cells)))


def drawn(history: History) -> list[str]:
    """All lines, with the names of versions."""
    lines = []
    for (name, _), each in zip(history, draw(history), strict=True):
        lines += [*map(text, each.above), f"{text(each.line)} {name}", *map(text, each.below)]
    return lines


@pytest.mark.parametrize(
    "history,lines",
    [
        ([], []),
        ([("c", ("b",)), ("b", ("a",)), ("a", ())], ["* c", "* b", "* a"]),
        ([("c", ("b",))], ["* c"]),
        ([("b", ()), ("a", ())], ["* b", "", "* a"]),
        (
            [("m", ("a", "b")), ("b", ("a",)), ("a", ())],
            ["* m", "|\\", "| * b", "|/", "* a"],
        ),
        (
            [("m", ("b", "c")), ("b", ("a",)), ("c", ("a",)), ("a", ())],
            ["* m", "|\\", "* | b", "| * c", "|/", "* a"],
        ),
        (
            [("m", ("b", "x")), ("b", ("a",)), ("x", ()), ("a", ())],
            ["* m", "|\\", "* | b", "| * x", "* a"],
        ),
        (
            [("m", ("b", "x")), ("b", ()), ("x", ())],
            ["* m", "|\\", "* | b", " /", "* x"],
        ),
        (
            [("n", ("m", "y")), ("m", ("b", "x")), ("y", ("b",)), ("x", ("b",)), ("b", ())],
            ["* n", "|\\", "* | m", "|\\ \\", "| | * y", "| * | x", "|/ /", "|/", "* b"],
        ),
        (
            [("n", ("m", "y")), ("m", ("b", "x")), ("y", ("b",)), ("b", ("a",)), ("x", ("a",)), ("a", ())],
            ["* n", "|\\", "* | m", "|\\ \\", "| | * y", "| |/", "|/|", "* | b", "| * x", "|/", "* a"],
        ),
        (
            [
                ("p", ("n", "z")),
                ("n", ("m", "y")),
                ("m", ("b", "x")),
                ("z", ("b",)),
                ("b", ("a",)),
                ("y", ("a",)),
                ("x", ("a",)),
                ("a", ()),
            ],
            [
                "* p",
                "|\\",
                "* | n",
                "|\\ \\",
                "* | | m",
                "|\\ \\ \\",
                "| | | * z",
                "| |_|/",
                "|/| |",
                "* | | b",
                "| | * y",
                "| * | x",
                "|/ /",
                "|/",
                "* a",
            ],
        ),
        (
            [("o", ("a", "b", "c")), ("c", ("a",)), ("b", ("a",)), ("a", ())],
            ["* o", "|\\", "|\\ \\", "| * | c", "| | * b", "|/ /", "|/", "* a"],
        ),
    ],
)
def test_lanes_begin_cross_and_join(history: History, lines: list[str]) -> None:
    """As in `git log --graph`, a merge begins a lane, and lanes that lead to the same version are joined."""
    assert lines == drawn(history)


@st.composite
def histories(draw_: st.DrawFn) -> History:
    """Up to 15 versions, each before its parents; a version has up to three parents."""
    size = draw_(st.integers(0, 15))
    parents = [
        draw_(st.lists(st.integers(0, node - 1), max_size=3, unique=True)) if node else [] for node in range(size)
    ]
    return [(str(node), tuple(map(str, parents[node]))) for node in reversed(range(size))]


def ends(cells: dict[int, str]) -> tuple[int, int]:
    """The columns in which a lane enters a line from above and leaves it below."""
    left, right = min(cells), max(cells)
    if cells[right] == "/":
        return right + 1, left - 1
    return (left - 1, left + 1) if cells[left] == "\\" else (left, left)


def rows(history: History) -> Iterator[tuple[Cells, str, dict[int, dict[int, str]]]]:
    """Each line with its version, if any, and the characters of each lane in it."""
    for (name, _), each in zip(history, draw(history), strict=True):
        lines = [*((cells, "") for cells in each.above), (each.line, name), *((cells, "") for cells in each.below)]
        for cells, version in lines:
            lanes: dict[int, dict[int, str]] = {}
            for place, (character, lane) in cells.items():
                lanes.setdefault(lane, {})[place] = character
            yield cells, version, lanes


def traced(history: History) -> set[tuple[str, str]]:
    """The connections between versions, found by following each lane from line to line."""
    edges: set[tuple[str, str]] = set()
    # For each lane: the column in which it leaves the line, and the version that it comes from.
    under_way: dict[int, tuple[int, str]] = {}
    before = (0, "")
    for cells, name, lanes in rows(history):
        node = next((place for place, (character, _) in cells.items() if character == "*"), None)
        arrived = {lane: at for lane, at in under_way.items() if lane not in lanes}
        assert all(at == node for at, _ in arrived.values() if name), "a lane ends beside the version"
        now: dict[int, tuple[int, str]] = {}
        for lane, own in lanes.items():
            above, below = ends(own)
            at, origin = under_way.get(lane, (above, "") if own == {node: "*"} else before)
            assert at == above, "a lane is torn, or begins beside a merge"
            if below == node and own == {node: "*"}:
                edges |= {(origin, name)} if origin else set()
                edges |= {(start, name) for _, start in arrived.values()}
                origin = name
                before = (node, name)
            now[lane] = below, origin
            if name and not dict(history)[name] and lane in now and own == {node: "*"}:
                del now[lane]
        under_way = now if name else {**now, **{lane: at for lane, at in arrived.items() if at[1]}}
    return edges


@given(histories())
def test_every_line_leads_to_a_parent(history: History) -> None:
    """Lanes have no gaps, and connect a version with its parents and with nothing else."""
    assert {(name, parent) for name, parents in history for parent in parents} == traced(history)
