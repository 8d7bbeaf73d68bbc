r"""Draw a history as lanes of characters, each line of versions in a column of its own.

    *    main@5     a merge: a lane for what was merged begins
    |\
    | *  run/2@4
    * |  main@4
    |/               two lanes wait for the same version, so they become one
    *    main@3

A lane waits for one version. A version is drawn in the lane that waits for it, which then waits for its first parent;
other parents get lanes of their own. Column `n` is character `2n`; what moves from one column to the next is drawn
between them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Cells = dict[int, tuple[str, int]]
"""Characters by their place in a line, each with the number of the lane it belongs to."""


@dataclass(slots=True)
class _Lane:
    awaited: str
    number: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A version's line, and the lines that lead to it and away from it, as cells."""

    above: tuple[Cells, ...]
    line: Cells
    below: tuple[Cells, ...]


def draw(history: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Drawn]:
    """Draw versions, each given by its name and those to lead lines to, every one before these."""
    lanes: list[_Lane] = []
    made = 0
    for name, parents in history:
        waiting = [column for column, lane in enumerate(lanes) if lane.awaited == name]
        if waiting:
            column = waiting[0]
            above = tuple(cells for _ in waiting[1:] for cells in _join(lanes, column, name))
        else:
            # A line without it, so that it does not look like what the version above was made from.
            column, above = len(lanes), (_straight(lanes),) if made else ()
            lanes.append(_Lane(name, made))
            made += 1
        line = {**_straight(lanes), 2 * column: ("*", lanes[column].number)}
        if not parents:
            yield Drawn(above, line, _end(lanes, column))
            continue
        lanes[column].awaited = parents[0]
        below = [_begin(lanes, column, _Lane(parent, made + place)) for place, parent in enumerate(parents[1:])]
        made += len(below)
        yield Drawn(above, line, tuple(below))


def width_of(cells: Cells) -> int:
    """Return how many characters a line takes."""
    return max(cells, default=-1) + 1


def _straight(lanes: Sequence[_Lane]) -> Cells:
    return {2 * column: ("|", lane.number) for column, lane in enumerate(lanes)}


def _join(lanes: list[_Lane], column: int, name: str) -> list[Cells]:
    """Lead the next lane that waits for a version to the first one, and move those right of it to the left."""
    joining = next(other for other in range(column + 1, len(lanes)) if lanes[other].awaited == name)
    number = lanes[joining].number
    first = {
        **_straight(lanes[:joining]),
        **dict.fromkeys(range(2 * column + 3, 2 * joining - 1, 2), ("_", number)),
        **{2 * other - 1: ("/", lanes[other].number) for other in range(joining, len(lanes))},
    }
    del lanes[joining]
    if joining == column + 1:
        return [first]
    return [first, {**_straight(lanes), 2 * column + 1: ("/", number)}]


def _begin(lanes: list[_Lane], column: int, lane: _Lane) -> Cells:
    """Begin a lane beside another one, and move those right of it to the right."""
    cells = {
        **_straight(lanes[: column + 1]),
        **{2 * other + 1: ("\\", lanes[other].number) for other in range(column + 1, len(lanes))},
        2 * column + 1: ("\\", lane.number),
    }
    lanes.insert(column + 1, lane)
    return cells


def _end(lanes: list[_Lane], column: int) -> tuple[Cells, ...]:
    """End a lane, and move those right of it to the left."""
    moving = {2 * other - 1: ("/", lanes[other].number) for other in range(column + 1, len(lanes))}
    cells = {**_straight(lanes[:column]), **moving}
    del lanes[column]
    return (cells,) if moving else ()
