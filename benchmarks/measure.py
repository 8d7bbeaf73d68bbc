"""Time two ways of doing one thing in turn, and report how they compare."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How long ours and theirs took, in seconds, medians over the same rounds."""

    what: str
    ours: float
    theirs: float
    note: str = ""

    @property
    def ratio(self) -> float:
        """How many times faster ours is; below 1, slower."""
        return self.theirs / self.ours

    def row(self) -> str:
        """Return a line of a Markdown table."""
        ours, theirs = (f"{1000 * seconds:.2f} ms" for seconds in (self.ours, self.theirs))
        return f"| {self.what} | {ours} | {theirs} | {self.ratio:.2f} | {self.note} |"


def compare(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int, note: str = ""
) -> Comparison:
    """Run both once to warm up, then in turn, so that a machine that slows down slows both."""
    ours()
    theirs()
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for place, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            run()
            taken[place].append(time.perf_counter() - start)
    mine, other = map(statistics.median, taken)
    return Comparison(what=what, ours=mine, theirs=other, note=note)


def sizes(folder: Path) -> dict[Path, int]:
    """Return the size in bytes of every file below a folder."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
