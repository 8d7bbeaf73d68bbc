"""Which recorded writes a commit of the repository publishes, drops or refuses.

Each commit says which writes are closed: published, so `main` has their rows; or dropped, so they will never be
published. A commit is made by one put in the log of `main`, and refused when the log moved. So a write is published at
most once, and of two writes that exclude each other only one is published:

- a write that is closed stays closed
- an append is refused when `main` has the rows of another append of the same work (same candidate, table, output and
  partitions) that it does not replace, by a publication or because somebody merged them; when the append is published,
  it drops waiting appends of the same work
- of two such appends that one commit would publish, the commit is refused
- a write that replaces rows drops older writes of the same work
- a write whose rows a later attempt took back on the branch is dropped when that attempt is published

Example: run `r1` appends as write 1. Its re-execution `r2` starts anew and appends the same as write 2. Whichever is
published first drops the other. A retry of `r1` as write 3 `replaces` 1: its branch has no rows of write 1, so 3 may
be published after 1, and drops 1 when that still waits.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

from lance_dagster.errors import ConflictError
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.writes import CandidateWrites, RecordedWrite


@dataclass(frozen=True, slots=True)
class ClosedWrites:
    """The recorded writes of one table that a commit has closed.

    Attributes:
        published: The numbers of writes whose rows the commit's version of the table has.
        dropped: The numbers of writes that will never be published: discarded, replaced, superseded or withdrawn.
    """

    published: NumberSet = field(default_factory=NumberSet)
    dropped: NumberSet = field(default_factory=NumberSet)

    def __contains__(self, number: object) -> bool:
        """Return whether a write is closed."""
        return number in self.published or number in self.dropped

    @property
    def first_open(self) -> int:
        """The smallest number that is not closed; no smaller number waits."""
        return (self.published | self.dropped).first_gap


NONE_CLOSED = ClosedWrites()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteChanges:
    """The recorded writes that a commit closes.

    Attributes:
        publish: The writes whose rows the commit brings to `main`.
        drop: The writes that will never be published.
        related: Returns the recorded writes of a candidate. It is called at each attempt to commit, after the newest
            commit was read, so that it returns each write that this commit has published.
        is_merged: Tells whether somebody merged the branch of an open write into `main` without a publication.
        withdraw: By table id, the published writes whose rows a commit takes back, because it restores an older version
            of the table. Another write may publish the same rows again.
        bring_back: By table id, the withdrawn writes whose rows a commit brings back, because it reverts the commit
            that took them back.
    """

    publish: tuple[RecordedWrite, ...] = ()
    drop: tuple[RecordedWrite, ...] = ()
    related: Callable[[str], CandidateWrites] = lambda _: CandidateWrites()
    is_merged: Callable[[RecordedWrite], bool] = lambda _: False
    withdraw: Mapping[str, NumberSet] = field(default_factory=dict)
    bring_back: Mapping[str, NumberSet] = field(default_factory=dict)

    def apply(self, closed: Mapping[str, ClosedWrites]) -> dict[str, ClosedWrites]:
        """Return the closed writes after a commit, by table id, of the tables in which the commit closes writes.

        Args:
            closed: The closed writes of the newest commit.

        Raises:
            ConflictError: A write was dropped meanwhile; or `main` has, or may have, the rows of another append of the
                same work.
        """
        # Only changes are written to the first mapping; the closed writes of most tables are not even read.
        changed = ChainMap[str, ClosedWrites]({}, cast("MutableMapping[str, ClosedWrites]", closed))
        for table_id, withdrawn in self.withdraw.items():
            before = changed.get(table_id, NONE_CLOSED)
            changed[table_id] = ClosedWrites(before.published - withdrawn, before.dropped | withdrawn)
        for table_id, restored in self.bring_back.items():
            before = changed.get(table_id, NONE_CLOSED)
            changed[table_id] = ClosedWrites(before.published | restored, before.dropped - restored)
        new_writes = [write for write in self.publish if write.number not in _of(changed, write).published]
        candidates = dict.fromkeys(write.request.candidate for write in new_writes)
        related = {candidate: self.related(candidate) for candidate in candidates}
        for write in new_writes:
            self._refuse(write, related[write.request.candidate], changed)
            _refuse_second_append(write, new_writes, related[write.request.candidate].writes)
        # A branch also has the commits of earlier attempts, and lacks the rows that a later attempt took back.
        taken_back = {
            (write.table_id, number)
            for write in new_writes
            for number in replaced_by(write, related[write.request.candidate].writes)
        }
        new_writes = [write for write in new_writes if (write.table_id, write.number) not in taken_back]
        for write in new_writes:
            before = _of(changed, write)
            changed[write.table_id] = ClosedWrites(before.published | NumberSet.of([write.number]), before.dropped)
        excluded = [
            excluded_write
            for write in new_writes
            for excluded_write in excluded_by(write, related[write.request.candidate].writes)
        ]
        for write in (*self.drop, *excluded):
            before = _of(changed, write)
            if write.number not in before:
                changed[write.table_id] = ClosedWrites(before.published, before.dropped | NumberSet.of([write.number]))
        return dict(changed.maps[0])

    def _refuse(self, write: RecordedWrite, related: CandidateWrites, closed: Mapping[str, ClosedWrites]) -> None:
        if write.number in _of(closed, write).dropped:
            raise ConflictError(
                f"{write} was discarded, or replaced by a newer write, before this publication committed; nothing was "
                "published"
            )
        if write.adds_rows and related.is_collected:
            raise ConflictError(
                f"{write} adds rows that may be published already: {write.request.candidate} has published appends, "
                "and the record of them was collected; nothing was published now: discard "
                f"{write.request.branch}, and start a new run"
            )
        if (published := published_duplicate(write, related.writes, closed, self.is_merged)) is not None:
            raise ConflictError(
                f"{write} adds the rows that run {published.request.run_id} added as {published}, which is published: "
                "they would be there twice; nothing was published"
            )


def _refuse_second_append(
    write: RecordedWrite, new_writes: Iterable[RecordedWrite], related: Iterable[RecordedWrite]
) -> None:
    """Refuse a commit that would publish two appends of the same work, of which neither replaces the other.

    Raises:
        ConflictError: An older write of the commit adds the same rows.
    """
    related_writes = list(related)
    for older in new_writes:
        is_repeated = write.adds_rows and older.adds_rows and older.number < write.number and write.is_same_work(older)
        if is_repeated and older.number not in replaced_by(write, related_writes):
            raise ConflictError(
                f"{write} adds rows that {older} adds too: they would be there twice; nothing was published: discard "
                f"{older.request.branch}, and materialize what {write.request.branch} lacks of it by a new run"
            )


def published_duplicate(
    write: RecordedWrite,
    related: Iterable[RecordedWrite],
    closed: Mapping[str, ClosedWrites],
    is_merged: Callable[[RecordedWrite], bool],
) -> RecordedWrite | None:
    """Return the newest published write whose rows an append would add a second time; None where there is none.

    Args:
        write: The write that is to be published.
        related: All recorded writes of its candidate.
        closed: The closed writes of the newest commit, by table id.
        is_merged: Tells whether somebody merged the branch of an open write into `main` without a publication; such a
            write counts as published.
    """
    if not write.adds_rows:
        return None
    related_writes = list(related)
    replaced = replaced_by(write, related_writes)
    of_table = _of(closed, write)
    attempts = sorted(related_writes, key=lambda attempt: attempt.number, reverse=True)
    for attempt in attempts:
        if attempt.number in {write.number, *replaced} or not attempt.is_same_work(write):
            continue
        # What was withdrawn is dropped, although its branch was merged once.
        if attempt.number in of_table.published or (attempt.number not in of_table.dropped and is_merged(attempt)):
            return attempt
    return None


def replaced_by(write: RecordedWrite, related: Iterable[RecordedWrite]) -> set[int]:
    """Return the numbers of the writes that a write replaces, itself or through the writes that it replaces."""
    requests = {
        related_write.number: related_write.request
        for related_write in related
        if related_write.table_id == write.table_id
    }
    replaced, waiting = set[int](), list(write.request.replaces)
    while waiting:
        number = waiting.pop()
        if number not in replaced:
            replaced.add(number)
            waiting += requests[number].replaces if number in requests else ()
    return replaced


def excluded_by(write: RecordedWrite, related: Iterable[RecordedWrite]) -> list[RecordedWrite]:
    """Return the writes that a publication of a write drops: the writes that it replaces, and attempts at its rows.

    Args:
        write: The write that is to be published.
        related: All recorded writes of its candidate.
    """
    related_writes = list(related)
    replaced = replaced_by(write, related_writes)
    return [
        related_write
        for related_write in related_writes
        if related_write.table_id == write.table_id
        and (
            related_write.number in replaced
            or (
                related_write.is_same_work(write)
                and write.scope.covers(related_write.scope)
                and (write.adds_rows or related_write.number < write.number)
            )
        )
    ]


def _of(closed: Mapping[str, ClosedWrites], write: RecordedWrite) -> ClosedWrites:
    return closed.get(write.table_id, NONE_CLOSED)


def closed_value(closed: Mapping[str, ClosedWrites]) -> dict[str, dict[str, list[list[int]]]]:
    """Return the closed writes of a commit as JSON has them."""
    return {
        table_id: {
            "published": [*map(list, closed_writes.published.runs)],
            "dropped": [*map(list, closed_writes.dropped.runs)],
        }
        for table_id, closed_writes in sorted(closed.items())
        if closed_writes != NONE_CLOSED
    }


def parse_closed(value: Mapping[str, Any]) -> dict[str, ClosedWrites]:
    """Parse the closed writes of a commit.

    Raises:
        ValueError: A run of numbers is malformed.
    """
    return {
        table_id: ClosedWrites(NumberSet.of_runs(content["published"]), NumberSet.of_runs(content["dropped"]))
        for table_id, content in value.items()
    }
