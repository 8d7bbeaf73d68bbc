"""The rules by which a commit publishes recorded writes and drops others."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lance_dagster import ConflictError
from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.repository.candidates.closed_writes import (
    ClosedWrites,
    WriteChanges,
    closed_value,
    parse_closed,
    published_duplicate,
)
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.repository.candidates.writes import CandidateWrites, RecordedWrite, parse_write, write_bytes
from tests.raising import raises
from tests.repository.write_requests import write_request


def write(number: int, **request: Any) -> RecordedWrite:  # noqa: ANN401  # the fields of a request
    """An append of the asset `orders` by run `r1`, with other values where they are given."""
    return RecordedWrite(
        table_id="t",
        number=number,
        request=write_request(**{"candidate": "r1", "origin": "r1", "branch": "run/r1"} | request),
        id=f"id{number}",
    )


def closed(published: Iterable[int] = (), dropped: Iterable[int] = ()) -> dict[str, ClosedWrites]:
    """The closed writes of the only table."""
    return {"t": ClosedWrites(NumberSet.of(published), NumberSet.of(dropped))}


def committed(
    before: dict[str, ClosedWrites], *publish: RecordedWrite, among: Iterable[RecordedWrite] = ()
) -> dict[str, ClosedWrites]:
    """The closed writes after a commit that publishes writes, where the candidate has these writes."""
    changes = WriteChanges(publish=publish, related=lambda _: CandidateWrites((*publish, *among)))
    return {**before, **changes.apply(before)}


def test_a_published_write_stays_published() -> None:
    """A publication that is repeated changes nothing."""
    assert closed([1]) == committed(closed([1]), write(1))


def test_a_dropped_write_is_refused() -> None:
    """What was discarded is not published by a publication that began before."""
    with pytest.raises(ConflictError, match="was discarded"):
        committed(closed(dropped=[1]), write(1))


@pytest.mark.parametrize("first,second", [(1, 2), (2, 1)])
def test_one_of_two_appends_of_the_same_work_is_published(first: int, second: int) -> None:
    """Whichever is published first drops the other, which is refused afterwards."""
    both = [write(1), write(2, run_id="r2", branch="run/r2")]
    after = committed({}, write(first), among=both)
    assert closed([first], [second]) == after
    with pytest.raises(ConflictError, match="was discarded"):
        committed(after, both[second - 1], among=both)


def test_an_append_recorded_after_the_publication_is_refused() -> None:
    """A re-execution that writes after its duplicate was published would add the same rows."""
    late = write(2, run_id="r2", branch="run/r2")
    assert write(1) == published_duplicate(late, [write(1), late], closed([1]), lambda _: False)
    with pytest.raises(ConflictError, match="twice"):
        committed(closed([1]), late, among=[write(1)])


def test_an_append_that_replaces_a_published_one_is_published() -> None:
    """A retry takes the rows of the earlier attempt back on its branch, also through the attempt in between."""
    second, third = write(2, replaces=(1,)), write(3, replaces=(2,))
    assert closed([1, 3], [2]) == committed(closed([1]), third, among=[write(1), second])


def test_other_partitions_other_candidates_and_other_work_are_no_duplicates() -> None:
    """Only the same candidate, output and partitions make the same rows."""
    others = [write(2, candidate="r9"), write(3, work="lines"), write(4, partitions=("d2",))]
    assert closed([1, 2, 3, 4]) == committed(closed([2, 3, 4]), write(1, partitions=("d1",)), among=others)


def test_a_partial_overlap_is_refused_and_dropped_by_nobody() -> None:
    """An append of two days is no duplicate to drop for an append of one of them, and cannot be published after it."""
    day, days = write(1, partitions=("d1",)), write(2, run_id="r2", partitions=("d1", "d2"))
    after = committed({}, day, among=[days])
    assert closed([1]) == after
    with pytest.raises(ConflictError, match="twice"):
        committed(after, days, among=[day])


def test_one_commit_does_not_publish_the_same_rows_twice() -> None:
    """Two appends that share a day are refused together, and published together where the newer replaces the older."""
    days, day = write(1, partitions=("d1", "d2")), write(2, run_id="r2", partitions=("d2",))
    with pytest.raises(ConflictError, match="write 2 of run/r1"):
        committed({}, days, day)
    assert closed([2], [1]) == committed({}, days, replace(day, request=replace(day.request, replaces=(1,))))


def test_keys_of_two_partitionings_are_not_compared() -> None:
    """A day covers nothing of the month of the same key; an append of either may have rows of the other."""
    month, day = (write(number, partitions=("2026-05-01",), partitioning=of) for number, of in ((1, "m"), (2, "d")))
    unknown = write(3, partitions=("2026-05-01",))
    assert (False, True) == (day.scope.covers(month.scope), unknown.scope.covers(month.scope))
    assert day.is_same_work(month)
    assert day.is_same_work(write(3, partitions=("2026-06-01",), partitioning="m"))
    assert month == parse_write(write_bytes(month), "")


def test_a_replacement_drops_older_ones_only() -> None:
    """Of writes that replace the same rows, the newer one stays publishable."""
    writes = [write(number, mode="overwrite") for number in (1, 2, 3)]
    assert closed([2], [1]) == committed({}, writes[1], among=writes)


def test_a_withdrawn_write_may_be_made_again() -> None:
    """After a commit that restores an older version, another append of the same work is published."""
    withdrawn = WriteChanges(withdraw={"t": NumberSet.of([1])}).apply(closed([1]))
    assert closed(dropped=[1]) == withdrawn
    assert closed([2], [1]) == committed(withdrawn, write(2), among=[write(1)])


def test_an_append_of_a_collected_candidate_is_refused() -> None:
    """Nobody can tell which rows were published; what replaces rows, or was published before, is as safe as ever."""
    collected = partial(WriteChanges, related=lambda _: CandidateWrites(is_collected=True))
    with pytest.raises(ConflictError, match="was collected"):
        collected(publish=(write(1),)).apply({})
    assert {} == collected(publish=(write(1),)).apply(closed([1]))
    assert closed([1]) == collected(publish=(write(1, mode="replace"),)).apply({})


@pytest.mark.parametrize(
    "other,matters",
    [
        ({"mode": "overwrite"}, True),
        ({"mode": "replace", "partitions": ("d1",), "candidate": "r9"}, True),
        ({"mode": "replace", "partitions": ("d2",)}, False),
        ({"candidate": "r9"}, False),
        ({}, True),
    ],
)
def test_the_order_matters_where_rows_are_replaced_or_made_again(other: dict[str, Any], *, matters: bool) -> None:
    """Of two appends of the same work one is published, and of two replacements of the same rows the newer one."""
    day = write(1, partitions=("d1",))
    assert matters == day.depends_on_order(write(2, **other)) == write(2, **other).depends_on_order(day)


def test_bytes_of_a_write_and_of_closed_writes_come_back() -> None:
    """What is stored is what is read."""
    stored = replace(write(7, partitions=("d1", "ü"), replaces=(3,), step="orders"), commit_id="c")
    assert stored == parse_write(write_bytes(stored), "path")
    value = json.loads(json.dumps(closed_value(closed([1, 2, 5], [3]))))
    assert closed([1, 2, 5], [3]) == parse_closed(value)


@pytest.mark.parametrize("field,value", [("mode", "delete"), ("number", -1), ("partitions", [1]), ("run", None)])
def test_a_damaged_write_is_refused(field: str, value: object) -> None:
    """A file with another value than the writer puts names its path."""
    content = json.loads(write_bytes(write(1))) | {field: value}
    with raises(CorruptFileError, path="a/path"):
        parse_write(json.dumps(content).encode(), "a/path")


def test_a_later_format_is_refused() -> None:
    """A write of a later release is not guessed at."""
    content = json.loads(write_bytes(write(1))) | {"format": 2}
    with pytest.raises(UnsupportedFeatureError):
        parse_write(json.dumps(content).encode(), "a/path")
