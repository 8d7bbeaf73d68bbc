"""What the log of `main` says about publications, once the branches they came from are gone."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import Version
from lance_dagster.table import LanceTable

# Where Dagster no longer knows when a run began: one that was interrupted is resumed before so many others land.
_SEARCHED = 200


def landed_as(table: LanceTable, made_by: Mapping[str, Iterable[str]], since: datetime | None) -> Version | None:
    """Return the newest version of `main` that has one of some values of each property given.

    Args:
        table: The table.
        made_by: Properties of a publication's commit, and the values looked for.
        since: When the runs began that may have made it; nothing older is read. None if that is not known.
    """
    wanted = {key: frozenset(values) for key, values in made_by.items()}
    for number in reversed(table.versions_after(0, MAIN)[-_SEARCHED:]):
        version = table.at(f"{MAIN}@{number}")
        if all(version.properties.get(key) in values for key, values in wanted.items()):
            return version
        if since is not None and version.committed_at < since:
            return None
    return None
