"""Walk the history of a version: along first parents, or through merges too.

Along first parents a version is read when it is asked for, so the newest ten of many thousand cost ten reads.

Through merges, a version has to come before its parents, and which versions have a parent in common is known only
when all of them were read. So what is asked for is read newest first, and a bit further: as far as clocks of different
machines may be apart. What was read is then put in order.

Since a time: dates decide where to end, and another program may have had a clock that lies. So, as in git, the walk
ends only after several versions in a row that are too old.

The first version of a branch repeats the one it was forked from, which is shown in its place while it is there.

A version that a clean-up removed is not there to be shown. The one that was made from it says so (`Version.cut`), and
the walk goes on behind the gap.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.transaction import MERGE
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.graph import simplified_parents, topological_order, walk
from lance_dagster.history.lineage import lineage_of
from lance_dagster.history.versions import State, Version

CLOCK_SKEW_SECONDS = 60.0
"""By how many seconds the clocks of writers may differ without anything being left out or put in a wrong order."""

DATE_SLOP = 5
"""So many versions in a row may be dated too old without ending a log since a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which versions of a log to show: those for which all that is given holds.

    `properties` are keys with the value wanted, or None for any. `committer` is compared whole, `message` is text the
    message contains, in any case. `merges` is True for merges only, False for everything but merges. `since` and
    `until` are included; without a zone they are UTC. A log ends where more than five versions in a row are dated
    before `since`; versions beyond are not looked at.
    """

    properties: Mapping[str, str | None] = field(default_factory=dict)
    committer: str | None = None
    message: str | None = None
    merges: bool | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __call__(self, version: Version) -> bool:
        """Tell whether a version is shown."""
        return (
            all(_has(version, key, value) for key, value in self.properties.items())
            and (self.committer is None or self.committer == version.committer)
            and (self.message is None or self.message.casefold() in (version.message or "").casefold())
            and (self.merges is None or self.merges == (MERGE in version.properties))
            and (self.since is None or _utc(self.since) <= version.committed_at)
            and (self.until is None or version.committed_at <= _utc(self.until))
        )

    def end(self) -> Callable[[Version], bool]:
        """Return what tells, asked of one version after the other, whether one is so old that none before it is shown.

        One that is dated too old may have been committed by a clock that was wrong, so several have to be.
        """
        since = None if self.since is None else _utc(self.since).timestamp() - CLOCK_SKEW_SECONDS
        in_a_row = 0

        def ended(version: Version) -> bool:
            nonlocal in_a_row
            in_a_row = in_a_row + 1 if since is not None and version.committed_at.timestamp() < since else 0
            return in_a_row > DATE_SLOP

        return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which part of a history is asked for: what `after` does not contain, at most `limit`, those `only` lets through.

    Raises:
        InvalidInputError: The limit is negative.
    """

    after: State | None = None
    limit: int | None = None
    only: LogFilter = field(default_factory=LogFilter)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.limit is not None and self.limit < 0:
            raise InvalidInputError(f"a limit is a number of versions, not {self.limit}")


def first_parents(ancestry: Ancestry, start: VersionRef, question: LogQuery) -> list[Version]:
    """Return a version and those it was made from, newest first, along first parents and across forks."""
    line = _line(ancestry, start, question)
    return list(islice(line if question.only == LogFilter() else filter(question.only, line), question.limit))


def all_parents(
    ancestry: Ancestry, start: VersionRef, question: LogQuery
) -> list[tuple[Version, tuple[Version | VersionRef, ...]]]:
    """Return a version and all it contains, each once and before its parents, otherwise newest first.

    Each comes with the next older versions of those that are shown, to draw lines to, or just their names where they
    are there but beyond the limit.
    """
    excluded = _excluded(ancestry, question.after)

    def parents(place: VersionRef) -> tuple[VersionRef, ...]:
        found = (ancestry.before(place), ancestry.merged(ancestry.describe(place)))
        known = (ancestry.repeated(parent) for parent in found if parent is not None)
        return tuple(dict.fromkeys(parent for parent in known if not excluded(parent)))

    def rank(place: VersionRef) -> tuple[float, ...]:
        return ancestry.describe(place).committed_at.timestamp(), place.number

    def shown(place: VersionRef) -> bool:
        return question.only(ancestry.describe(place))

    start = ancestry.repeated(start)
    if question.limit == 0 or excluded(start):
        return []
    read = walk(start, parents, rank, _far_enough(ancestry, question))
    order = topological_order(read, parents, rank)
    edges = simplified_parents(order, parents, shown)
    chosen = list(edges)[: question.limit]
    known = {place: ancestry.describe(place) for place in chosen}
    return [(known[place], tuple(known.get(parent, parent) for parent in edges[place])) for place in chosen]


def _line(ancestry: Ancestry, start: VersionRef, question: LogQuery) -> Iterator[Version]:
    excluded, after, ended = _excluded(ancestry, question.after), question.after, question.only.end()
    place: VersionRef | None = start
    while place is not None:
        branch, numbers = place.branch, ancestry.numbers(place.branch)
        number = place.number
        for number in reversed(numbers[: bisect_right(numbers, place.number)]):
            # Asked of every one of very many versions, so nothing is made that is not needed.
            if after is not None and excluded(VersionRef(branch, number)):
                return
            if number == numbers[0] and ancestry.repeated(VersionRef(branch, number)).branch != branch:
                break
            version = ancestry.versions.describe_number(branch, number, numbers)
            if ended(version):
                return
            yield version
        place = ancestry.before(VersionRef(branch, number))


def _far_enough(ancestry: Ancestry, question: LogQuery) -> Callable[[VersionRef], bool]:
    """Return whether to go on reading: until the limit is reached, and as far as clocks may be apart."""
    found = 0
    last: float | None = None
    ended = question.only.end()

    def go_on(place: VersionRef) -> bool:
        nonlocal found, last
        version = ancestry.describe(place)
        if ended(version):
            return False
        if last is not None:
            return version.committed_at.timestamp() >= last - CLOCK_SKEW_SECONDS
        found += question.only(version)
        if question.limit is not None and found >= question.limit:
            last = version.committed_at.timestamp()
        return True

    return go_on


def _excluded(ancestry: Ancestry, after: State | None) -> Callable[[VersionRef], bool]:
    """Return whether a version is contained in another one, itself included."""
    contained = lineage_of(after, ancestry.refs).contained if after is not None else {}

    def excluded(place: VersionRef) -> bool:
        # The first version of a branch counts as what it repeats.
        return bool(contained) and any(
            contained.get(ancestry.id_of(each.branch) or "", -1) >= each.number
            for each in dict.fromkeys((place, ancestry.fork_of(place)))
        )

    return excluded


def _has(version: Version, key: str, value: str | None) -> bool:
    return key in version.properties and value in (None, version.properties[key])


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
