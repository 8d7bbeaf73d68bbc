"""Find waiting branches that `main` has superseded, and versions of `main` that are only maintenance.

A run branch is superseded when it replaces rows, and `main` got a commit since the fork that replaces all of these rows
too. The branch cannot be published then, because its merge has a conflict. The claims that both sides recorded tell
this; no merge is tried, and no times are compared.

Versions of `main` that a table got outside of the repository matter only if they change rows. Versions that change no
row, such as compactions, are counted as maintenance.
"""

from collections.abc import Iterable, Sequence

from lance_dagster.errors import InvalidInputError, NotFoundError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import SAME_ROWS, WITHOUT_ROWS
from lance_dagster.history.context import TableContext, first_parent_log
from lance_dagster.history.versions import Version
from lance_dagster.transactions.claims import OVERWRITE, REPLACE, decode_claims

# The most versions of `main` that are read for a table.
_MOST_READ = 100


def superseded_branches(context: TableContext, branches: Iterable[str]) -> dict[str, str]:
    """Return the branches of a table whose rows `main` has replaced since the fork, each with the newest such version.

    Args:
        context: The table.
        branches: The names of branches; a branch that was deleted meanwhile is left out.
    """
    superseded = {}
    for branch in branches:
        try:
            own_versions = _log(context, branch, MAIN)
            replaced = _replaced(own_versions)
            # The parent of the oldest version of the branch is the version that it was forked from.
            since = [] if replaced is None else _log(context, MAIN, own_versions[-1].parents[0])
        except (NotFoundError, InvalidInputError):
            continue
        newer = next((version for version in since if _covers(_replaced([version]), replaced)), None)
        if newer is not None:
            superseded[branch] = str(newer)
    return superseded


def maintenance_since(context: TableContext, numbers: Sequence[int]) -> int | None:
    """Return how many of the newest versions of `main` change no row; None for more versions than are read.

    Args:
        context: The table.
        numbers: The numbers of the versions.
    """
    if len(numbers) > _MOST_READ:
        return None
    newest = _log(context, MAIN, None)[: len(numbers)] if numbers else []
    return sum(version.operation in SAME_ROWS for version in newest)


def _log(context: TableContext, ref: str, after: str | None) -> list[Version]:
    return first_parent_log(context, ref, after=after, limit=_MOST_READ, only=None)


def _replaced(commits: Iterable[Version]) -> frozenset[tuple[str, str]] | None:
    """Return the partitions whose rows commits replaced, each by its partitioning and its key.

    It is empty for the whole table, and None if the commits did anything else.
    """
    keys: set[tuple[str, str]] = set()
    is_whole = is_other = False
    for commit in commits:
        claims = decode_claims(commit.properties)
        # A change of rows without a claim may be in any partition.
        is_other |= not claims and commit.operation not in WITHOUT_ROWS
        # Nothing tells whether the rows of one predicate are among the rows of another predicate.
        comparable = (claim.mode == OVERWRITE or (claim.mode == REPLACE and claim.partitions) for claim in claims)
        is_other |= not all(comparable)
        is_whole |= any(not claim.partitions for claim in claims)
        keys |= {(claim.partitioning, key) for claim in claims for key in claim.partitions}
    if is_other or not (is_whole or keys):
        return None
    return frozenset() if is_whole else frozenset(keys)


def _covers(newer: frozenset[tuple[str, str]] | None, older: frozenset[tuple[str, str]] | None) -> bool:
    if newer is None or older is None:
        return False
    return not newer or (bool(older) and older <= newer)
