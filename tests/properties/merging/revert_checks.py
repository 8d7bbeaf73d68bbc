"""Merges taken back some time after they were made, on branches that go no further."""

from lance_dagster import Winner
from tests.properties.merging.change_ranges import ChangeRange
from tests.properties.merging.operation_context import Dice
from tests.properties.merging.pick_checks import PickChecks, Take
from tests.properties.merging.rows_model import Made

_BETWEEN = ("append", "append", "delete", "update", "compact", "config")


class RevertChecks(PickChecks):
    """Reverts of merges, as far as the rules of any revert go."""

    def merge_taken_back(self, merge: Made, dest: Made, dice: Dice) -> None:
        """Take a merge back that is the newest version, which gives exactly what the dest was; and an older one."""
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
