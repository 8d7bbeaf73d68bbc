"""Recorded writes: what a run says about each of its writes before it commits the rows to its branch.

The record is a file of the next number in the log of the table, put if absent, so the numbers are the order of the
writes, whatever clocks show. The commit on the branch has the mark of the record among its properties (`WRITE_MARK`);
rows without a recorded write do not come from a run. A write that was recorded after its commit (`record_branches`)
names the commit instead. Which of several attempts at the same rows is published is decided in `closed_writes`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast, get_args

from lance_dagster.errors import CorruptFileError, UnsupportedFeatureError
from lance_dagster.format.partition_scope import PartitionScope
from lance_dagster.format.run_properties import ASSET_KEY, OP_OUTPUT, OUTPUT, PARTITION_KEYS, STEP_KEY, WRITE
from lance_dagster.format.validation import parsed_json
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
        return self.number != write.number and self.scope.overlaps(write.scope)

    @property
    def scope(self) -> PartitionScope:
        """The partitions that it wrote."""
        return PartitionScope(frozenset(self.request.partitions), self.request.partitioning)

    def supersedes(self, older: "RecordedWrite") -> bool:
        """Return whether this write replaces all rows of an older write, of whichever candidate."""
        is_newer = self.table_id == older.table_id and self.number > older.number
        return is_newer and self.request.mode in ("overwrite", "replace") and self.scope.covers(older.scope)

    def depends_on_order(self, write: "RecordedWrite") -> bool:
        """Return whether it matters which of two writes is newer: they are the same work, or one replaces rows."""
        replaces = {self.request.mode, write.request.mode} & {"overwrite", "replace"}
        same_rows = self.table_id == write.table_id and self.scope.overlaps(write.scope)
        return self.is_same_work(write) or (bool(replaces) and same_rows)

    @property
    def adds_rows(self) -> bool:
        """Whether the rows would be there twice if the same work were published twice."""
        return self.request.mode == "append"


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
