"""Refuse an output of an op that replaces the rows of another output of the same run.

Several outputs of ops may name one table. Rows that they append are all there in the end. An overwrite or a replacement
says what all the rows are, in the table or in some partitions: of two of them only the rows of the last would be left,
and the ops downstream of the first would read those too, without a sign of it.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin import metadata as md
from lance_dagster.plugin.io.write_request import Write
from lance_dagster.plugin.run_branch import RunBranch

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version


def refuse_second_replacement(branch: RunBranch, write: Write, versions: "Iterable[Version] | None" = None) -> None:
    """Refuse a replacement of rows that another output, of the run or of one that it continues, put in their place.

    The same output may replace them: it is a retry, or writes another partition for each mapping key.

    Args:
        branch: The branch of the run.
        write: The write of an output of an op.
        versions: Versions of the branch, newest first; None for all.

    Raises:
        InvalidInputError: Another output overwrote the table, or replaced one of the partitions.
    """
    # Outside of a run there is no step.
    if write.mode not in ("overwrite", "replace") or md.STEP_KEY not in write.properties:
        return
    # Imported in a run only: a code location that is loaded does not need the format.
    from lance_dagster.transactions.claims import OVERWRITE, REPLACE, decode_claims

    for version in branch.own_versions() if versions is None else versions:
        claims = [claim for claim in decode_claims(version.properties) if claim.mode in (REPLACE, OVERWRITE)]
        if not claims:
            continue
        is_overwrite = any(claim.mode == OVERWRITE for claim in claims)
        # Of two steps for different mapping keys, each replaces the partition of its own key.
        keys = {key for claim in claims for key in claim.partitions}
        is_shared = is_overwrite or write.mode == "overwrite" or not keys.isdisjoint(write.keys)
        if is_shared and _is_of_another(version.properties, branch, write):
            raise InvalidInputError(
                f"{_output(write.properties)} replaces the rows that {_output(version.properties)} wrote to "
                f"{branch.table.uri} in {version}, and only the rows of the last output would be left; give each "
                f"output a table of its own by its metadata {md.TABLE!r}, or let all of them append by "
                f"{md.WRITE_MODE!r}: 'append'"
            )
        # Nothing is left of what was written before an overwrite.
        if is_overwrite:
            return


def _is_of_another(committed: Mapping[str, str], branch: RunBranch, write: Write) -> bool:
    # A table of ops may be written by other runs too, one after the other.
    if committed.get(md.ASSET_KEY) != write.asset or committed.get(md.RUN_ID) not in branch.chain.run_ids:
        return False
    return any(committed.get(key) != write.properties.get(key) for key in (md.STEP_KEY, md.OUTPUT))


def _output(properties: Mapping[str, str]) -> str:
    return f"output {properties.get(md.OUTPUT)!r} of step {properties.get(md.STEP_KEY)}"
