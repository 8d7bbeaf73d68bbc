"""How far two versions are apart: how many versions each contains that the other does not.

A version contains each branch up to some number, so the lists of version names tell; no version is opened but the two.
"""

from collections.abc import Mapping

from lance_dagster.format.layout import MAIN
from lance_dagster.history.lineage import Lineage
from lance_dagster.history.refs import Branch
from lance_dagster.history.versions import Versions


class Distances:
    """Counts versions by name; each branch is listed once."""

    def __init__(self, branches: Mapping[str, Branch], versions: Versions) -> None:
        """Look at the branches there are, by name."""
        self._branches = {branch.id: branch for branch in branches.values()}
        self._versions = versions
        self._numbers: dict[str, list[int]] = {}

    def ahead(self, of: Lineage, other: Lineage) -> int:
        """Count the versions that one contains and the other does not.

        The first version of a branch repeats the one it was forked from and does not count, nor does what was cleaned
        up, nor what lay on branches that are gone.
        """
        return sum(
            self._between(branch_id, other.contained.get(branch_id, -1), number)
            for branch_id, number in of.contained.items()
        )

    def numbers(self, branch: str) -> list[int]:
        """Return the numbers of the versions of a branch, by its name; listed once."""
        if branch not in self._numbers:
            self._numbers[branch] = self._versions.numbers(branch)
        return self._numbers[branch]

    def _between(self, branch_id: str, after: int, up_to: int) -> int:
        if after >= up_to:
            return 0
        branch = self._branches.get(branch_id)
        if branch is None and branch_id != MAIN:
            return 0
        name, first = (MAIN, 0) if branch is None else (branch.name, branch.first)
        return sum(max(after, first) < number <= up_to for number in self.numbers(name))
