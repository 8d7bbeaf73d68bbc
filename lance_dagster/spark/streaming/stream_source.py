"""Follow a branch of a table as a stream of Spark.

A stream reads the rows that a table has when it begins, then what each new version of the branch changes. What changed
is found out by comparing versions, not by their operations: a compaction gives no row, and a merge gives the rows that
it brought to the branch.

An offset says how far a stream has come: the id of the branch, the number of a version, and its transaction, because
another table may be made at the same place. Spark repeats a batch from its offsets after a failure. Everything that a
batch reads follows from its two offsets and the versions, which do not change, so the repetition has the same rows.
Spark does not keep the first offset of a stream. So each later offset repeats it, as `first` and `snapshot`.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lance_dagster.errors import (
    InvalidInputError,
    LanceDagsterError,
    NotFoundError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import SAME_ROWS
from lance_dagster.history.versions import Version
from lance_dagster.spark.change_rows import CHANGE_COLUMNS, ChangePart, ChangePlan, grouped, read_part
from lance_dagster.spark.worker import begin_task
from lance_dagster.table import LanceTable

STREAM_OPTIONS = ("startingVersion", "maxVersionsPerTrigger", "ignoreDeletes", "updatesAsInserts", "skipChangeCommits")
"""The options of a streaming read alone; `CHANGES` is a further option, which decides the columns too."""
CHANGES = "changes"
_LATEST = "latest"
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a stream follows a branch.

    Attributes:
        branch: The branch.
        start: "latest", or the first version whose changes are read, as a number or a ref expression; None for all
            rows of the head and then the changes of later versions.
        versions: The largest number of versions in a batch; None for all.
        changes: Whether deleted and updated rows are in the stream, with the columns of a change feed.
        ignore_deletes: Whether deleted rows are passed over.
        updates_as_inserts: Whether the new values of updated rows are in the stream like inserted rows.
        skip: Whether versions that delete or update rows are passed over whole.
    """

    branch: str
    start: str | None
    versions: int | None
    changes: bool
    ignore_deletes: bool
    updates_as_inserts: bool
    skip: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a data source.

        Raises:
            InvalidInputError: An option has no meaning, or two contradict each other.
        """
        versions = options.get("maxVersionsPerTrigger")
        if versions is not None and (not versions.isdecimal() or int(versions) < 1):
            raise InvalidInputError(f"maxVersionsPerTrigger is a number of versions from 1 on, not {versions!r}")
        stream_options = cls(
            branch=options.get("ref", MAIN),
            start=options.get("startingVersion"),
            versions=None if versions is None else int(versions),
            changes=is_set(options, CHANGES),
            ignore_deletes=is_set(options, "ignoreDeletes"),
            updates_as_inserts=is_set(options, "updatesAsInserts"),
            skip=is_set(options, "skipChangeCommits"),
        )
        if stream_options.changes and (
            stream_options.ignore_deletes or stream_options.updates_as_inserts or stream_options.skip
        ):
            raise InvalidInputError("changes=true reads all changes; leave ignoreDeletes and the like out")
        return stream_options


def is_set(options: Mapping[str, str], name: str) -> bool:
    """Return the value of an option that is true or false.

    Raises:
        InvalidInputError: It is neither.
    """
    text = options.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"the option {name} is true or false, not {text!r}")
    return text == "true"


class StreamPartition(InputPartition):
    """The changed rows that one task reads."""

    def __init__(self, parts: list[ChangePart]) -> None:
        """Keep the parts."""
        super().__init__(None)
        self.parts = tuple(parts)


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read one branch as a stream."""

    def __init__(
        self, table: LanceTable, options: StreamOptions, schema: StructType, *, schema_version: Version
    ) -> None:
        """Keep the table, and the Spark schema of the stream, whose columns the version `schema_version` has."""
        self._table, self._options, self._schema, self._known = table, options, schema, schema_version
        self._columns = [name for name in schema.names if not options.changes or name not in CHANGE_COLUMNS.names]
        # The newest version to read with the trigger `availableNow`.
        self._last: int | None = None
        self._resumed = False

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a new stream begins."""
        start, branch = self._options.start, self._options.branch
        branch_id = self._branch_id()
        head = self._table.head(branch)
        if start is None or start == _LATEST:
            return _offset(branch_id, head, first=head.number, snapshot=start is None) | {"initial": True}
        number = self._starting_number(start, head.number)
        # The changes of a version are the difference from its predecessor, which the first version does not have.
        begins = number == min(self._table.branches.version_numbers(branch)) and number == self._first_ever()
        before = self._version(number if begins else number - 1, f"startingVersion={start} needs")
        return _offset(branch_id, before, first=before.number, snapshot=begins) | {"initial": True}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return where the next batch ends."""
        self._check_resumable(start)
        if start.get("initial"):
            # The beginning is a batch of its own, even without a row: Spark stores only offsets at which a batch ended.
            return {name: value for name, value in start.items() if name != "initial"}
        numbers = self._numbers_after(start["version"])
        if self._last is not None:
            numbers = [number for number in numbers if number <= self._last]
        # Spark has no limit of versions, so the limit of files carries the number of versions.
        if isinstance(limit, ReadMaxFiles):
            numbers = numbers[: limit.max_files]
        if not numbers:
            return start
        end = self._version(numbers[-1], "the stream needs")
        return _offset(start["branch"], end, first=start["first"], snapshot=start["snapshot"])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the number of versions in a batch, which Spark knows as a number of files."""
        most = self._options.versions
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return nothing: the head may move before Spark shows it."""
        return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read nothing after the version that is the head now."""
        self._last = self._table.head(self._options.branch).number

    def partitions(self, start: Offset, end: Offset) -> list[StreamPartition]:
        """Return the tasks of one batch.

        Raises:
            InvalidInputError: A version deletes or updates rows, and no option says what to do with them.
            VersionNotFoundError: A version of the batch was collected.
            SchemaMismatchError: The columns of the table changed.
        """
        self._check_resumable(end)
        parts: list[ChangePart] = []
        first = start["version"]
        schema = self._table.schema(self._known)
        plan = ChangePlan(self._table, pa.schema([schema.field(name) for name in self._columns]), self._known)
        if start.get("initial"):
            # After a restart `start` is a new initial offset, perhaps of a newer head. The end offset was stored, and
            # has the version with which the stream began.
            first = end["first"]
            if end["snapshot"]:
                parts += plan.snapshot(self._version(first, "the stream begins with"))
        numbers = [number for number in self._numbers_after(first) if number <= end["version"]]
        if numbers:
            versions = [self._version(number, "the stream needs") for number in (first, *numbers)]
            for before, after in itertools.pairwise(versions):
                parts += self._changes(plan, before, after)
        return [StreamPartition(group) for group in grouped(parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task; runs on an executor."""
        # The signature is Spark's and allows any class; `partitions` makes only this class.
        if isinstance(partition, StreamPartition):
            begin_task()
            for part in partition.parts:
                yield from read_part(part, self._schema, feed=self._options.changes)

    def _changes(self, plan: ChangePlan, before: Version, after: Version) -> Iterator[ChangePart]:
        """Yield what a version changed, as far as the options let it into the stream."""
        # For a compaction, a comparison would read all rows.
        if after.operation in SAME_ROWS:
            return
        self._check_columns(plan, after)
        options = self._options
        rows = self._table.diff(before, after).differing_rows()
        removed, updated = sum(map(len, rows.removed.values())), len(rows.changed_after)
        if not options.changes and (removed or updated):
            if options.skip:
                return
            if updated and not options.updates_as_inserts:
                raise _refusal(after, f"updates {updated:,} rows", "take their new values with updatesAsInserts=true")
            if removed and not options.ignore_deletes:
                raise _refusal(after, f"deletes {removed:,} rows", "pass over them with ignoreDeletes=true")
        yield from plan.changes(before, after, rows, images=options.changes)

    def _check_columns(self, plan: ChangePlan, after: Version) -> None:
        """Refuse a version whose columns changed since the query was started.

        Raises:
            SchemaMismatchError: A column of the stream is gone or renamed, or the stream has all columns and there is
                a new one.
        """
        if after.number <= self._known.number:
            return
        own, columns_at_start = self._table.schema(after).names, self._table.schema(self._known).names
        # A column counts as the same only if it is the same field: a new column may have its name.
        followed = {column.column.name for column in plan.columns_of(after)}
        missing = [name for name in self._columns if name not in own or name not in followed]
        # A stream that reads all columns would silently lack a new column.
        added = [name for name in own if name not in columns_at_start] if self._columns == columns_at_start else []
        if missing or added:
            what = f"lacks column {missing[0]!r}, which the stream reads" if missing else f"adds column {added[0]!r}"
            raise SchemaMismatchError(
                f"{after} {what}; start the query again to read the columns that the table has then, or name columns "
                "with the option columns"
            )

    def _starting_number(self, start: str, head: int) -> int:
        if start.isdecimal():
            # The version after the head is the next one that is committed.
            return int(start) if int(start) == head + 1 else self._version(int(start), "startingVersion is").number
        # A ref expression may lead to another branch, whose numbers mean nothing here.
        version = self._table.at(start)
        if version.branch != self._options.branch:
            raise InvalidInputError(
                f"startingVersion={start} is {version}, which is not on branch {self._options.branch!r} of the stream"
            )
        return version.number

    def _first_ever(self) -> int:
        branch = self._options.branch
        return 1 if branch == MAIN else self._table.branches.get(branch).first

    def _branch_id(self) -> str:
        """Return the id of the branch, which another branch of its name does not have.

        Raises:
            InvalidInputError: The ref does not name a branch.
        """
        branch = self._options.branch
        if branch == MAIN:
            return MAIN
        try:
            return self._table.branches.get(branch).id
        except NotFoundError as error:
            raise InvalidInputError(
                f"a stream follows a branch, and {branch!r} is not a branch of {self._table.uri}; give the branch as "
                "ref, and a tag or a version as startingVersion"
            ) from error

    def _check_resumable(self, offset: Offset) -> None:
        """Refuse to go on in a table or a branch that the offset is not of.

        Raises:
            InvalidInputError: The branch or the table was made again.
            VersionNotFoundError: The version was collected.
        """
        if self._resumed:
            return
        same = offset["branch"] == self._branch_id()
        # Versions of a branch that was made again have other transactions, or numbers that are not reached yet.
        if same and offset["version"] <= self._table.head(self._options.branch).number:
            version = self._version(offset["version"], "the stream goes on from")
            same = version.transaction == offset["transaction"]
        else:
            same = False
        if not same:
            raise self._made_again()
        self._resumed = True

    def _made_again(self) -> InvalidInputError:
        return InvalidInputError(
            f"the checkpoint is of another table or branch than {self._options.branch!r} of {self._table.uri}: "
            "it was made again; start the stream with a new checkpointLocation"
        )

    def _numbers_after(self, number: int) -> list[int]:
        """Return the numbers of the versions after a number.

        Raises:
            VersionNotFoundError: A version after the number was collected.
        """
        listed = self._table.branches.version_numbers(self._options.branch)
        if not listed or listed[-1] < number:
            raise self._made_again()
        numbers = [later for later in listed if later > number]
        # Every version has the number after the number of its predecessor, so a gap is a version that is gone.
        for before, after in itertools.pairwise([number, *numbers]):
            if after != before + 1:
                raise self._missing_version(before + 1, "the stream needs", after)
        return numbers

    def _version(self, number: int, why: str) -> Version:
        try:
            return self._table.at(f"{self._options.branch}@{number}")
        except VersionNotFoundError as error:
            later = self._table.branches.version_numbers(self._options.branch, after=number)
            if not later:
                raise
            raise self._missing_version(number, why, later[0]) from error

    def _missing_version(self, number: int, why: str, later: int) -> VersionNotFoundError:
        return VersionNotFoundError(
            f"{why} {self._options.branch}@{number} of {self._table.uri}, which was collected; start the stream with a "
            f"new checkpointLocation, with startingVersion={later + 1} or with all rows of the head"
        )


def _offset(branch_id: str, version: Version, *, first: int, snapshot: bool) -> Offset:
    return {
        "branch": branch_id,
        "version": version.number,
        "transaction": version.transaction,
        "first": first,
        "snapshot": snapshot,
    }


def _refusal(version: Version, what: str, remedy: str) -> InvalidInputError:
    return InvalidInputError(
        f"{version} {what}, and the stream has only inserted rows; {remedy}, read all changes with changes=true, or "
        "pass over such versions whole with skipChangeCommits=true"
    )


class RefusedStream(LanceStreamReader):
    """Raise the reason why a stream cannot start; Spark loses an error that is raised before it has a reader."""

    def __init__(self, error: LanceDagsterError) -> None:
        """Keep the reason."""
        self._error = error

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Raise it."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Raise it: a stream that is started again does not ask where it begins."""
        raise self._error
