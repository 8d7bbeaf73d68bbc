"""Recorded writes: their values, and the rules by which a commit publishes or drops them.

A run records each of its writes before it commits the rows to its branch. The record is a file of the next number in
the log of the table, put if absent, so the numbers are the order of the writes, whatever clocks show. The commit on
the branch has the mark of the record among its properties (`WRITE_MARK`); rows without a recorded write do not come
from a run. A write that was recorded after its commit (`record_branches`) names the commit instead.

Each commit of the repository says which writes are closed: published, so `main` has their rows; or dropped, so they
will never be published. A commit is made by one put in the log of `main`, and refused when the log moved. So a write is
published at most once, and of two writes that exclude each other only one is published:

- a write that is closed stays closed
- an append is refused when `main` has the rows of another append of the same work (same candidate, table, output and
  partitions) that it does not replace, by a publication or because somebody merged them; when the append is published,
  it drops waiting appends of the same work
- of two such appends that one commit would publish, the commit is refused
- a write that replaces rows drops older writes of the same work

Example: run `r1` appends as write 1. Its re-execution `r2` starts anew and appends the same as write 2. Whichever is
published first drops the other. A retry of `r1` as write 3 `replaces` 1: its branch has no rows of write 1, so 3 may
be published after 1, and drops 1 when that still waits.
"""

import json
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from lance_dagster.errors import ConflictError, CorruptFileError, UnsupportedFeatureError
from lance_dagster.format.run_properties import ASSET_KEY, OP_OUTPUT, OUTPUT, PARTITION_KEYS, STEP_KEY, WRITE
from lance_dagster.format.validation import parsed_json
from lance_dagster.repository.candidates.number_set import NumberSet
from lance_dagster.transactions.claims import ClaimMode

FORMAT = 1
WRITE_MARK = "lance/write"
"""Property of a commit on a branch: the record of the write whose rows it has, as `RecordedWrite.mark`."""
_MODES: tuple[str, ...] = get_args(ClaimMode)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """A write that a run is about to commit to its branch of a table.

    Attributes:
        candidate: The id of the candidate: of the root run, or of the backfill, that the run belongs to.
        run_id: The run.
        origin: The first of the runs that the run continues; the run itself where it continues none. The writes of all
            runs with one origin belong to one result; runs with another origin do the work of the candidate anew.
        branch: The branch of the run.
        branch_id: The id of the branch: another branch may have its name later.
        base: The number of the newest version of the branch before the write; the commit with the rows has a higher
            number.
        work: A text that is equal for each attempt at the same rows, such as the asset and its output; see `work_of`.
        partitions: The keys of the partitions; empty for the whole table.
        partitioning: What the keys mean: keys of another partitioning stand for other rows. Empty when it is unknown.
        mode: How rows are changed.
        step: The step of the run.
        replaces: The numbers of writes of earlier attempts on the branch, whose rows this write takes back.
    """

    candidate: str
    run_id: str
    origin: str
    branch: str
    branch_id: str
    base: int
    work: str
    partitions: tuple[str, ...] = ()
    partitioning: str = ""
    mode: ClaimMode
    step: str = ""
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWrite:
    """A write of a run to a table, as the record has it.

    Attributes:
        table_id: The identity of the table.
        number: The place among all recorded writes of the table, from 1.
        request: The write as the run requested it.
        id: A random id by which a writer recognises its own file when the response of the storage was lost.
        commit_id: The commit id of the version with the rows, where that was committed before the write was recorded;
            empty where the version has the mark.
    """

    table_id: str
    number: int
    request: WriteRequest
    id: str
    commit_id: str = ""

    @property
    def mark(self) -> str:
        """The text that names the record among the properties of a commit."""
        return f"{self.table_id}@{self.number}"

    def __str__(self) -> str:
        """Return the branch, the number and the partitions, for messages."""
        partitions = f" of {', '.join(self.request.partitions)}" if self.request.partitions else ""
        return f"write {self.number} of {self.request.branch} ({self.request.mode}{partitions})"

    def is_same_work(self, write: "RecordedWrite") -> bool:
        """Return whether two writes are attempts at the same rows, or at some of the same rows.

        Example: a write of partitions `a` and `b` and a write of `b` and `c` are, for the same output of a candidate.
        """
        work = (self.table_id, self.request.candidate, self.request.work)
        if work != (write.table_id, write.request.candidate, write.request.work):
            return False
        return self.number != write.number and self._overlaps(write)

    def covers(self, write: "RecordedWrite") -> bool:
        """Return whether this write has all partitions of another write."""
        return not self.request.partitions or (
            bool(write.request.partitions)
            and self._is_comparable(write)
            and {*write.request.partitions} <= {*self.request.partitions}
        )

    def _overlaps(self, write: "RecordedWrite") -> bool:
        """Return whether two writes may have rows of the same partition."""
        partitions, others = self.request.partitions, write.request.partitions
        # No partition keys mean the whole table.
        whole = not partitions or not others
        return whole or not self._is_comparable(write) or not {*partitions}.isdisjoint(others)

    def _is_comparable(self, write: "RecordedWrite") -> bool:
        """Return whether equal keys of two writes mean the same rows."""
        return len({self.request.partitioning, write.request.partitioning} - {""}) <= 1

    def supersedes(self, older: "RecordedWrite") -> bool:
        """Return whether this write replaces all rows of an older write, of whichever candidate."""
        is_newer = self.table_id == older.table_id and self.number > older.number
        return is_newer and self.request.mode in ("overwrite", "replace") and self.covers(older)

    def depends_on_order(self, write: "RecordedWrite") -> bool:
        """Return whether it matters which of two writes is newer: they are the same work, or one replaces rows."""
        replaces = {self.request.mode, write.request.mode} & {"overwrite", "replace"}
        same_rows = self.table_id == write.table_id and self._overlaps(write)
        return self.is_same_work(write) or (bool(replaces) and same_rows)

    @property
    def adds_rows(self) -> bool:
        """Whether the rows would be there twice if the same work were published twice."""
        return self.request.mode == "append"


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


