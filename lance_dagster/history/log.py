"""The log: walk the history of a version along first parents, or through all parents.

Along first parents a version is read only when the caller asks for it, so the ten newest of many thousand versions
cost ten reads.

Through all parents, a version has to come before its parents, and whether two versions share a parent is known only
after both were read. So the versions are read newest first, a little further than was asked for: as far as the clocks
of different machines may differ. What was read is then sorted topologically.

A log since a time ends by dates, and the clock of another program may be wrong. As in git, the walk ends only after
several versions in a row that are too old.

The first version of a branch repeats its fork point, which is shown in its place while it exists.

A version that was cleaned up cannot be shown. The version that was made from it says so (`Version.cut`), and the walk
continues behind the gap.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from lance_dagster.format.transaction import MERGE
from lance_dagster.format.validation import check_class, check_flag, check_string, check_string_mapping, optional_limit
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.commit_graph import simplified_parents, topological_order, walk
from lance_dagster.history.lineage import lineage_of
from lance_dagster.history.versions import State, Version

CLOCK_SKEW_SECONDS = 60.0
"""Seconds by which the clocks of writers may differ without a version being left out or sorted wrongly."""
DATE_SLOP = 5
"""The number of versions in a row that may be dated too old without ending a log since a time; git calls it slop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """The filter of a log: it shows the versions that meet every condition given.

    A log ends after more than five versions in a row that are dated over a minute before `since`; older versions are
    not looked at.

    Attributes:
        properties: Keys with the wanted value, or None for any value.
        committer: The whole name of the committer.
        message: Text that the message contains, in any case.
        merges: True for merges only, False for everything but merges, None for both.
        since: The earliest time, included; UTC without a zone.
        until: The latest time, included; UTC without a zone.

    Raises:
        InvalidInputError: A condition is of another type.
    """

    properties: Mapping[str, str | None] = field(default_factory=dict)
    committer: str | None = None
    message: str | None = None
    merges: bool | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse conditions of other types: a committer that is not a string, for example, would match no version."""
        check_string_mapping("properties", self.properties, removing=True)
        for what in ("committer", "message"):
            if (text := getattr(self, what)) is not None:
                check_string(what, text)
        if self.merges is not None:
            check_flag("merges", self.merges)
        for what in ("since", "until"):
            if (time := getattr(self, what)) is not None:
                check_class(what, time, datetime, "datetime(2026, 1, 31, tzinfo=UTC)")

    def __call__(self, version: Version) -> bool:
        """Tell whether a version meets the conditions."""
        return (
            all(
                key in version.properties and value in (None, version.properties[key])
                for key, value in self.properties.items()
            )
            # The name is compared whole: a part of a name would also match other people.
            and (self.committer is None or self.committer == version.committer)
            and (self.message is None or self.message.casefold() in (version.message or "").casefold())
            and (self.merges is None or self.merges == (MERGE in version.properties))
            and (self.since is None or _utc(self.since) <= version.committed_at)
            and (self.until is None or version.committed_at <= _utc(self.until))
        )

    def end(self) -> Callable[[Version], bool]:
        """Return a stateful test, to be called with the versions in order, that tells whether the log ends there.

        A single version that is dated too old may come from a wrong clock, so it takes several in a row.
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
    """The part of a history to return.

    Attributes:
        after: Leave out everything that this version contains.
        limit: The greatest number of versions to return; None for all.
        only: The filter that a version has to meet.

    Raises:
        InvalidInputError: The limit is negative.
    """

    after: State | None = None
    limit: int | None = None
    only: LogFilter = field(default_factory=LogFilter)

    def __post_init__(self) -> None:
        """Refuse a limit that is not a number of versions."""
        object.__setattr__(self, "limit", optional_limit("the limit", self.limit))


def first_parents(ancestry: Ancestry, start: VersionRef, query: LogQuery) -> list[Version]:
    """Return a version and its ancestors along first parents, newest first, across fork points."""
    walked = _first_parent_walk(ancestry, start, query)
    return list(islice(walked if query.only == LogFilter() else filter(query.only, walked), query.limit))


