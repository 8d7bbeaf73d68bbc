"""Migrate a table from the first naming scheme of manifests to the present one.

Every manifest is put under its new name before any old name is deleted: whatever happens, each version can be found.
"""

from lance_dagster.errors import CorruptFileError
from lance_dagster.format.layout import MAIN, VERSIONS, manifest_name, old_manifest_name, versions_in
from lance_dagster.history.versions import Versions


def migrate_manifest_names(versions: Versions) -> int:
    """Rename what has an old name on `main`; branches never had any. Returns how many versions were renamed."""
    store = versions.store
    renamed = 0
    # Again, until nothing is left: a writer that was not stopped may have put one more.
    while True:
        _, old = versions_in(store.list(VERSIONS))
        if not old:
            # So that commits of this object go on under the present scheme.
            versions.numbers(MAIN)
            return renamed
        for number in old:
            _copied(versions, number)
        for number in old:
            store.delete(f"{VERSIONS}/{old_manifest_name(number)}")
        renamed += len(old)


def _copied(versions: Versions, number: int) -> None:
    store = versions.store
    source, target = f"{VERSIONS}/{old_manifest_name(number)}", f"{VERSIONS}/{manifest_name(number)}"
    data = store.get(source)
    if data is None or store.put_if_absent(target, data):
        return
    if store.get(target) != data:
        raise CorruptFileError(
            f"{store.uri}/{target}",
            f"it is another version {number} than {old_manifest_name(number)}; a writer was at work meanwhile: "
            "find out which of the two readers saw, and remove the other",
        )
