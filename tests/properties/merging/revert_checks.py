"""Merges that are reverted some time after they were made, on throw-away branches."""

from collections.abc import Mapping, Sequence

from lance_dagster.errors import MergeConflictError
from lance_dagster.types import Winner
from tests.properties.merging import laws
from tests.properties.merging.change_ranges import ChangeRange
from tests.properties.merging.laws import hold
from tests.properties.merging.operation_context import Dice, opened
from tests.properties.merging.pick_checks import PickChecks, Take, name_of
from tests.properties.merging.rows_model import Made

_BETWEEN = ("append", "append", "delete", "update", "compact", "config")


class RevertChecks(PickChecks):
    """Checks of reverted merges, by the rules of every revert."""

    def merge_taken_back(self, merge: Made, dest: Made, dice: Dice) -> None:
        """Revert the newest version, a merge, which must restore exactly the dest before it; and an older merge."""
        self.told.append("")
        name = f"{merge.node[0]}@{merge.node[1]}"
        try:
            trial, later = self._fork(merge.node[0]), self._fork(merge.node[0])
            self.tell(f"revert {name}, parent 1")
            self.table.revert(name, trial, parent=1)
            self._exactly(trial, dest, "revert a merge")
            self._picked_instead(trial, merge, dest, dice)
            for _ in range(1 + dice.below(2)):
                self.work(dice.pick(list(_BETWEEN)), later, dice)
            self.told.append("")
            self.tell(f"revert {name} on {later}, parent 1")
            self._taken("revert", ChangeRange.back(merge, dest), later, self._take_back(name), dice)
            self.tally.done["took a merge back"] += 1
        finally:
            for fork in self._forks:
                del self.graph.heads[fork]
            self._forks.clear()

    def _picked_instead(self, trial: str, merge: Made, dest: Made, dice: Dice) -> None:
        """Pick one of the merged versions on a fork of the dest before the merge, and merge that.

        The branch is again as that dest was, so it gets all that the pick gave, as in git, or the merge is refused.
        """
        commits = [made for made in self.graph.since(merge.within, dest.within) if made.parents]
        if not commits:
            return
        commit = dice.pick(commits)
        redo = self._fork(dest.node[0], dest)
        self.tell(f"... pick {name_of(commit)} onto {redo}")
        try:
            self.table.cherry_pick(name_of(commit), redo)
        except MergeConflictError:
            self.tell("refused")
            return
        wanted = opened(self.uri, redo).to_table().to_pylist()
        self.tell(f"and merge it into {trial}")
        try:
            self.table.merge(redo, into=trial)
        except MergeConflictError as error:
            self.tell(f"refused: {'; '.join(map(str, error.conflicts))}")
            self.tally.done["refused a pick instead of a merge"] += 1
            return
        found = opened(self.uri, trial).to_table().to_pylist()
        hold(_in_order(wanted) == _in_order(found), "picked instead of merged", f"{found}, not {wanted}")
        laws.well_formed(self.table, trial)
        self.tally.done["picked instead of merged"] += 1

    def _take_back(self, name: str) -> Take:
        def take(branch: str, strategy: Winner | None = None) -> object:
            return self.table.revert(name, branch, parent=1, strategy=strategy)

        return take


def _in_order(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
