"""One table on disk, the model of all its versions, and merges that are compared with the rules."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import lance
import pyarrow as pa

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from tests.properties.merging import laws, unchanged
from tests.properties.merging.laws import hold
from tests.properties.merging.merge_checks import MergeChecks
from tests.properties.merging.merge_inputs import Outcome
from tests.properties.merging.operation_context import (
    FAST,
    PARTS,
    PLACE,
    Dice,
    Names,
    OperationContext,
    OperationResult,
    opened,
)
from tests.properties.merging.operations import OPERATIONS
from tests.properties.merging.oracle import merges
from tests.properties.merging.orders import any_order
from tests.properties.merging.pick_checks import CHECKED
from tests.properties.merging.revert_checks import RevertChecks
from tests.properties.merging.rows_model import PART, Column, Made, Snapshot, VersionGraph
from tests.properties.merging.tally import Tally
from tests.properties.merging.unchanged import Stored
from tests.properties.replica import KEY

BASIC: tuple[tuple[str, pa.DataType], ...] = (
    (KEY, pa.int64()),
    (PART, pa.string()),
    ("num", pa.int32()),
    ("word", pa.string()),
    ("place", PLACE),
    ("tags", pa.list_(pa.int32())),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: an operation, a fork or a merge; the program that does it; and numbers for its random choices."""

    kind: str
    branch: str
    other: str
    by_package: bool
    numbers: tuple[int, ...]


class Merger(Protocol):
    """A function that merges; a test passes one that merges wrongly."""

    def __call__(self, table: LanceTable, source: str, into: str) -> None:
        """Merge a branch into another."""


def merge_by_package(table: LanceTable, source: str, into: str) -> None:
    """Merge as this package does."""
    table.merge(source, into=into)