@dataclass(frozen=True, slots=True)
class CandidateWrites:
    """The recorded writes of a candidate.

    Attributes:
        writes: The writes, closed or not; by table, then oldest first.
        is_collected: Whether the candidate had further writes, appends that were published among them, whose record
            was collected. Nobody can tell then which rows an append would add a second time.
    """

    writes: tuple[RecordedWrite, ...] = ()
    is_collected: bool = False


def work_of(properties: Mapping[str, str], run_partition: Iterable[str] = ()) -> str:
    """Return a text that is equal for all attempts of a candidate at the same rows, apart from their partitions.

    Args:
        properties: The properties of the commit with the rows.
        run_partition: The partition of a run of a backfill; such runs may each append to a table without partitions.
    """
    asset = properties.get(ASSET_KEY, "")
    work = [asset, properties.get(OUTPUT, ""), properties.get(WRITE, "")]
    # Dagster numbers the steps of an asset anew in a re-execution; an op has one step for each place in the graph.
    if asset.startswith(OP_OUTPUT):
        work.append(properties.get(STEP_KEY, ""))
    if PARTITION_KEYS not in properties:
        work += run_partition
    return json.dumps(work)


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
                and write.covers(related_write)
                and (write.adds_rows or related_write.number < write.number)
            )
        )
    ]


def _of(closed: Mapping[str, ClosedWrites], write: RecordedWrite) -> ClosedWrites:
    return closed.get(write.table_id, NONE_CLOSED)


def write_bytes(write: RecordedWrite) -> bytes:
    """Return the bytes of the file of a recorded write."""
    request = write.request
    return json.dumps(
        {
            "format": FORMAT,
            "table": write.table_id,
            "number": write.number,
            "candidate": request.candidate,
            "run": request.run_id,
            "origin": request.origin,
            "branch": request.branch,
            "branch_id": request.branch_id,
            "base": request.base,
            "work": request.work,
            "partitions": list(request.partitions),
            **({"partitioning": request.partitioning} if request.partitioning else {}),
            "mode": request.mode,
            "step": request.step,
            "replaces": list(request.replaces),
            "id": write.id,
            "commit": write.commit_id,
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()


def parse_write(data: bytes, path: str) -> RecordedWrite:
    """Parse the file of a recorded write; `path` is used in messages.

    Raises:
        CorruptFileError: The bytes are not a recorded write.
        UnsupportedFeatureError: A later release wrote them.
    """
    try:
        content = parsed_json(data)
        if _count(content["format"]) > FORMAT:
            raise UnsupportedFeatureError(path, [f"format {content['format']} of recorded writes"])
        return RecordedWrite(
            table_id=_text(content["table"]),
            number=_count(content["number"]),
            request=WriteRequest(
                candidate=_text(content["candidate"]),
                run_id=_text(content["run"]),
                origin=_text(content["origin"]),
                branch=_text(content["branch"]),
                branch_id=_text(content["branch_id"]),
                base=_count(content["base"]),
                work=_text(content["work"]),
                partitions=tuple(map(_text, content["partitions"])),
                partitioning=_text(content.get("partitioning", "")),
                mode=_mode(content["mode"]),
                step=_text(content["step"]),
                replaces=tuple(map(_count, content["replaces"])),
            ),
            id=_text(content["id"]),
            commit_id=_text(content.get("commit", "")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            path, f"it is not a recorded write: {type(error).__name__}: {str(error)[:200]}"
        ) from error


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
        _text(table_id): ClosedWrites(NumberSet.of_runs(content["published"]), NumberSet.of_runs(content["dropped"]))
        for table_id, content in value.items()
    }


def _mode(value: object) -> ClaimMode:
    if value not in _MODES:
        raise ValueError(f"{value!r} is not a mode of a write")
    return cast("ClaimMode", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a valid number there")
    return value
