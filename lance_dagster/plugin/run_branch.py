"""The branch of one Dagster run in one table.

A run writes each table on its own branch, `run/<run id>`. The branch is forked at the run's first write to the
table: from the newest branch of the runs that it continues, or else from `main`. Reads follow the same chain.

All state is in the table's refs and commits. With the multiprocess executor every step is a process of its own,
so a value kept in memory would be unknown to the next step.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lance_dagster.errors import InvalidInputError, LanceDagsterError, RefNotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.refs.ref_store import Branch
from lance_dagster.history.versions import Version
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.run_chain import BRANCH_TAG, RunChain, branch_of
from lance_dagster.table import LanceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBranch:
    """The branches of a chain of runs in one table: the branch that the run writes, and those that it reads."""

    table: LanceTable
    chain: RunChain

    @property
    def name(self) -> str:
        """The branch that this run writes; `main` outside of a run."""
        return self.chain.branch_names[0] if self.chain.branch_names else MAIN

    def find(self) -> Branch | None:
        """Return the newest branch of the chain in this table, or None when no run of the chain has a branch here."""
        # Look branches up by name: a list reads the file of every branch, and a table may have thousands.
        for name in self.chain.branch_names:
            with suppress(RefNotFoundError):
                return self.table.branches.get(name)
        return None

    def written(self) -> Version | None:
        """Return the head of the newest branch of the chain that has its own commits, or None."""
        for name in self.chain.branch_names:
            with suppress(RefNotFoundError):
                head = self.table.head(name)
                # A step that failed after the fork leaves a branch without commits of its own.
                if is_written(head):
                    return head
        return None

    def ensure(self) -> str:
        """Fork the branch of the run unless it exists, and return its name.

        Two processes of a run may call this at the same time; both get the same branch.

        Raises:
            InvalidInputError: The run's tag `lance/branch` names `main`.
        """
        if not self.chain.run_ids:
            return MAIN
        if self.name == MAIN:
            raise InvalidInputError(
                f"the run's tag {BRANCH_TAG} names main; a run writes a branch of its own, and its publisher merges it"
            )
        parent = self.find()
        if parent is None or parent.name != self.name:
            at = parent.name if parent else MAIN
            self.table.branches.create(self.name, at=at, exist_ok=True, metadata=self.chain.branch_metadata())
        return self.name

    def earlier_attempt(self, properties: Mapping[str, str]) -> Version | None:
        """Return the version that an earlier attempt of the same step committed, or None.

        An attempt is the same when the step, the asset and the partitions are equal. It may be in this run, before
        a retry by Dagster, or in a run that this one continues.

        Args:
            properties: The properties of the commit that is about to be made.
        """
        # Not the run id: Dagster's retry policy repeats a step in the same run, a re-execution in another one.
        same = (md.STEP_KEY, md.ASSET_KEY, md.PARTITION_KEYS)
        if md.STEP_KEY not in properties:
            return None
        for version in self._own_versions():
            committed = version.properties
            of_chain = committed.get(md.RUN_ID) in self.chain.run_ids
            if of_chain and all(committed.get(key) == properties.get(key) for key in same):
                return version
        return None

    def retire(self) -> tuple[str, ...]:
        """Delete the published run branches of the chain, and return which ones were kept and why.

        A branch is kept when `main` does not contain all its versions, when another branch was forked from it,
        and when a tag names one of its versions. The branch that the run's tag `lance/branch` names is always
        kept: the run did not create it.
        """
        kept = []
        # Newest run first: its branch was forked from the next one, which cannot be deleted before it.
        for name in map(branch_of, self.chain.run_ids):
            try:
                if self.table.branches.is_merged(name) is None:
                    kept.append(f"{name}: it has commits that were not published")
                else:
                    self.table.branches.delete(name)
            except RefNotFoundError:
                # The run did not write this table, or an interrupted publisher deleted the branch already.
                continue
            except LanceDagsterError as error:
                kept.append(f"{name}: {error}")
        return tuple(kept)

    def _own_versions(self) -> Iterator[Version]:
        """Yield the versions of the branch and of the branches it was forked from, `main` excluded, newest first."""
        branches = self.table.branches.list()
        name, until = self.name, math.inf
        # The list of branches does not contain main, so the search ends there: versions of main are published,
        # and a commit on the run branch cannot take their rows back.
        while name in branches:
            for number in reversed(self.table.branches.version_numbers(name)):
                if number <= until:
                    yield self.table.at(f"{name}@{number}")
            name, until = branches[name].parent_branch, branches[name].parent_version


def is_written(head: Version) -> bool:
    """Return whether the head of a branch is its own commit; the first manifest of a branch only records the fork."""
    return head.operation != "Clone"
