"""Merges that are reverted some time after they were made, on throw-away branches."""

from lance_dagster import Winner
from tests.properties.merging.change_ranges import ChangeRange
from tests.properties.merging.operation_context import Dice
from tests.properties.merging.pick_checks import PickChecks, Take
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

    def _take_back(self, name: str) -> Take:
        def take(branch: str, strategy: Winner | None = None) -> object:
            return self.table.revert(name, branch, parent=1, strategy=strategy)

        return take
