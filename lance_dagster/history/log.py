"""Walk the history of a version."""

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.layout import MAIN
from lance_dagster.history.versions import State, Version, Versions


def first_parents(versions: Versions, state: State, limit: int | None = None) -> list[Version]:
    """Return a version and those it was made from, newest first, along first parents and across forks.

    Versions that a clean-up removed are left out.
    """
    found: list[Version] = []
    seen: set[str] = set()
    at: tuple[str, int] | None = (state.branch, state.number)
    while at is not None and (limit is None or len(found) < limit):
        branch, newest = at
        if branch in seen:
            raise CorruptFileError(versions.line_uri(branch), "its first version says it was forked from itself")
        seen.add(branch)
        numbers = [number for number in versions.numbers(branch) if number <= newest]
        room = None if limit is None else limit - len(found)
        at = None
        for number in reversed(numbers[-room:] if room is not None else numbers):
            version = versions.describe_number(branch, number, numbers)
            found.append(version)
            at = _forked_from(version)
    return found


def _forked_from(version: Version) -> tuple[str, int] | None:
    if version.operation != "Clone" or version.branch == MAIN:
        return None
    branch, _, number = version.parents[0].rpartition("@")
    return branch, int(number)
