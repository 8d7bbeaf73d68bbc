"""Walk the history of a version."""

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import Clone
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
        for number in list(reversed(numbers))[:room]:
            oldest = versions.load(branch, number)
            found.append(versions.describe(oldest, numbers))
            at = _forked_from(oldest)
    return found


def _forked_from(state: State) -> tuple[str, int] | None:
    operation = state.transaction.operation if state.transaction else None
    if isinstance(operation, Clone) and state.branch != MAIN:
        return operation.ref_name or MAIN, operation.ref_version
    return None
