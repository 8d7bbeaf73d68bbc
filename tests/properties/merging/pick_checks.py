"""Random cherry-picks, reverts and restores, on throw-away branches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import lance

from lance_dagster import LanceTable
from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Winner
from tests.properties.merging import laws
from tests.properties.merging.change_ranges import ChangeRange, after_pick, known_rows, outcome, with_rows
from tests.properties.merging.laws import hold
from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS, ExpectedConflict, MergeInputs, Outcome
from tests.properties.merging.operation_context import FAST, Dice, opened
from tests.properties.merging.operations import OPERATIONS
from tests.properties.merging.oracle import merges, resolved
from tests.properties.merging.rows_model import Made, Node, Snapshot, VersionGraph
from tests.properties.merging.tally import Tally
from tests.properties.replica import KEY

CHECKED = ("pick", "revert", "restore")
Work = Callable[[str, str, Dice], None]
"""Does some work of a kind on a branch."""


class Take(Protocol):
    """A function that cherry-picks or reverts a change on a branch."""

    def __call__(self, branch: str, strategy: Winner | None = None) -> object:
        """Make or revert the change; the strategy decides conflicts."""


@dataclass(slots=True)
class PickChecks:
    """Checks beside a history, on the heads that its branches have at the time."""

    uri: str
    stable: bool
    graph: VersionGraph
    tally: Tally
    told: list[str]
    work: Work
    _forks: list[str] = field(default_factory=list)

    @property
    def table(self) -> LanceTable:
        """The table as a new process opens it."""
        return LanceTable.open(self.uri, FAST)

    def do(self, kind: str, branch: str, dice: Dice) -> None:
        """Do one of the checks on forks of a branch."""
        self.told.append("")
        try:
            {"pick": self.pick, "revert": self.revert, "restore": self.restore}[kind](branch, dice)
        finally:
            for fork in self._forks:
                del self.graph.heads[fork]
            self._forks.clear()
        if not self.told[-1]:
            self.told.pop()

    def pick(self, onto: str, dice: Dice) -> None:
        """Cherry-pick some version, then sometimes merge the branch that it is from."""
        head = self.graph.head(onto)
        commits = [made for made in self.graph.made.values() if made.parents and not made.merged]
        new = [made for made in commits if made.node not in head.within]
        if not commits:
            return
        commit = dice.pick(new if new and dice.below(5) else commits)
        if commit.node in head.ever and _columns(commit) - _columns(self.graph.made[commit.parents[0]]):
            # It is open whether a column that was renamed and emptied since is the column that the pick adds.
            return
        parent = self.graph.made[commit.parents[0]]
        if _are_renamed(parent.snapshot, head.snapshot):
            return
        trial = self._fork(onto)
        self.tell(f"pick {name_of(commit)} onto {trial}")
        change = ChangeRange.of(commit, parent)

        def take(branch: str, strategy: Winner | None = None) -> object:
            return self.table.cherry_pick(name_of(commit), branch, strategy=strategy)

        result = self._taken("pick", change, trial, take, dice)
        if result is None:
            return
        if dice.below(2) == 0 and commit.node[0] in self.graph.heads:
            self._merged_too(commit, trial, result)
        elif (
            self.stable
            and result.node != head.node
            and commit.node not in head.ever
            and _columns(commit) == _columns(parent)
        ):
            self._taken_back(commit, trial, head, dice)

    def revert(self, where: str, dice: Dice) -> None:
        """Revert some version, then revert the revert, and then revert the version again."""
        head = self.graph.head(where)
        commits = [self.graph.made[node] for node in sorted(head.ever) if self.graph.made[node].parents]
        if not commits:
            return
        commit = head if head.parents and dice.below(3) == 0 else dice.pick(commits)
        number = 1 + dice.below(len(commit.parents))
        parent = self.graph.made[commit.parents[number - 1]]
        given = number if commit.merged else None
        trial = self._fork(where)
        self.tell(f"revert {name_of(commit)} on {trial}" + (f", parent {number}" if commit.merged else ""))

        def take(branch: str, strategy: Winner | None = None) -> object:
            return self.table.revert(name_of(commit), branch, parent=given, strategy=strategy)

        if commit.node == head.node:
            if not self._done_at_once(trial, take, commit, number):
                return
            self._exactly(trial, parent, "revert the last")
            self._again("revert", trial, take)
            self.tally.done["reverted the last"] += 1
            made: Made | None = self._made(trial, parent.snapshot, head, commit)
        else:
            made = self._taken("revert", ChangeRange.back(commit, parent), trial, take, dice)
        if made is None or made.node == head.node:
            return
        self.tell("... then that")
        self.table.revert(trial, trial)
        self._exactly(trial, head, "revert the revert")
        self.tally.done["reverted the revert"] += 1
        self.tell("... then the version again")
        take(trial)
        self._exactly(trial, made, "revert again")

    def _done_at_once(self, trial: str, take: Take, commit: Made, number: int) -> bool:
        """Revert the newest version, which is refused only for rows that could be identified only by their ids."""
        try:
            take(trial)
        except MergeConflictError as error:
            if self.stable or number == 1:
                raise
            self._refused("revert the last", error, [Outcome(commit.snapshot)])
            return False
        return True

    def restore(self, branch: str, dice: Dice) -> None:
        """Restore any version on a branch, which sometimes has changes of its own; restore back, and merge it."""
        trial, other = self._fork(branch), self._fork(branch)
        for _ in range(dice.below(3)):
            self.work(dice.pick(list(OPERATIONS)), trial, dice)
        head = self.graph.head(trial)
        past = self.graph.past(trial)
        if not past:
            return
        target = self.graph.made[dice.pick(past)]
        number = opened(self.uri, trial).version
        self.told.append("")
        self.tell(f"restore {name_of(target)} on {trial}")
        self.table.restore(name_of(target), trial)
        self._exactly(trial, target, "restore")
        far = target.node[0] != trial
        laws.well_formed(self.table, trial, deep=dice.below(8) == 0)
        laws.indexed(
            self.uri, trial, replace(target.snapshot, indices=self._indices(trial, target, head, target.snapshot))
        )
        self.tally.done["restored across a fork" if far else "restored"] += 1
        if dice.below(2):
            self.tell("... then merge it")
            self.table.merge(trial, into=other)
            laws.same(self.table, other, target.snapshot, "merge what was restored")
            laws.well_formed(self.table, other)
            self.tally.done["merged what was restored"] += 1
        if opened(self.uri, trial).version == number:
            return
        if dice.below(2):
            self.tell("... then take that back")
            self.table.revert(trial, trial)
        else:
            self.tell("... then restore what was before")
            self.table.restore(f"{trial}@{number}", trial)
        self._exactly(trial, head, "take a restore back")

    def tell(self, what: str) -> None:
        """Add to the story of this trial."""
        self.told[-1] = f"{self.told[-1]} {what}".strip()

    def _fork(self, branch: str, at: Made | None = None) -> str:
        """Fork a branch from the head of another one, or from a version of that branch itself."""
        name = f"x{len(self.told)}-{len(self._forks)}"
        ref = branch if at is None else name_of(at)
        self.table.branches.create(name, ref)
        self.graph.fork(name, self.graph.heads[branch] if at is None else at.node, branch)
        self._forks.append(name)
        self.tell(f"fork {name} from {ref}.")
        return name

    def _made(self, trial: str, result: Snapshot, head: Made, of: Made) -> Made:
        """Add the newest version of a branch to the model; return the known head if that is still the newest."""
        number = opened(self.uri, trial).version
        if number == head.node[1]:
            return head
        node = (trial, number)
        made = Made(
            node=node,
            snapshot=result,
            within=head.within | {node},
            ever=head.ever | {node},
            did=of.did,
            claims=of.claims,
            partitions=of.partitions,
            parents=(head.node,),
        )
        self.graph.add(made)
        return made

    def _taken(self, kind: str, change: ChangeRange, trial: str, take: Take, dice: Dice) -> Made | None:
        """Make or revert a change, and compare it with the rules; None when it is refused."""
        head = self.graph.head(trial)
        all_inputs = change.all_inputs(self.graph, head)
        outcomes = [outcome(inputs) for inputs in all_inputs]
        # A revert of a replacement restores rows that the branch had; a pick brings rows only if they are not gone.
        known = [known_rows(self.graph, head, inputs) if kind == "pick" else {} for inputs in all_inputs]
        if kind == "pick" and (any(known) or change.did.node in head.ever):
            # Later changes may hide that the change is already there. Rows that were deleted may have to come again.
            told = [outcome(with_rows(inputs, rows)) for inputs, rows in zip(all_inputs, known, strict=True)]
            again = change.did.node not in head.ever and any(rows.keys() - head.snapshot.rows.keys() for rows in known)
            outcomes = [*told, *outcomes] if again or not self.stable else told
            there = ExpectedConflict("history", "picked where it is", hard=False)
            outcomes = [one.but(there) for one in outcomes]
            if change.did.node in head.ever:
                outcomes.append(Outcome(head.snapshot, [there]))
        kept = laws.row_ids(opened(self.uri, trial)) if self.stable else {}
        try:
            take(trial)
        except MergeConflictError as error:
            self._refused(kind, error, outcomes)
            hold(head.node[1] == opened(self.uri, trial).version, "refusal", "a version was made")
            if dice.below(3) == 0:
                inputs = with_rows(all_inputs[0], known[0])
                self._decided(kind, inputs, error, take, trial, dice.pick([SOURCE_WINS, DEST_WINS]))
            return None
        result = self._outcome(kind, trial, outcomes)
        result = replace(result, indices=self._indices(trial, change.source, head, result))
        self.tally.done[kind] += 1
        laws.well_formed(self.table, trial, deep=dice.below(8) == 0)
        laws.indexed(self.uri, trial, result)
        if self.stable and change.did.did not in ("overwrite", "restore", "merge"):
            laws.lineage_kept(kept, laws.row_ids(opened(self.uri, trial)), opened(self.uri, trial).version)
        self._again(kind, trial, take)
        return self._made(trial, result, head, change.did)

    def _outcome(self, law: str, trial: str, outcomes: Sequence[Outcome]) -> Snapshot:
        conflicts = [conflict for one in outcomes for conflict in one.conflicts if conflict.hard]
        hold(not all(one.must_refuse for one in outcomes), f"missed conflict, {law}", f"done in spite of {conflicts}")
        return laws.same_as_one(self.table, trial, [one.result for one in outcomes if not one.must_refuse], law)

    def _again(self, kind: str, trial: str, take: Take) -> None:
        """Check that making or reverting the same change again makes no version."""
        number = opened(self.uri, trial).version
        try:
            take(trial)
        except MergeConflictError as error:
            self.tally.done[f"{kind} again refused"] += 1
            self.tally.needless_picks.append(("; ".join(map(str, error.conflicts)), "\n".join([*self.told, "again"])))
        hold(number == opened(self.uri, trial).version, f"{kind} again", "a version was made")

    def _refused(self, kind: str, error: MergeConflictError, outcomes: Sequence[Outcome]) -> None:
        hold(bool(error.conflicts), "refusal", "no reason was given")
        if any(one.must_refuse for one in outcomes):
            self.tally.done[f"{kind}: conflict"] += 1
        elif laws.one_of(outcomes).may_refuse:
            self.tally.done[f"{kind}: refused where that is allowed"] += 1
        else:
            self.tally.done[f"{kind}: needless"] += 1
            self.tally.needless_picks.append(("; ".join(map(str, error.conflicts)), "\n".join(self.told)))
        self.tell("refused")

    def _decided(
        self, kind: str, inputs: MergeInputs, told: MergeConflictError, take: Take, trial: str, strategy: Winner
    ) -> None:
        """Check that a strategy can decide a conflict for either side."""
        self.tell(f"... then {strategy}")
        try:
            take(trial, strategy)
        except MergeConflictError as error:
            self.tally.undecided.append((strategy, "; ".join(map(str, error.conflicts)), "\n".join(self.told)))
            return
        self.tally.done[f"{kind}, {strategy}"] += 1
        since = [made.snapshot for made in (*inputs.source_did, *inputs.dest_did)]
        unknown = any("no key" in conflict.unit for conflict in outcome(inputs).conflicts)
        wanted = None if unknown else resolved(inputs, strategy, told.conflicts)
        laws.decided(self.table, trial, (*since, inputs.base, inputs.source, inputs.dest), wanted)

    def _merged_too(self, commit: Made, trial: str, picked: Made) -> None:
        """Check that a merge of the branch that a change was picked from does not make the change twice.

        It cannot be known that a column that was picked, or its type, is the same one, so this may be refused.
        """
        source = commit.node[0]
        self.tell(f"... then merge {source}")
        plain = merges(self.graph, self.graph.head(source), picked)
        outcomes = after_pick(self.graph, self.graph.head(source), picked, commit)
        columns = _columns(commit) <= _columns(self.graph.made[commit.parents[0]])
        if not columns or any(one.conflicts for one in plain):
            outcomes = [one.but(ExpectedConflict("rows", "picked", hard=False)) for one in outcomes]
        column_conflict = not columns and any(
            conflict.hard for one in outcomes for conflict in one.conflicts if conflict.kind == "column"
        )
        number = opened(self.uri, trial).version
        try:
            self.table.merge(source, into=trial)
        except MergeConflictError as error:
            self._refused("merge a picked one", error, outcomes)
            hold(number == opened(self.uri, trial).version, "refusal", "a version was made")
            return
        if not column_conflict:
            self._outcome("merge a picked one", trial, outcomes if self.stable else [*outcomes, *plain])
        laws.well_formed(self.table, trial)
        self.tally.done["merge a picked one"] += 1

    def _taken_back(self, commit: Made, trial: str, head: Made, dice: Dice) -> None:
        """Check that a pick and its revert cancel out in a merge with the branch that was picked from.

        Rows that the revert brought back may count as changed, so the merge may be refused.
        """
        if commit.node[0] not in self.graph.heads:
            return
        self.tell("... then take it back")
        self.table.revert(trial, trial)
        self._exactly(trial, head, "revert a pick")
        other = self._fork(commit.node[0])
        sides = (trial, other) if dice.below(2) else (other, trial)
        made = {trial: head, other: self.graph.head(commit.node[0])}
        self.tell(f"and merge {sides[0]} into {sides[1]}")
        found = merges(self.graph, made[sides[0]], made[sides[1]])
        outcomes = [one.but(ExpectedConflict("rows", "brought back", hard=False)) for one in found]
        try:
            self.table.merge(sides[0], into=sides[1])
        except MergeConflictError as error:
            self._refused("merge a pick taken back", error, outcomes)
            return
        self._outcome("merge a pick taken back", sides[1], outcomes)
        laws.well_formed(self.table, sides[1])
        self.tally.done["merged a pick taken back"] += 1

    def _exactly(self, trial: str, wanted: Made, law: str) -> None:
        """Check that a branch has exactly the content of some version, including its schema."""
        laws.same(self.table, trial, wanted.snapshot, law)
        laws.well_formed(self.table, trial)
        schemas = _at(self.uri, wanted.node).schema, opened(self.uri, trial).schema
        hold(bool(schemas[0].equals(schemas[1], check_metadata=True)), law, f"schema: {schemas[0]}, not {schemas[1]}")

    def _indices(self, trial: str, source: Made, dest: Made, result: Snapshot) -> dict[str, int]:
        return laws.indices_left(opened(self.uri, trial), source.snapshot, dest.snapshot, result)


def _are_renamed(one: Snapshot, other: Snapshot) -> bool:
    """Return whether a column may have another name than before an overwrite, where the model matches names only."""
    keys = [state.by_name(KEY) for state in (one, other)]
    if keys[0] is None or keys[1] is None or keys[0].token == keys[1].token:
        return False
    names, others = ({(column.name, column.type) for column in state.columns} for state in (one, other))
    return bool(names - others and others - names)


def _columns(made: Made) -> set[tuple[int, int]]:
    return {(column.token, column.cast) for column in made.snapshot.columns}


def name_of(made: Made) -> str:
    """The version as a ref expression."""
    return f"{made.node[0]}@{made.node[1]}"


def _at(uri: str, node: Node) -> lance.LanceDataset:
    branch, number = node
    return lance.dataset(uri).checkout_version((None if branch == "main" else branch, number))
