"""The branch of one Dagster run in one table.

A run writes each table on a branch of its own, `run/<run id>`, forked when it first writes that table: from
the newest branch of the runs it continues, else from `main`. Reading follows the same chain. No state is kept
between calls, because under the multiprocess executor every step is a process of its own.
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
    """The branch that a run writes to in a table, and the ones it reads through."""

    table: LanceTable
    chain: RunChain

    @property
    def name(self) -> str:
        """The branch this run writes to; `main` outside of a run."""
        return self.chain.branch_names[0] if self.chain.branch_names else MAIN

    def find(self) -> Branch | None:
        """Return the newest branch of the chain that this table has, or None when no run of the chain wrote it."""
        # By name: a table may have the branches of thousands of runs, and a list reads the file of each.
        for name in self.chain.branch_names:
            with suppress(RefNotFoundError):
                return self.table.branches.get(name)
        return None

    def written(self) -> Version | None:
        """Return the head of the newest branch of the chain that has a commit of its own, or None."""
        for name in self.chain.branch_names:
            with suppress(RefNotFoundError):
                head = self.table.head(name)
                if is_written(head):
                    return head
        return None

    def ensure(self) -> str:
        """Fork the branch unless it is there, and return its name.

        Two processes of a run may do this at once: both get the same branch.

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
        """Return what an earlier attempt of the same step committed for the same partitions, or None.

        The earlier attempt may be a retry within this run, or belong to a run this one continues.
        """
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
        """Delete the published run branches of the chain, child before parent; return what was kept and why.

        A branch that has something `main` has not is kept, and one that others were forked from or a tag
        names. So is one the run was told to use by its `lance/branch` tag, which belongs to whoever made it.
        """
        kept = []
        for name in map(branch_of, self.chain.run_ids):
            try:
                if self.table.branches.is_merged(name) is None:
                    kept.append(f"{name}: it has commits that were not published")
                else:
                    self.table.branches.delete(name)
            except RefNotFoundError:
                # The run wrote another table, or an interrupted publisher has deleted the branch already.
                continue
            except LanceDagsterError as error:
                kept.append(f"{name}: {error}")
        return tuple(kept)

    def _own_versions(self) -> Iterator[Version]:
        """Yield the versions of the branch and of the run branches it was forked from, newest first."""
        branches = self.table.branches.list()
        name, until = self.name, math.inf
        # The list has no main, so the search ends there: what main contains is published and not repeated.
        while name in branches:
            for number in reversed(self.table.branches.version_numbers(name)):
                if number <= until:
                    yield self.table.at(f"{name}@{number}")
            name, until = branches[name].parent_branch, branches[name].parent_version


def is_written(head: Version) -> bool:
    """Return whether a branch has a commit of its own; its first manifest only records the fork."""
    return head.operation != "Clone"