@dataclass(slots=True)
class TableModel:
    """One history."""

    stable: bool
    tally: Tally
    merger: Merger = merge_by_package
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="merging-")))
    graph: VersionGraph = field(default_factory=VersionGraph)
    names: Names = field(default_factory=Names)
    told: list[str] = field(default_factory=list)
    checks: type[RevertChecks] = RevertChecks
    stored: dict[str, Stored] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The place of the table."""
        return str(self.folder / "table")

    @property
    def table(self) -> LanceTable:
        """The table as a new process opens it."""
        return LanceTable.open(self.uri, FAST)

    @property
    def pick_checks(self) -> RevertChecks:
        """Checks of cherry-picks, reverts and restores on throw-away branches."""
        return self.checks(
            uri=self.uri,
            stable=self.stable,
            graph=self.graph,
            tally=self.tally,
            told=self.told,
            work=lambda kind, branch, dice: self.work(Step(kind, branch, "", bool(dice.below(2)), dice.numbers)),
        )

    def start(self, rows: int, fragments: int) -> None:
        """Create the table."""
        columns = tuple(Column(token=next(self.names.numbers), name=name, type=kind) for name, kind in BASIC)
        given = [self.names.row(columns, PARTS[number % 3]) for number in range(rows)]
        snapshot = Snapshot(columns=columns)
        snapshot = snapshot.put({int(str(row[columns[0].token])): row for row in given}, next(self.names.numbers))
        data = snapshot.arrow(given)
        most = max(1, -(-rows // fragments))
        lance.write_dataset(data, self.uri, enable_stable_row_ids=self.stable, max_rows_per_file=most)
        node = ("main", 1)
        self.graph.add(
            Made(node=node, snapshot=snapshot, within=frozenset([node]), ever=frozenset([node]), did="create")
        )
        self.told.append(f"create {sorted(snapshot.rows)} in {fragments} fragments, stable row ids: {self.stable}")

    def close(self) -> None:
        """Delete the files of the history."""
        shutil.rmtree(self.folder)

    def look_at_files(self) -> None:
        """Check that all files of the last check still exist, and were not written again."""
        stored = unchanged.stored(self.folder)
        unchanged.kept(self.stored, stored)
        self.stored = stored

    def look_at_orders(self) -> None:
        """Check that the order in which all branches are merged into main makes no difference, if they can be."""
        branches = sorted(name for name in self.graph.heads if name.startswith("b"))
        if len(branches) > 1:
            self.told.append(f"merge {', '.join(branches)} into a fork of main, and the other way round ...")
            found = any_order(self.table, "main", [branches, branches[::-1]])
            self.tally.done["merged in any order"] += set(found.values()) == {None}

    def look_back(self) -> None:
        """Check that no version has changed."""
        for node, made in self.graph.made.items():
            laws.as_before(self.table, node, made.snapshot)

    def do(self, step: Step) -> None:
        """Do one step; a step that is impossible is left out."""
        if step.branch not in self.graph.heads and step.kind != "fork":
            return
        if step.kind == "fork":
            self.fork(step)
        elif step.kind == "merge":
            if step.other in self.graph.heads and step.other != step.branch:
                self.merge(step.branch, step.other, Dice(step.numbers))
                self.look_at_files()
        elif step.kind in CHECKED:
            self.pick_checks.do(step.kind, step.branch, Dice(step.numbers))
        else:
            self.work(step)

    def fork(self, step: Step) -> None:
        """Fork a branch, mostly from the head of another one, sometimes from an older version."""
        if step.branch in self.graph.heads or step.other not in self.graph.heads:
            return
        dice = Dice(step.numbers)
        line = self.graph.line(step.other)
        node = dice.pick(line) if line and dice.below(6) == 0 else self.graph.heads[step.other]
        at = (step.other, node[1])
        if step.by_package:
            self.table.branches.create(step.branch, f"{at[0]}@{at[1]}")
        else:
            opened(self.uri, step.other).create_branch(step.branch, at if at[0] != "main" else (None, at[1]))
        self.graph.fork(step.branch, node, step.other)
        self.told.append(
            f"fork {step.branch} from {at[0]}@{at[1]} by {'the package' if step.by_package else 'pylance'}"
        )

    def work(self, step: Step) -> None:
        """Do an operation on a branch, and check that it has the intended result."""
        head = self.graph.head(step.branch)
        others = {uid for node in self.graph.heads.values() for uid in self.graph.made[node].snapshot.rows}
        ever = {uid for node in head.within for uid in self.graph.made[node].snapshot.rows}
        context = OperationContext(
            uri=self.uri,
            branch=step.branch,
            seen=head.snapshot,
            names=self.names,
            dice=Dice(step.numbers),
            by_package=step.by_package,
            line={node: self.graph.made[node].snapshot for node in self.graph.line(step.branch)},
            taken=frozenset(others - ever),
        )
        who = "the package" if step.by_package else "pylance"
        self.told.append(f"{step.branch}: {step.kind} by {who} ...")
        performed = OPERATIONS[step.kind][0](context)
        if performed is None:
            self.told.pop()
            return
        number = opened(self.uri, step.branch).version
        self.told[-1] = f"{step.branch}@{number}: {performed.did} {performed.told} by {who}"
        self.tally.done[performed.did] += 1
        if number != head.node[1]:
            self.graph.add(self._made(step.branch, number, performed, head))
        laws.same(self.table, step.branch, performed.result, "work")

    def _made(self, branch: str, number: int, performed: OperationResult, head: Made) -> Made:
        node = (branch, number)
        within = head.within
        if performed.restored is not None:
            # Later merges are removed, and so is the record of them.
            within = self.graph.made[performed.restored].within.union(self.graph.line(branch))
        return Made(
            node=node,
            snapshot=performed.result,
            within=within | {node},
            ever=head.ever | {node},
            claims=performed.claims,
            did=performed.did,
            partitions=performed.partitions,
            parents=(head.node,),
        )

    def merge(self, source: str, into: str, dice: Dice) -> None:
        """Merge a branch into another one, and check that the result is that of the rules."""
        source_head, dest_head = self.graph.head(source), self.graph.head(into)
        new = bool(self.graph.since(source_head.within, dest_head.within))
        outcomes = merges(self.graph, source_head, dest_head)
        agreed = laws.one_of(outcomes)
        before = {branch: opened(self.uri, branch).version for branch in self.graph.heads}
        kept = laws.row_ids(opened(self.uri, into)) if self.stable else {}
        self.told.append(f"merge {source} into {into} ...")
        beside = self._beside(source, into, dice)
        foretold, mirrored = beside.foretold(outcomes)
        if dice.below(3) == 0:
            beside.cut_short()
        elif new and not foretold and dice.below(3) == 0:
            beside.unknown()
        try:
            self.merger(self.table, source, into)
        except MergeConflictError as error:
            self._refused(error, outcomes, agreed, before)
            beside.decided(error.conflicts, mirrored=mirrored)
            hold(foretold == error.conflicts, "preview", f"{foretold} but {error.conflicts}")
            self.told[-1] = f"merge {source} into {into} refused"
            return
        number = opened(self.uri, into).version
        self.told[-1] = f"{into}@{number}: merge {source}"
        conflicts = [conflict for outcome in outcomes for conflict in outcome.conflicts if conflict.hard]
        hold(not all(outcome.must_refuse for outcome in outcomes), "missed conflict", f"merged in spite of {conflicts}")
        hold(not foretold, "preview", f"merged, but {foretold} were foretold")
        candidates = [outcome.result for outcome in outcomes if not outcome.must_refuse]
        result = laws.same_as_one(self.table, into, candidates, "merge")
        left = laws.indices_left(opened(self.uri, into), source_head.snapshot, dest_head.snapshot, result)
        result = replace(result, indices=left)
        self.tally.done["merged" if new else "nothing to merge"] += 1
        self.tally.judged[self.stable].should_pass += new
        if number != before[into]:
            node = (into, number)
            within, ever = source_head.within | dest_head.within | {node}, source_head.ever | dest_head.ever | {node}
            parents = (dest_head.node, source_head.node)
            self.graph.add(Made(node=node, snapshot=result, within=within, ever=ever, did="merge", parents=parents))
        else:
            hold(laws.same_content(result, dest_head.snapshot), "merge", "nothing was committed")
        did = {made.did for made in self.graph.since(source_head.within, dest_head.within)}
        if self.stable and not did & {"overwrite", "restore"}:
            laws.lineage_kept(kept, laws.row_ids(opened(self.uri, into)), number)
        self._after(source, into, number)
        if new and number != before[into]:
            beside.made(self.graph.head(into), before[into])

    def _beside(self, source: str, into: str, dice: Dice) -> MergeChecks:
        return MergeChecks(
            uri=self.uri,
            source=source,
            into=into,
            source_head=self.graph.head(source),
            dest_head=self.graph.head(into),
            graph=self.graph,
            tally=self.tally,
            told=self.told,
            dice=dice,
            revert_checks=lambda: self.pick_checks,
        )

    def _after(self, source: str, into: str, number: int) -> None:
        """Check the laws that hold after every merge."""
        self.table.merge(source, into=into)
        hold(number == opened(self.uri, into).version, "merged again", "a second merge made a version")
        hold(self.table.branches.is_merged(source, into) is not None, "merged again", "it is said not to be merged")
        laws.well_formed(self.table, into)
        laws.indexed(self.uri, into, self.graph.head(into).snapshot)

    def _refused(
        self,
        error: MergeConflictError,
        outcomes: Sequence[Outcome],
        agreed: Outcome,
        before: dict[str, int],
    ) -> None:
        hold(bool(error.conflicts), "refusal", "no reason was given")
        after = {branch: opened(self.uri, branch).version for branch in before}
        hold(before == after, "refusal", f"versions were made: {before} {after}")
        if any(outcome.must_refuse for outcome in outcomes):
            self.tally.done["conflict"] += 1
        elif agreed.may_refuse:
            self.tally.done["refused where that is allowed"] += 1
        else:
            self.tally.done["needless"] += 1
            refused = ("; ".join(map(str, error.conflicts)), "\n".join(self.told))
            self.tally.needless.append(refused)
            self.tally.judged[self.stable].should_pass += 1
            self.tally.judged[self.stable].refused.append(refused)
