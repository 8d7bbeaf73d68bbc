"""Manifests that wait: of versions that expired, and of branches that were deleted.

Nobody new can reach such a version. Its files stay while its copy in `_expired/` is young, for whoever had read it a
moment before: to restore it, or to merge it.
"""

from concurrent.futures import ThreadPoolExecutor

from lance_dagster.format import layout
from lance_dagster.format.digests import commit_id
from lance_dagster.history.inventory import waiting_key
from lance_dagster.store import Store

_WORKERS = 8


def set_aside(store: Store, branch: str, owner: str) -> None:
    """Copy all manifests of a branch that is about to be deleted to where they wait; `owner` is the branch's id."""
    folder = layout.join(layout.line_root(branch), layout.VERSIONS)

    def copy(name: str) -> None:
        data = store.get(f"{folder}/{name}")
        present, old = layout.versions_in([name])
        if data is not None and (present or old):
            key = waiting_key(branch, (present or old)[0], owner, commit_id(data))
            # A power cut that takes the copy with it also ends whoever needed it.
            store.put(key, data, lasting=False)

    with ThreadPoolExecutor(_WORKERS) as pool:
        # Asked for, so that a failure is raised here.
        list(pool.map(copy, store.list(folder)))
