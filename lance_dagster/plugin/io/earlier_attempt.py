"""Take back what an earlier attempt of a step committed, before the output of this attempt is put on the branch.

A retry repeats a step in its run, and a re-execution repeats it in a run that continues the first one. Either finds the
commits of the earlier attempt on the branch: its edits of columns, then its rows. Whatever they left, this attempt must
end as if it were the first one. An overwrite and a replacement leave none of the earlier rows, and an append removes
them in its own commit; an upsert would keep each key that only the earlier attempt had, and no mode removes columns.

Where nobody else has committed to the branch since, one commit restores the version before the attempt. Otherwise the
rows of the attempt are reverted, and its columns stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_dagster.errors import ConflictError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.write_request import Write
from lance_dagster.plugin.run_branch import (
    RunBranch,
    is_restore,
    is_written,
)

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """What earlier attempts of a step left on the branch of a run.

    Attributes:
        branch: The branch of the run.
        write: The write of this attempt.
        before: The version that the earlier attempts began with. None when there was no attempt, when it was taken back
            already, and when the version cannot be restored, since others have committed to the branch meanwhile or may
            do so at any time.
    """

    branch: RunBranch
    write: Write
    before: "Version | None"

    @classmethod
    def of(cls, branch: RunBranch, write: Write) -> "EarlierAttempt":
        """Look for the commits of earlier attempts."""
        # A branch that a tag names is written by other runs, and a table of ops by other steps of the run: what they
        # commit between this search and the restore would be lost.
        is_shared = branch.chain.branch_tag is not None or write.asset.startswith(md.OP_OUTPUT)
        return cls(branch=branch, write=write, before=None if is_shared else _version_before(branch, write.properties))

    def take_back(self, *, moves_rows: bool) -> bool:
        """Take back what the earlier attempts committed, where the commit of the rows would not do it.

        Args:
            moves_rows: Whether columns are edited so that rows move to other files, where an append could not find the
                rows of the earlier attempt.

        Returns:
            Whether the branch is without the rows of earlier attempts now.

        Raises:
            ConflictError: Later commits of others build on the rows of the earlier attempt.
        """
        branch, mode, properties = self.branch, self.write.mode, self.write.edit_properties
        keeps_rows = mode == "upsert" or (mode == "append" and moves_rows)
        table, before = branch.table, self.before
        if before is not None and (keeps_rows or table.schema(before) != table.schema(branch.name)):
            message = f"take back an earlier attempt of {self.write.asset}"
            table.restore(str(before), branch.name, message=message, properties=properties)
            return True
        if before is not None or not keeps_rows:
            return False
        if (rows := branch.earlier_attempt(self.write.properties)) is None:
            return False
        try:
            message = f"take back {rows}, an earlier attempt of {self.write.asset}"
            table.revert(str(rows), branch.name, message=message, properties=properties)
        except ConflictError as error:
            raise ConflictError(
                f"{self.write.asset}: an earlier attempt of this step wrote {rows} of {table.uri}, and its rows cannot "
                f"be taken back, because later commits build on them: {error}. Launch a new run, and not a retry or a "
                "partial re-execution of this one"
            ) from error
        return True


def _version_before(branch: RunBranch, properties: Mapping[str, str]) -> "Version | None":
    """Return the version before the first commit of the earlier attempts of a step, if nobody else committed since."""
    before: Version | None = None
    found = others = False
    for version in branch.own_versions():
        is_own = branch.is_of_step(version, properties)
        if is_own and is_restore(version):
            # Nothing is left of the attempts before.
            before = before or version
            break
        if is_own:
            # Below a commit of others, whose version holds the rows of this attempt.
            if others:
                return None
            found, before = True, None
        else:
            others = others or is_written(version)
            if others and not found:
                return None
            before = before or version
    return before if found else None
