"""Migrate a table from the first naming scheme of manifests to the present one.

Every manifest of a branch is put under its new name before any old name is deleted: whatever happens, each version can
be found. `main` comes last, since it shows whoever looks whether everything was done.
"""

from collections.abc import Iterable

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.layout import MAIN, VERSIONS, join, line_root, manifest_name, old_manifest_name, versions_in
from lance_dagster.history.versions import Versions


def migrate_manifest_names(versions: Versions, branches: Iterable[str]) -> int:
    """Rename what has an old name on `main` and on some branches. Returns how many versions were renamed.

    Raises:
        CorruptFileError: Two different manifests would have one name.
    """
    return sum(_migrate(versions, branch) for branch in [*sorted(branches), MAIN])


def _migrate(versions: Versions, branch: str) -> int:
    store, folder = versions.store, join(line_root(branch), VERSIONS)
    renamed = 0
    # Again, until nothing is left: a writer that was not stopped may have put one more.
    while True:
        _, old = versions_in(store.list(folder))
        if not old:
            # So that commits of this object go on under the present scheme.
            versions.numbers(branch)
            return renamed
        # Newest first: a store that lists in order shows only the first names, and the newest has to be among them.
        for number in sorted(old, reverse=True):
            _copy(versions, folder, number)
        for number in sorted(old):
            store.delete(f"{folder}/{old_manifest_name(number)}")
        renamed += len(old)


def _copy(versions: Versions, folder: str, number: int) -> None:
    store = versions.store
    source, target = f"{folder}/{old_manifest_name(number)}", f"{folder}/{manifest_name(number)}"
    data = store.get(source)
    if data is None or store.put_if_absent(target, data):
        return
    if store.get(target) != data:
        raise CorruptFileError(
            f"{store.uri}/{target}",
            f"it is another version {number} than {old_manifest_name(number)}; a writer was at work meanwhile: "
            "find out which of the two readers saw, and remove the other",
        )