def all_parents(
    ancestry: Ancestry, start: VersionRef, query: LogQuery
) -> list[tuple[Version, tuple[Version | VersionRef, ...]]]:
    """Return a version and all its ancestors, each once and before its parents, otherwise newest first.

    Each comes with its nearest ancestors that are shown, for drawing a graph; ancestors beyond the limit come as names
    only.
    """
    excluded = _excluded(ancestry, query.after)

    def parents(place: VersionRef) -> tuple[VersionRef, ...]:
        candidates = (ancestry.before(place), ancestry.merged(ancestry.describe(place)))
        places = (ancestry.repeated(parent) for parent in candidates if parent is not None)
        return tuple(dict.fromkeys(parent for parent in places if not excluded(parent)))

    def rank(place: VersionRef) -> tuple[float, ...]:
        return ancestry.describe(place).committed_at.timestamp(), place.number

    def shown(place: VersionRef) -> bool:
        return query.only(ancestry.describe(place))

    start = ancestry.repeated(start)
    if query.limit == 0 or excluded(start):
        return []
    walked = walk(start, parents, rank, _far_enough(ancestry, query))
    # Times alone do not sort a history: a child may be dated before its parent where clocks differ.
    order = topological_order(walked, parents, rank)
    edges = simplified_parents(order, parents, shown)
    chosen = list(edges)[: query.limit]
    versions = {place: ancestry.describe(place) for place in chosen}
    return [(versions[place], tuple(versions.get(parent, parent) for parent in edges[place])) for place in chosen]


def _first_parent_walk(ancestry: Ancestry, start: VersionRef, query: LogQuery) -> Iterator[Version]:
    excluded, after, ended = _excluded(ancestry, query.after), query.after, query.only.end()
    place: VersionRef | None = start
    while place is not None:
        branch, numbers = place.branch, ancestry.numbers(place.branch)
        number = place.number
        for number in reversed(numbers[: bisect_right(numbers, place.number)]):
            # This runs once for each of very many versions, so no object is made without need.
            if after is not None and excluded(VersionRef(branch, number)):
                return
            # The fork point is shown in place of its copy, once.
            if number == numbers[0] and ancestry.repeated(VersionRef(branch, number)).branch != branch:
                break
            version = ancestry.versions.describe_number(branch, number, numbers)
            if ended(version):
                return
            yield version
        place = ancestry.before(VersionRef(branch, number))


def _far_enough(ancestry: Ancestry, query: LogQuery) -> Callable[[VersionRef], bool]:
    """Return a test whether to read on: until the limit is reached, and beyond it as far as clocks may differ."""
    matching = 0
    limit_time: float | None = None
    ended = query.only.end()

    def go_on(place: VersionRef) -> bool:
        nonlocal matching, limit_time
        version = ancestry.describe(place)
        if ended(version):
            return False
        if limit_time is not None:
            # The limit is reached. Versions dated shortly before `limit_time` may still have to be sorted above it.
            return version.committed_at.timestamp() >= limit_time - CLOCK_SKEW_SECONDS
        matching += query.only(version)
        if query.limit is not None and matching >= query.limit:
            limit_time = version.committed_at.timestamp()
        return True

    return go_on


def _excluded(ancestry: Ancestry, after: State | None) -> Callable[[VersionRef], bool]:
    """Return a test whether a version is contained in `after`, which contains itself."""
    contained = lineage_of(after, ancestry.refs).contained if after is not None else {}

    def excluded(place: VersionRef) -> bool:
        # The first version of a branch counts as its fork point.
        return bool(contained) and any(
            contained.get(ancestry.id_of(ref.branch) or "", -1) >= ref.number
            for ref in dict.fromkeys((place, ancestry.fork_of(place)))
        )

    return excluded


def _utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
