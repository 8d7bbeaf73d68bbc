"""What a version holds, as one digest: reads the deletion files `changes.content` asks for.

Find versions by their commit id, or by the beginning of one.

An id is a digest of a manifest, so nothing but the manifest tells it. A whole id is looked for on `main` first, newest
first, and the search ends where it is found. The beginning of one has to be compared with all, to find out whether it
is unique. Several manifests are read at a time, and each once in a process.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lance_dagster.format.layout import MAIN
from lance_dagster.history.ancestry import Ancestry, VersionRef
from lance_dagster.history.rebase import deleted_offsets
from lance_dagster.history.refs.ref_store import READY
from lance_dagster.history.versions import State, Versions
from lance_dagster.transactions.identity import COMMIT_ID, content_id

_WORKERS = 8


def content_id_of(versions: Versions, state: State) -> str:
    """Return the content id of a version; several deletion files are read at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return content_id(
            state.manifest,
            lambda fragments: pool.map(lambda fragment: deleted_offsets(versions, state, fragment), fragments),
            state.path or str(state),
        )


_WORKERS, _EACH = 8, 4
_Found = list[tuple[str, VersionRef]]
_Portion = tuple[str, str, Sequence[int]]


def find_commits(beginning: str, ancestry: Ancestry) -> list[tuple[str, VersionRef]]:
    """Return the versions of all branches whose commit id begins with some hex digits, with the whole id."""
    wanted = beginning.lower()

    def matching(portion: _Portion) -> _Found:
        name, line, numbers = portion
        ids = ((ancestry.versions.commit_id(name, number, line), number) for number in numbers)
        return [(own_id, VersionRef(name, number)) for own_id, number in ids if own_id and own_id.startswith(wanted)]

    found: _Found = []
    with ThreadPoolExecutor(_WORKERS) as pool:
        for portions in _portions(ancestry):
            for some in pool.map(matching, portions):
                found += some
            if found and COMMIT_ID.fullmatch(wanted):
                break
    return found


def _portions(ancestry: Ancestry) -> Iterator[list[_Portion]]:
    """Yield the name and id of branches with some of their versions, newest first, as many as are read at a time."""
    yield from _together(ancestry, {MAIN: MAIN})
    branches = ancestry.refs.branches().values()
    yield from _together(ancestry, {branch.name: branch.id for branch in branches if branch.state == READY})


def _together(ancestry: Ancestry, lines: Mapping[str, str]) -> Iterator[list[_Portion]]:
    portions: list[_Portion] = [
        (name, lines[name], numbers[start : start + _EACH])
        for name in sorted(lines)
        for numbers in (ancestry.numbers(name)[::-1],)
        for start in range(0, len(numbers), _EACH)
    ]
    for start in range(0, len(portions), _WORKERS):
        yield portions[start : start + _WORKERS]
