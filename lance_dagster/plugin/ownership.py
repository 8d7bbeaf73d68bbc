"""The asset that owns a table.

A code location cannot see the definitions of another one, so each table carries its owner: the config key
`dagster/asset`. An asset that is not the owner does not write the table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.run_branch import RunBranch

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The relation of an asset that writes a table to the owner that the table names."""

    asset: str
    branch: RunBranch

    def is_recorded(self, start: "Version") -> bool:
        """Return whether the table names the asset as its owner; False when it names no owner.

        Args:
            start: The version that the run's next commit is based on.

        Raises:
            InvalidInputError: The table belongs to another asset.
        """
        table = self.branch.table
        owner = table.config.get(start).get(md.OWNER)
        if owner not in (None, self.asset):
            raise InvalidInputError(
                f"{self.asset} cannot write {table.uri}: the table belongs to the asset {owner}, and the two would "
                f"replace each other's rows. Give {self.asset} a table of its own by its metadata {md.TABLE!r}. If "
                f"{owner} no longer writes the table, hand it over: "
                f"LanceTable.open({table.uri!r}).config.set({{{md.OWNER!r}: {self.asset!r}}})"
            )
        return owner is not None

    def record(self) -> None:
        """Name the asset as the owner of a table that another program made, by a commit on the branch of the run.

        The owner reaches `main` with the rows of the run. When two assets claim the table at the same time, the merge
        of the second one conflicts.
        """
        name, run_id = self.branch.name, self.branch.chain.run_id
        # The commit has only the run id: a retried append undoes the newest commit that names its step and asset.
        properties = {md.RUN_ID: run_id} if run_id else None
        self.branch.table.config.set(
            {md.OWNER: self.asset}, branch=name, message=f"owner {self.asset}", properties=properties
        )
