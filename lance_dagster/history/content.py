"""What a version holds, as one digest: reads the deletion files `changes.content` asks for."""

from concurrent.futures import ThreadPoolExecutor

from lance_dagster.changes.content import content_id
from lance_dagster.history.vectors import deleted_offsets
from lance_dagster.history.versions import State, Versions

_WORKERS = 8


def content_of(versions: Versions, state: State) -> str:
    """Return the content id of a version; several deletion files are read at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        return content_id(
            state.manifest,
            lambda fragments: pool.map(lambda fragment: deleted_offsets(versions, state, fragment), fragments),
            state.path or str(state),
        )
