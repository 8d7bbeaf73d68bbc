"""Copy objects between stores: on the server where both are in the same storage, else through a local file."""

import tempfile
from pathlib import Path

from lance_dagster.store.interface import Store


def copy_file(source: Store, source_key: str, dest: Store, key: str) -> bool:
    """Copy one object; return whether the source exists. An existing object at `key` may be kept or replaced."""
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{source_key}", key)
    with tempfile.TemporaryDirectory(prefix="lance-dagster-") as folder:
        path = Path(folder) / "object"
        if not source.download(source_key, path):
            return False
        dest.upload(path, key)
    return True


def copy_folder(source: Store, folder: str, dest: Store, key: str) -> bool:
    """Copy the objects of a folder; return whether the source has any."""
    if source.storage == dest.storage:
        return dest.copy_from(f"{source.uri}/{folder}", key)
    names = source.list(folder)
    for name in names:
        copy_file(source, f"{folder}/{name}", dest, f"{key}/{name}")
    return bool(names)
