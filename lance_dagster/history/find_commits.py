"""Content ids of versions, and versions by commit id or by the beginning of a commit id.

A commit id is a digest of a manifest, so nothing but the manifest tells it. A whole id is looked for on `main` first,
newest first, and the search ends where it is found. An abbreviation has to be compared with all versions, to find out
whether it is unique. Several manifests are read at a time, and each manifest once in a process.

A content id is a digest of what a version holds, whatever its number and history.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lance_dagster.format.codec import COMMIT_ID
from lance_dagster.format.layout import MAIN
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.refs.ref_files import READY
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.content_id import content_id


def content_id_of(versions: Versions, state: State) -> str:
    """Return the content id of a version; reads its deletion files, several at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return content_id(
            state.manifest,
            lambda fragments: pool.map(lambda fragment: deleted_offsets(versions, state, fragment), fragments),
            state.path or str(state),
        )


# Threads, and versions for each task: small tasks spread evenly, and still pay for the hand-over.
_WORKERS, _EACH = 8, 4
_Matches = list[tuple[str, VersionRef]]
_Task = tuple[str, str, Sequence[int]]


def find_commits(beginning: str, ancestry: Ancestry) -> list[tuple[str, VersionRef]]:
    """Return the versions of all branches whose commit id begins with some hex digits, each with the whole id."""
    prefix = beginning.lower()

    def matching(task: _Task) -> _Matches:
        name, branch_id, numbers = task
        ids = ((ancestry.versions.commit_id(name, number, branch_id), number) for number in numbers)
        return [(own_id, VersionRef(name, number)) for own_id, number in ids if own_id and own_id.startswith(prefix)]

    matches: _Matches = []
    with ThreadPoolExecutor(_WORKERS) as pool:
        for tasks in _task_groups(ancestry):
            for batch in pool.map(matching, tasks):
                matches += batch
            # A whole id is unique, so the search may end; an abbreviation could also fit a version not yet read.
            if matches and COMMIT_ID.fullmatch(prefix):
                break
    return matches


def _task_groups(ancestry: Ancestry) -> Iterator[list[_Task]]:
    """Yield groups of tasks that are read at the same time: branch, id and a few versions, `main` first."""
    # `main` first and alone: a whole id that is found there ends the search before the branches are even listed.
    yield from _groups_of(ancestry, {MAIN: MAIN})
    branches = ancestry.refs.branches.all().values()
    yield from _groups_of(ancestry, {branch.name: branch.id for branch in branches if branch.state == READY})


def _groups_of(ancestry: Ancestry, branch_ids: Mapping[str, str]) -> Iterator[list[_Task]]:
    tasks: list[_Task] = [
        (name, branch_ids[name], numbers[start : start + _EACH])
        for name in sorted(branch_ids)
        for numbers in (ancestry.numbers(name)[::-1],)
        for start in range(0, len(numbers), _EACH)
    ]
    for start in range(0, len(tasks), _WORKERS):
        yield tasks[start : start + _WORKERS]
