"""Checks beside a merge, on throw-away branches: other ways to the same result, and merges that end early."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lance_dagster import LanceTable, MergePreview
from lance_dagster.errors import LanceDagsterError, MergeConflictError, Reason
from lance_dagster.merge.rules.strategy import Conflict
from lance_dagster.types import Strategy, Winner
from tests.properties.merging import laws
from tests.properties.merging.crashes import cut_short
from tests.properties.merging.laws import hold
from tests.properties.merging.merge_inputs import DEST_WINS, SOURCE_WINS, MergeInputs, Outcome
from tests.properties.merging.operation_context import FAST, Dice, opened
from tests.properties.merging.oracle import resolved
from tests.properties.merging.revert_checks import RevertChecks
from tests.properties.merging.rows_model import Made, Node, Snapshot, VersionGraph
from tests.properties.merging.symmetry import OTHER, mirrored, mirrors, same_rows
from tests.properties.merging.tally import Tally
from tests.properties.merging.unknown import MANIFESTS, OPERATION, unknown

_OFFERED = re.compile(r"strategy (.+): ('(?:source|dest)-wins'(?: or '(?:source|dest)-wins')?)")
_WINNER = re.compile("(?:source|dest)-wins")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeChecks:
    """The checks of one merge, with the heads of both branches before it."""

    uri: str
    source: str
    into: str
    source_head: Made
    dest_head: Made
    graph: VersionGraph
    tally: Tally
    told: list[str]
    dice: Dice
    revert_checks: Callable[[], RevertChecks]

    @property
    def table(self) -> LanceTable:
        """The table as a new process opens it."""
        return LanceTable.open(self.uri, FAST)

    def foretold(self, outcomes: Sequence[Outcome]) -> tuple[tuple[Conflict, ...], bool]:
        """Preview the merge in both directions; return its conflicts, and whether both directions have the same."""
        table = self.table
        there, back = table.preview_merge(self.source, self.into), table.preview_merge(self.into, self.source)
        self._hints_are_true(there)
        lopsided = mirrored(there, back, (len(self.source_head.snapshot.rows), len(self.dest_head.snapshot.rows)))
        if lopsided and back.conflicts and not any(outcome.may_refuse for outcome in outcomes):
            # The merge in the actual direction is judged when it is made.
            story = "\n".join([*self.told, "... the other way round"])
            self.tally.needless.append(("; ".join(map(str, back.conflicts)), story))
        missed = lopsided and not back.conflicts and all(outcome.must_refuse for outcome in outcomes)
        hold(not missed, "missed conflict", f"the other way round, in spite of {there.conflicts}")
        return there.conflicts, mirrors(there, back)

    def _hints_are_true(self, preview: MergePreview) -> None:
        """Check that the call in the remedy settles all conflicts, and each strategy in a hint its own conflict."""
        call = preview.remedy.call if preview.remedy is not None else None
        if call is not None:
            left = self._left(call.named["strategy"])  # type: ignore[arg-type]  # it is a strategy
            hold(not left, "hint", f"{call} leaves {left}")
        for conflict in preview.conflicts:
            offered = _OFFERED.match(conflict.hint)
            for winner in _WINNER.findall(offered[2]) if offered else ():
                left = self._left({ast.literal_eval(offered[1]): winner}) if offered else ()
                same = [each for each in left if (each.kind, each.unit) == (conflict.kind, conflict.unit)]
                hold(not same, "hint", f"{conflict.hint} leaves {same}")

    def _left(self, strategy: Strategy) -> tuple[Conflict, ...]:
        return self.table.preview_merge(self.source, self.into, strategy=strategy).conflicts

    def cut_short(self) -> None:
        """Begin the merge and interrupt it: the dest has the state before the merge, or that after it."""
        before = opened(self.uri, self.into).version
        ended = cut_short(self.uri, self.source, self.into, self.dice)
        self.tally.done[f"a merge that {ended}"] += 1
        after = opened(self.uri, self.into).version
        hold(after - before in (0, 1), "cut short", f"{self.into} was at {before}, is at {after}")
        if after == before:
            laws.same(self.table, self.into, self.dest_head.snapshot, "cut short")

    def unknown(self) -> None:
        """Check that a version with an unknown feature or operation is refused, and no version is made."""
        bases = self.graph.bases(self.source_head.within, self.dest_head.within)
        what = self.dice.pick([*MANIFESTS, OPERATION])
        choices = [self.source_head.node, self.dest_head.node, *(base.node for base in bases)]
        if what == OPERATION:
            choices = self._not_merged()
        if not choices:
            return
        node = self.dice.pick(choices)
        before = opened(self.uri, self.into).version
        try:
            with unknown(self.uri, node, what):
                self.table.merge(self.source, into=self.into)
        except LanceDagsterError:
            self.tally.done["unknown refused"] += 1
        else:
            hold(False, "unknown", f"merged although nobody knows the {what} of {node}")  # noqa: FBT003  # always
        hold(before == opened(self.uri, self.into).version, "unknown", "a version was made")

    def _not_merged(self) -> list[Node]:
        """Return the versions of either side that no merge contains: a program that merged one has understood it."""
        sides = sorted(self.source_head.within ^ self.dest_head.within)
        merges = [made for made in self.graph.made.values() if made.merged]
        return [
            node
            for node in sides
            if not self.graph.made[node].merged
            and not any(node in made.within and node[0] != made.node[0] for made in merges)
        ]

    def decided(self, conflicts: Sequence[Reason], *, mirrored: bool) -> None:
        """Check that strategies decide conflicts for either side, equally in both directions if these are mirrored."""
        bases = self.graph.bases(self.source_head.within, self.dest_head.within)
        did = self.graph.since(self.source_head.within, self.dest_head.within)
        others = self.graph.since(self.dest_head.within, self.source_head.within)
        inputs = MergeInputs(bases[0].snapshot, self.source_head.snapshot, self.dest_head.snapshot, did, others)
        told = self.told[-1]
        both = self.dice.pick([SOURCE_WINS, DEST_WINS])
        for strategy in (SOURCE_WINS, DEST_WINS):
            trial = f"t{len(self.told)}-{strategy}"
            self.table.branches.create(trial, self.into)
            self.told[-1] = f"merge {self.source} into a fork of {self.into}, {strategy} ..."
            try:
                self.table.merge(self.source, into=trial, strategy=strategy)
            except MergeConflictError as error:
                self.tally.undecided.append((strategy, "; ".join(map(str, error.conflicts)), "\n".join(self.told)))
            else:
                self.tally.done[strategy] += 1
                wanted = resolved(inputs, strategy, conflicts) if len(bases) == 1 else None
                since = [made.snapshot for made in (*did, *others)]
                laws.decided(self.table, trial, (*since, inputs.base, inputs.source, inputs.dest), wanted)
                if mirrored and strategy == both:
                    self._decided_back(trial, OTHER[strategy])
        self.told[-1] = told

    def _decided_back(self, trial: str, strategy: Winner) -> None:
        """Check that the merge in the other direction has the same rows with the opposite strategy."""
        back = f"{trial}-back"
        self.table.branches.create(back, self.source)
        try:
            self.table.merge(self.into, into=back, strategy=strategy)
        except MergeConflictError:
            return
        same_rows(self.table, trial, back, "strategies both ways")
        self.tally.done["decided both ways"] += 1

    def made(self, merge: Made, before: int) -> None:
        """Check that another way to make the merge has the same result; each call checks one kind of way.

        Args:
            merge: The version that the merge made.
            before: The number of the dest's head before the merge.
        """
        dest, sort = f"{self.into}@{before}", merge.node[1] % 3
        if sort == 0:
            self._squashed_and_looked_at(dest, merge.snapshot)
        elif sort == 1:
            self._made_back(dest)
        elif sort == 2:
            self.revert_checks().merge_taken_back(merge, self.dest_head, self.dice)

    def _made_back(self, dest: str) -> None:
        reverse = f"m{len(self.told)}"
        self.table.branches.create(reverse, f"{self.source}@{opened(self.uri, self.source).version}")
        try:
            self.table.merge(dest, into=reverse)
        except MergeConflictError:
            # `foretold` has judged these conflicts before the merge.
            return
        same_rows(self.table, reverse, self.into, "both ways")
        self.tally.done["merged both ways"] += 1

    def _squashed_and_looked_at(self, dest: str, result: Snapshot) -> None:
        """Check that a squash and a preview branch have the same result as the merge.

        The preview branch also has the same content id, unless the merge rewrites rows: the name of their data file is
        random, while deletion files count by their content. A squash has another one, since it records its sources.
        """
        squashed, looked_at = f"q{len(self.told)}", f"p{len(self.told)}"
        self.table.branches.create(squashed, dest)
        self.table.merge(self.source, into=squashed, mode="squash")
        laws.same(self.table, squashed, result, "squash")
        self.table.branches.create(f"o{len(self.told)}", dest)
        combined = self.table.preview_merge(self.source, f"o{len(self.told)}").rows_combined
        self.table.branches.preview(self.source, f"o{len(self.told)}", name=looked_at)
        laws.same(self.table, looked_at, result, "preview branch")
        laws.well_formed(self.table, looked_at)
        ids = self.table.maintenance.content_id(looked_at), self.table.maintenance.content_id(self.into)
        hold((ids[0] == ids[1]) == (not combined), "content id", f"{looked_at} and {self.into}")
        self.tally.done["squashed and looked at"] += 1
        self.tally.done["rows with cells of both sides"] += combined
