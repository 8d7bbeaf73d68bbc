"""Say of every file of a table whether it is named, waits, may be about to be named, or is garbage."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lance_dagster.history.inventory import Inventory, Kind, Place
from lance_dagster.history.marking import Found, Mark, Terms
from lance_dagster.store import Entry

_TOGETHER = frozenset({Kind.DATA, Kind.BLOB, Kind.INDEX})
"""What consists of several files: as young as the youngest of them."""


@dataclass(slots=True)
class Judged:
    """The files that no version that stays names, by what becomes of them."""

    garbage: dict[Kind, list[Entry]] = field(default_factory=dict)
    waiting: dict[Kind, list[Entry]] = field(default_factory=dict)
    young: dict[Kind, list[Entry]] = field(default_factory=dict)

    @property
    def files(self) -> Iterator[Entry]:
        """Everything that is garbage."""
        for entries in self.garbage.values():
            yield from entries


def judge(inventory: Inventory, mark: Mark, terms: Terms, settled: Sequence[Found]) -> Judged:
    """Sort files by what becomes of them.

    Args:
        inventory: Everything there is.
        mark: What versions name.
        terms: How old is old enough.
        settled: Versions that expired long enough ago.
    """
    judged = Judged()
    over = terms.now - terms.grace
    youngest: dict[str, float] = {}
    for kind in _TOGETHER:
        for entry, place in inventory.files.get(kind, ()):
            youngest[place.name] = max(entry.modified, youngest.get(place.name, entry.modified))
    for kind, files in inventory.files.items():
        for entry, place in files:
            if _named(mark.by_kept.has, entry, place):
                continue
            old = youngest.get(place.name, entry.modified) <= over
            if terms.settling and _named(mark.by_expired.has, entry, place):
                judged.waiting.setdefault(kind, []).append(entry)
            else:
                (judged.garbage if old else judged.young).setdefault(kind, []).append(entry)
    hints = [hint for branch in mark.dead for hint in inventory.line(branch).hints if hint.modified <= over]
    judged.garbage[Kind.HINT] = hints
    judged.garbage[Kind.VERSION] = [found.entry for found in settled]
    return judged


def _named(has: Callable[[str], bool], entry: Entry, place: Place) -> bool:
    return has(place.name) or (place.kind is Kind.BLOB and has(entry.key))
