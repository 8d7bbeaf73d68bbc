"""Copy objects between stores: on the server's side where both are of one storage, through a local file elsewhere."""

import tempfile
from pathlib import Path

from lance_dagster.store.interface import Store


def copy_file(source: Store, source_key: str, dest: Store, key: str) -> bool:
    """Copy one object; False when there is none to copy. An object of that key may be left as it is or replaced."""
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{source_key}", key)
    with tempfile.TemporaryDirectory(prefix="lance-dagster-") as folder:
        path = Path(folder) / "object"
        if not source.download(source_key, path):
            return False
        dest.upload(path, key)
    return True


def copy_folder(source: Store, folder: str, dest: Store, key: str) -> bool:
    """Copy the objects of a folder; False when there are none."""
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{folder}", key)
    names = source.list(folder)
    for name in names:
        copy_file(source, f"{folder}/{name}", dest, f"{key}/{name}")
    return bool(names)
