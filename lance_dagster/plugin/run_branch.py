"""The runs that belong together, and the branch of a run in one table.

A run writes each table on its own branch, `run/<run id>`. The branch is forked at the run's first write to the
table: from the newest branch of the runs that it continues, or else from `main`. Reads follow the same chain.

A partial re-execution (from failure, from asset failure, of chosen steps) builds on the rows of its parent run,
so it reads the parent's branches and publishes them with its own. A full re-execution starts from `main`.
Dagster has no single field for this difference. Runs launched from the UI, the daemon or GraphQL carry one of the
tags in `_PARTIAL_TAGS`. Runs re-executed from Python carry none; they count as partial when they execute fewer
steps than the root run. `step_keys_to_execute` alone does not decide, because an ordinary launch lists all steps.

All state is in Dagster's run records and in the table's refs and commits. With the multiprocess executor every
step is a process of its own, so a value kept in memory would be unknown to the next step.
"""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.errors import (
    ConflictError,
    InvalidInputError,
    LanceDagsterError,
    RefNotFoundError,
)
from lance_dagster.format.layout import MAIN, PUBLISHED
from lance_dagster.format.transaction import RESTORED, WITHOUT_ROWS, Restore
from lance_dagster.plugin import metadata as md

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable

# The run id that Dagster gives to a value produced outside of the current job; it raises no error there.
EPHEMERAL_RUN_ID = "__EPHEMERAL_RUN_ID"
BRANCH_TAG = "lance/branch"
BACKFILL_TAG = "dagster/backfill"
# The partition of a run, or the first and the last one of its range.
_PARTITION_TAGS = ("dagster/partition", "dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
# On the runs of a backfill that re-executes another one: the first backfill of that chain.
_ROOT_BACKFILL_TAG = "dagster/root_backfill_id"
ROOT_RUN_TAG = "dagster/root_run_id"
_RESUME_TAGS = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_PARTIAL_TAGS = (*_RESUME_TAGS, "dagster/step_selection")
PREVIEWS = "preview/"
# The prefix of branches that hold what a run reads of other runs of its backfill.
READS = "reads/"
_BRANCH_PREFIX = "run/"
# Branches of the publisher, of runs of a backfill and of the repository, which are deleted when they have done.
_OWN = (PREVIEWS, READS, PUBLISHED)
# The tags by which Dagster says who or what launched a run. A person takes precedence over an automation.
_WHO_TAGS = (
    "dagster/user",
    "user",
    "dagster/schedule_name",
    "dagster/sensor_name",
    "dagster/automation_condition_name",
)
_SIMILAR_TAG = 0.8


def branch_of(run_id: str) -> str:
    """Return the name of the branch of a run."""
    return f"{_BRANCH_PREFIX}{run_id}"


def preview_branch(chain: "RunChain", purpose: str) -> str:
    """Return the name of a branch that a run needs for the result of a merge."""
    # Not below `run/`: the branch of a run is a candidate, and this one is not.
    return f"{PREVIEWS}{chain.run_id or 'by-hand'}/{purpose}"


def run_of(branch: str) -> str | None:
    """Return the id of the run a branch is named after, or None when it is not a run branch."""
    return branch.removeprefix(_BRANCH_PREFIX) if branch.startswith(_BRANCH_PREFIX) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChain:
    """A run and the runs that it continues, newest first; without run ids outside of a run."""

    run_ids: tuple[str, ...] = ()
    root_run_id: str | None = None
    job_name: str | None = None
    backfill_id: str | None = None
    branch_tag: str | None = None
    run_partition: tuple[str, ...] = ()
    is_untagged: bool = False

    @classmethod
    def of(cls, run: dg.DagsterRun | None, instance: dg.DagsterInstance | None) -> "RunChain":
        """Return the chain of a run."""
        if run is None:
            return cls()
        return cls(
            run_ids=tuple(_ancestry(run, instance)),
            root_run_id=run.root_run_id or run.tags.get(ROOT_RUN_TAG) or run.run_id,
            job_name=run.job_name,
            backfill_id=backfill_of(run, instance),
            branch_tag=run.tags.get(BRANCH_TAG),
            run_partition=tuple(run.tags[tag] for tag in _PARTITION_TAGS if tag in run.tags),
            # Dagster finds re-executions by this tag, and does not give it to those that are launched from Python.
            is_untagged=run.root_run_id not in (None, run.run_id) and ROOT_RUN_TAG not in run.tags,
        )

    @classmethod
    def of_context(cls, context: object) -> "RunChain":
        """Return the chain of the run of a Dagster context, empty when the context belongs to no run.

        Raises:
            InvalidInputError: As `of_current` says.
        """
        try:
            run, instance = getattr(context, "run", None), getattr(context, "instance", None)
        except dg.DagsterError:  # `run` raises in the context of an asset or check that is called directly
            return cls()
        return cls.of_current(run if isinstance(run, dg.DagsterRun) else None, instance)

    @classmethod
    def of_run_id(cls, run_id: str | None) -> "RunChain":
        """Return the chain of one run of which only the id is known."""
        if run_id is None or run_id == EPHEMERAL_RUN_ID:
            return cls()
        return cls(run_ids=(run_id,), root_run_id=run_id)

    def after(self, run_id: str | None) -> "RunChain":
        """Return this chain with a run in front that produced a value, unless the chain contains that run."""
        if run_id is None or run_id in (EPHEMERAL_RUN_ID, *self.run_ids):
            return self
        return replace(self, run_ids=(run_id, *self.run_ids))

    @classmethod
    def of_current(cls, run: dg.DagsterRun | None, instance: dg.DagsterInstance | None) -> "RunChain":
        """Return the chain of the run that this process executes.

        Raises:
            InvalidInputError: The run has a tag that resembles `lance/branch`; its rows would go to another branch.
        """
        for tag in run.tags if run else ():
            if tag != BRANCH_TAG and difflib.get_close_matches(tag.lower(), [BRANCH_TAG], cutoff=_SIMILAR_TAG):
                raise InvalidInputError(f"the run's tag {tag!r} would be ignored; did you mean {BRANCH_TAG!r}?")
        return cls.of(run, instance)

    @property
    def run_id(self) -> str | None:
        """The id of the run itself."""
        return self.run_ids[0] if self.run_ids else None

    @property
    def candidate_id(self) -> str:
        """The id of the candidate that the run belongs to: of its backfill, or of the run that it re-executes."""
        return self.backfill_id or self.root_run_id or self.run_id or ""

    @property
    def branch_names(self) -> tuple[str, ...]:
        """The branches of the chain, newest first; a branch that the run's tag `lance/branch` names comes first."""
        own = tuple(branch_of(run_id) for run_id in self.run_ids)
        return (self.branch_tag, *own) if self.branch_tag else own

    def branch_metadata(self) -> dict[str, str]:
        """Return the metadata of a branch of this run."""
        metadata = {
            md.RUN_ID: self.run_id,
            md.ROOT_RUN_ID: self.root_run_id,
            md.JOB_NAME: self.job_name,
            # The publisher of a backfill is a run of its own without a parent. It finds the branches by this id.
            md.BACKFILL_ID: self.backfill_id,
        }
        return {key: value for key, value in metadata.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBranch:
    """The branches of a chain of runs in one table: the branch that the run writes, and those that it reads."""

    table: "LanceTable"
    chain: RunChain

    @property
    def name(self) -> str:
        """The branch that this run writes; `main` outside of a run."""
        return self.chain.branch_names[0] if self.chain.branch_names else MAIN

    def head(self) -> "Version | None":
        """Return the head of the newest branch of the chain in this table, or None when there is no branch."""
        return next(self._heads(self.chain.branch_names), None)

    def written(self) -> "Version | None":
        """Return the head of the newest branch of the chain that has its own commits, or None."""
        # A step that failed after the fork leaves a branch without commits of its own.
        return next(filter(is_written, self._heads(self.chain.branch_names)), None)

    def start(self) -> "Version":
        """Return the version that the run's next commit is based on: the head of its chain, or of `main`."""
        # A new run has no branch, and its table was just opened: a listing of the branch tells the first, as
        # `ensure` has to know anyway, and the listing of the table the second.
        names = filter(self.table.branches.has_versions, self.chain.branch_names)
        return next(self._heads(names), None) or self.table.branches.opened_at()

    def ensure(self, start: "Version | None" = None) -> "Version":
        """Fork the branch of the run unless it exists, and return its newest version.

        Two processes of a run may call this at the same time; both get the same branch.

        Args:
            start: What `start` returned, when the caller has just called it.

        Raises:
            InvalidInputError: The run's tag `lance/branch` names `main`, or a branch that this package makes itself.
        """
        start = start or self.start()
        if not self.chain.run_ids or start.branch == self.name != MAIN:
            return start
        if self.name == MAIN:
            raise InvalidInputError(
                f"the run's tag {BRANCH_TAG} names main; a run writes a branch of its own, and its publisher merges it"
            )
        if self.name.startswith(_OWN):
            raise InvalidInputError(
                f"the run's tag {BRANCH_TAG} names {self.name}; branches that begin with {', '.join(_OWN)} are made "
                "and deleted by publications: give the branch another name, such as feature/prices"
            )
        return self.table.branches.fork(self.name, start, metadata=self.chain.branch_metadata())

    def earlier_attempt(self, properties: Mapping[str, str]) -> "Version | None":
        """Return the version that an earlier attempt of the same step committed, or None.

        An attempt is the same when the output, the asset and the partitions are equal, and for the output of an op also
        the step: two outputs of an op, and several steps, may write one table. An external process
        numbers its writes, and a write is the same as an earlier write with its number. The attempt may be in this run,
        before a retry by Dagster, or in a run that this run continues.

        Args:
            properties: The properties of the commit that is about to be made.
        """
        write = properties.get(md.WRITE)
        return next(
            (attempt for attempt in self.attempts(properties) if attempt.properties.get(md.WRITE) == write), None
        )

    def attempts(self, properties: Mapping[str, str]) -> "Iterator[Version]":
        """Yield the versions with rows that attempts of the same step committed, newest first.

        Those that the step took back by restoring an older version are left out, as nothing is left of them.

        Args:
            properties: The properties of a commit of the step.
        """
        if md.STEP_KEY not in properties:
            return
        for version in self.own_versions():
            if self.is_of_step(version, properties):
                if is_restore(version):
                    return
                if md.ASSET_KEY in version.properties:
                    yield version

    def is_of_step(self, version: "Version", properties: Mapping[str, str]) -> bool:
        """Return whether an attempt of a step committed a version: its rows, or the edit of columns before its rows.

        Args:
            version: A version of the branch.
            properties: The properties with which the step commits rows.
        """
        # Not the run id: Dagster's retry policy repeats a step in the same run, a re-execution in another run.
        # Nor the step of an asset, which only one step of a run writes: Dagster splits a multi-asset into steps by the
        # assets that are selected, and numbers them anew in a re-execution of some.
        by_op = properties.get(md.ASSET_KEY, "").startswith(md.OP_OUTPUT)
        same = (md.OUTPUT, md.PARTITION_KEYS, *([md.STEP_KEY] if by_op else []))
        committed = version.properties
        return (
            md.STEP_KEY in committed
            and committed.get(md.RUN_ID) in self.chain.run_ids
            # Only the commit with the rows names the asset.
            and committed.get(md.ASSET_KEY) in (None, properties.get(md.ASSET_KEY))
            and all(committed.get(key) == properties.get(key) for key in same)
        )

    def own_versions(self) -> "Iterator[Version]":
        """Yield the versions of the branch and of the branches it was forked from, `main` excluded, newest first.

        Before the run has forked its branch, these are the versions that the branch would begin with.
        """
        branches, until = self.table.branches, math.inf
        branch = next(filter(None, (branches.list(name).get(name) for name in self.chain.branch_names)), None)
        # `main` has no branch file, so the search ends there: versions of main are published, and a commit on the
        # run branch cannot take their rows back.
        while branch is not None:
            for number in reversed(branches.version_numbers(branch.name)):
                if number <= until:
                    yield self.table.at(f"{branch.name}@{number}")
            until = branch.parent_version
            branch = branches.list(branch.parent_branch).get(branch.parent_branch)

    def versions_between(self, before: "Version", after: "Version") -> "Iterator[Version]":
        """Yield the versions of the branch between two of them, newest first, without the two."""
        numbers = self.table.branches.version_numbers(after.branch, after=before.number)
        return (self.table.at(f"{after.branch}@{number}") for number in reversed(numbers) if number < after.number)

    def is_owned_by(self, asset: str, start: "Version") -> bool:
        """Return whether the table names the asset that writes it as its owner; False when it names no owner.

        A code location cannot see the definitions of other code locations, so each table carries its owner: the config
        key `dagster/asset`. An asset that is not the owner does not write the table.

        Args:
            asset: The asset.
            start: The version that the run's next commit is based on.

        Raises:
            InvalidInputError: The table belongs to another asset.
        """
        owner = self.table.config.get(start).get(md.OWNER)
        if owner not in (None, asset):
            raise InvalidInputError(
                f"{asset} cannot write {self.table.uri}: the table belongs to the asset {owner}, and the two would "
                f"replace each other's rows. Give {asset} a table of its own by its metadata {md.TABLE!r}. If "
                f"{owner} no longer writes the table, hand it over: "
                f"LanceTable.open({self.table.uri!r}).config.set({{{md.OWNER!r}: {asset!r}}})"
            )
        return owner is not None

    def record_owner(self, asset: str) -> None:
        """Name the asset as the owner of a table that another program made, by a commit on the branch of the run.

        The owner reaches `main` with the rows of the run. When two assets claim the table at the same time, the merge
        of the second one conflicts.
        """
        # The commit has only the run id: a retried append undoes the newest commit that names its step and asset.
        properties = {md.RUN_ID: self.chain.run_id} if self.chain.run_id else None
        self.table.config.set({md.OWNER: asset}, branch=self.name, message=f"owner {asset}", properties=properties)

    def retire(self, merged: "Iterable[Version]" = ()) -> tuple[str, ...]:
        """Delete the published run branches of the chain, and return which ones were kept and why.

        A branch is kept when `main` does not contain all its versions, when another branch was forked from it,
        and when a tag names one of its versions. The branch that the run's tag `lance/branch` names is always
        kept: the run did not create it.

        Args:
            merged: Versions that `main` contains; for a branch with such a head, `main` is not searched.
        """
        published = {version.branch: version for version in merged}
        reasons = []
        # Newest run first: its branch was forked from the next one, which cannot be deleted before it.
        for name in map(branch_of, self.chain.run_ids):
            try:
                if name in published:
                    # Usually the head is not newer. The deletion checks this itself, so it also detects a commit that
                    # lands at this moment.
                    with suppress(ConflictError):
                        self.table.branches.delete(name, newest=published[name])
                        continue
                head = self.table.head(name)
                if self.table.branches.is_merged(head) is None:
                    reasons.append(f"{name}: it has commits that were not published")
                else:
                    # What a process that outlived its run commits at this moment is kept.
                    self.table.branches.delete(name, newest=head)
            except RefNotFoundError:
                # The run did not write this table, or an interrupted publisher deleted the branch already.
                continue
            except LanceDagsterError as error:
                reasons.append(f"{name}: {error}")
        return tuple(reasons)

    def _heads(self, names: Iterable[str]) -> "Iterator[Version]":
        # Look branches up by name: a list of all would read a file for each, and a table may have thousands.
        branches = self.table.branches
        return (head for name in names if (head := branches.newest(name)) is not None)


def is_written(head: "Version") -> bool:
    """Return whether the head of a branch is its own commit; the first manifest of a branch only records the fork."""
    return head.operation != "Clone"


def is_restore(version: "Version") -> bool:
    """Return whether a version restores an older one."""
    # A version from before the fork is not restored by the operation of that name, but by undoing what came after it.
    return version.operation == Restore.__name__ or RESTORED in version.properties


def is_never_written(table: "LanceTable", version: "Version") -> bool:
    """Return whether no rows were ever committed up to a version: there are only the creation and settings.

    The IO manager creates the table of a candidate on `main` and writes its rows on run branches. Until the first of
    them is published, `main` is empty, which a reader must not take for an asset without rows.
    """
    # The log is read only for tables without rows, and only back to the newest commit that wrote rows.
    if version.rows:
        return False
    return all(commit.number == 1 or commit.operation in WITHOUT_ROWS for commit in table.log(version))


def candidate_of(run_id: str, instance: dg.DagsterInstance) -> str:
    """Return the id of the candidate that a run belongs to; the id of the run where Dagster does not know the run."""
    return RunChain.of(instance.get_run_by_id(run_id), instance).candidate_id or run_id


def family_of(run_id: str, instance: dg.DagsterInstance, run_ids: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a run and the re-executions that continue it, oldest first.

    Their check evaluations count for the run too: a check that failed for lack of memory may have passed in a
    re-execution.

    Args:
        run_id: The run.
        instance: The Dagster instance that records runs.
        run_ids: Further runs to consider: a re-execution from Python has no tag by which Dagster finds it.
    """
    run = instance.get_run_by_id(run_id)
    if run is None:
        return ()
    # A full re-execution has the same root but does not continue the run, so ancestry decides.
    runs = _of_root(run, instance, run_ids)
    return tuple(relative.run_id for relative in runs if run_id in set(_ancestry(relative, instance)))


def _of_root(run: dg.DagsterRun, instance: dg.DagsterInstance, run_ids: Iterable[str]) -> list[dg.DagsterRun]:
    """Return a run and the runs that were re-executed from the same root, oldest first."""
    root = run.root_run_id or run.tags.get(ROOT_RUN_TAG) or run.run_id
    tagged = instance.get_run_records(dg.RunsFilter(tags={ROOT_RUN_TAG: root}))
    named = instance.get_run_records(dg.RunsFilter(run_ids=[*{run.run_id, root, *run_ids}]))
    # Not by the times of the records, which are those of the machines that launched the runs.
    oldest_first = sorted([*tagged, *named], key=lambda record: record.storage_id)
    runs = {record.dagster_run.run_id: record.dagster_run for record in oldest_first}
    return [
        relative
        for relative in runs.values()
        if root in (relative.run_id, relative.root_run_id, relative.tags.get(ROOT_RUN_TAG))
    ]


def who_launched(run: dg.DagsterRun) -> str:
    """Return the person or automation that launched a run, according to its tags; an empty text if they do not say."""
    return next((f"{tag.rpartition('/')[2]} {run.tags[tag]}" for tag in _WHO_TAGS if tag in run.tags), "")


def is_over(run_id: str | None, instance: dg.DagsterInstance) -> bool:
    """Return whether a run has ended, or is no longer known."""
    run = instance.get_run_by_id(run_id or "")
    # The record of an old run may be deleted.
    return run is None or run.is_finished


def repeated_by(run_id: str, instance: dg.DagsterInstance, run_ids: Iterable[str] = ()) -> str | None:
    """Return the newest run that did all the work of a run again and succeeded, or None.

    Such a run is a re-execution of all steps, or it finished one that failed. It started from `main`, so whatever the
    earlier run wrote is replaced by what it wrote, and publishing both would add appended rows twice.

    Args:
        run_id: The run.
        instance: The Dagster instance that records runs.
        run_ids: Further runs to consider: a re-execution from Python has no tag by which Dagster finds it.
    """
    run = instance.get_run_by_id(run_id)
    if run is None:
        return None
    *_, first = _ancestry(run, instance)
    runs = _of_root(run, instance, run_ids)
    later = runs[[later_run.run_id for later_run in runs].index(run_id) + 1 :]
    return next(
        (
            later_run.run_id
            for later_run in reversed(later)
            if later_run.is_success and _did_all(later_run, first, instance)
        ),
        None,
    )


def _did_all(run: dg.DagsterRun, first: str, instance: dg.DagsterInstance) -> bool:
    """Return whether a run that succeeded did, with those that it continues, all the work of the run `first` again."""
    runs = [instance.get_run_by_id(run_id) for run_id in _ancestry(run, instance)]
    began = runs[-1]
    # A chain of one run continues no other run, so the run did all the work itself.
    if len(runs) == 1 or began is None or began.run_id == first:
        return began is not None and began.run_id != first
    numbers = {
        record.dagster_run.run_id: record.storage_id
        for record in instance.get_run_records(dg.RunsFilter(run_ids=[first, began.run_id]))
    }
    is_later = numbers.get(began.run_id, -math.inf) > numbers.get(first, math.inf)
    return is_later and all(run is not None and _finishes_parent(run, instance) for run in runs[:-1])


def _finishes_parent(run: dg.DagsterRun, instance: dg.DagsterInstance) -> bool:
    """Return whether a run was to execute all that its parent had not, and not only steps that somebody chose."""
    if any(tag in run.tags for tag in _RESUME_TAGS):
        return True
    parent = instance.get_run_by_id(run.parent_run_id or "")
    if parent is None or parent.step_keys_to_execute is None or run.step_keys_to_execute is None:
        return False
    # A re-execution from Python lacks the tag, so the steps are compared.
    records = instance.get_records_for_run(parent.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS).records
    succeeded = {record.event_log_entry.step_key for record in records}
    return {*parent.step_keys_to_execute} - succeeded <= {*run.step_keys_to_execute}


def _ancestry(run: dg.DagsterRun, instance: dg.DagsterInstance | None) -> Iterator[str]:
    """Yield the id of a run, then the ids of its ancestors as long as each run continues its parent."""
    current: dg.DagsterRun | None = run
    while current is not None:
        yield current.run_id
        parent_id = current.parent_run_id
        if parent_id is None or not _continues_parent(current, instance):
            return
        current = instance.get_run_by_id(parent_id) if instance else None
        if current is None:  # the record of the parent was deleted, but its branches may still exist
            yield parent_id


def backfill_of(run: dg.DagsterRun, instance: dg.DagsterInstance | None) -> str | None:
    """Return the backfill that a run belongs to, also when a person re-executed a run of it, or the backfill itself.

    The re-execution of a backfill from its failure runs only what the first one lacks, so the two count as one.
    """
    # Dagster drops the tags of the backfill when a run is re-executed by hand, so its root run is looked up.
    own, root_id = _backfill_tag(run), run.root_run_id or run.tags.get(ROOT_RUN_TAG)
    if own is not None or root_id in (None, run.run_id) or instance is None:
        return own
    root = instance.get_run_by_id(root_id)
    return _backfill_tag(root) if root is not None else None


def runs_of_backfill(backfill_id: str, instance: dg.DagsterInstance) -> Iterator[dg.DagsterRun]:
    """Yield the runs of a backfill and of its re-executions, without those that a person re-executed later."""
    for tag in (BACKFILL_TAG, _ROOT_BACKFILL_TAG):
        yield from instance.get_runs(dg.RunsFilter(tags={tag: backfill_id}))


def rest_of_backfill(run_id: str, instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Return the runs of a re-executed backfill that complete a run that failed, oldest first.

    They have the same partition as that run; Dagster does not record that they continue it.
    """
    run = instance.get_run_by_id(run_id)
    backfill_id = None if run is None or run.is_success else backfill_of(run, instance)
    if run is None or backfill_id is None:
        return ()
    again = dg.RunsFilter(tags={_ROOT_BACKFILL_TAG: backfill_id})
    later = instance.get_run_records(again, cursor=run_id, ascending=True)
    partition = tuple(map(run.tags.get, _PARTITION_TAGS))
    runs = (record.dagster_run for record in later)
    return tuple(later_run.run_id for later_run in runs if tuple(map(later_run.tags.get, _PARTITION_TAGS)) == partition)


def _backfill_tag(run: dg.DagsterRun) -> str | None:
    return run.tags.get(_ROOT_BACKFILL_TAG) or run.tags.get(BACKFILL_TAG)


def _continues_parent(run: dg.DagsterRun, instance: dg.DagsterInstance | None) -> bool:
    if any(tag in run.tags for tag in _PARTIAL_TAGS):
        return True
    root = instance.get_run_by_id(run.root_run_id) if instance and run.root_run_id else None
    if root is None or run.step_keys_to_execute is None or root.step_keys_to_execute is None:
        return False
    # A strict subset: a full re-execution from Python executes the same steps.
    return set(run.step_keys_to_execute) < set(root.step_keys_to_execute)
