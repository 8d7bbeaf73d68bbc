"""Tables on local disk, durable by default.

The order of a write: write the object to a temporary file, fsync the file, link it to its name, fsync the folder.
- The name appears only after the content is complete, so a reader sees the whole object or none.
- `link` fails when the name exists, so that of two writers of one name exactly one wins. `rename` would replace the
  first writer's object silently, and `open("x")` would show an incomplete one.
- The file is synced before it is linked: otherwise a power cut could leave the name with empty content. The folder is
  synced after that, because the new name itself lives in the folder.

With the storage option `durability` set to "process" nothing is synced, as with pylance. Temporary files are named
`.tmp...`; Lance's own cleanup removes such files.
"""

import fcntl
import hashlib
import io
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from lance_dagster.errors import StoreError
from lance_dagster.store.interface import ObjectInfo
from lance_dagster.store.options import is_durable

_ATTEMPTS = 5


class LocalStore:
    """A folder on local disk."""

    # A directory is listed in arbitrary order, so pylance needs the version hint on local disk.
    ordered_listing = False

    def __init__(self, root: str, *, durable: bool = True) -> None:
        """Take an absolute path, and whether writes survive a power cut; the first write creates the folder."""
        self._root = Path(root)
        self.uri = str(self._root)
        """The absolute path."""
        self._durable = durable

    @property
    def storage(self) -> object:
        """Equal for every folder of this host."""
        return "local"

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None when there is none."""
        try:
            # A path string: constructing a `Path` takes longer than reading a small file.
            with io.FileIO(f"{self._root}/{key}") as file:
                return file.readall()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self._root / key}: {error}") from error

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist."""
        try:
            with io.FileIO(f"{self._root}/{key}") as file:
                file.seek(start)
                # One read of a regular file may return fewer bytes only at its end, or beyond 2 GiB.
                return file.read(end - start)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {self._root / key}: {error}") from error

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and their digest, or None when it does not exist."""
        data = self.get(key)
        return None if data is None else (data, _tag(data))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object atomically, replacing any existing one; synced when it is `durable`."""
        with self._written(key, data, synced=durable and self._durable, moves=True) as (temporary, target):
            # Atomic: a reader sees the old object or the new one, never a mixture.
            os.replace(temporary, target)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object atomically unless the name exists; return whether it was written."""
        try:
            with self._written(key, data, synced=self._durable, moves=False) as (temporary, target):
                # Atomic and exclusive: fails with FileExistsError when another writer was first.
                os.link(temporary, target)
        except FileExistsError:
            return False
        return True

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless it changed since `tag` was read. Safe between processes of one host."""
        # A missing object fails without the lock, whose file would otherwise be created in a folder that may not exist.
        if self.get(key) is None:
            return False
        # The read is repeated under the lock: between the two, another process may have swapped.
        with self._lock(key):
            found = self.get(key)
            if found is None or _tag(found) != tag:
                return False
            self.put(key, data)
        return True

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        try:
            with os.scandir(self._root / folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".tmp"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"cannot list {self._root / folder}: {error}") from error
        return names[:limit]

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of at most `limit` files in a folder, unordered, without reading the rest of the folder."""
        try:
            with os.scandir(self._root / folder) as entries:
                files = (entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".tmp"))
                return list(islice(files, limit))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"cannot list {self._root / folder}: {error}") from error

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the folders in a folder, sorted; links are not followed."""
        try:
            with os.scandir(self._root / folder) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise StoreError(f"cannot list {self._root / folder}: {error}") from error

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the files in a folder with their sizes in bytes."""
        try:
            return {name: (self._root / folder / name).stat().st_size for name in self.list(folder)}
        except OSError as error:
            raise StoreError(f"cannot list {self._root / folder}: {error}") from error

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """List every file below a folder. Files deleted meanwhile may be missing; symbolic links are not followed."""
        # Iterative, because a branch name may nest folders to any depth.
        waiting = [folder]
        while waiting:
            below = waiting.pop()
            try:
                with os.scandir(self._root / below) as entries:
                    found = list(entries)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise StoreError(f"cannot list {self._root / below}: {error}") from error
            for entry in found:
                key = f"{below}/{entry.name}" if below else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(key)
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StoreError(f"cannot look at {self._root / key}: {error}") from error
                yield ObjectInfo(key, status.st_size, status.st_mtime)

    def now(self) -> float:
        """Return the clock of the file system, which on a network mount is another host's."""
        path = self._root / f".tmp{uuid.uuid4().hex}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            path.touch()
            try:
                return path.stat().st_mtime
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot read the clock of {self._root}: {error}") from error

    def download(self, key: str, path: Path) -> bool:
        """Copy a file out of the store; return whether it exists."""
        try:
            shutil.copyfile(self._root / key, path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"cannot read {self._root / key}: {error}") from error
        return True

    def upload(self, path: Path, key: str) -> None:
        """Copy a file into the store, replacing any existing one."""
        # `copy_from` keeps an existing target, but an upload replaces it.
        self.delete(key)
        if not self.copy_from(str(path), key):
            raise StoreError(f"cannot copy {path} to {self._root / key}: it is missing")

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy a file or a folder tree to `key`; an existing target is kept. Return whether the target exists."""
        source, target = Path(source_uri), self._root / key
        # Objects never change, so an existing copy is complete: an interrupted copy is resumed where it stopped.
        if target.exists() or not source.exists():
            return target.exists()
        temporary = target.parent / f".tmp{uuid.uuid4().hex}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, temporary)
            else:
                shutil.copyfile(source, temporary)
            # Everything is synced under the temporary name; the rename then publishes a complete copy.
            for path in (temporary, *temporary.rglob("*")) if self._durable else ():
                _sync(str(path))
            os.replace(temporary, target)
        except OSError as error:
            raise StoreError(f"cannot copy {source} to {target}: {error}") from error
        return True

    def delete(self, key: str) -> None:
        """Delete a file; succeed when it does not exist."""
        try:
            (self._root / key).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot delete {self._root / key}: {error}") from error

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Delete a file unless it changed since `tag` was read. Safe between processes of one host."""
        # As in `compare_and_swap`: without the object there is no folder for the lock.
        if self.get(key) is None:
            return False
        with self._lock(key):
            found = self.get(key)
            if found is None or _tag(found) != tag:
                return False
            self.delete(key)
        return True

    def deletes_conditionally(self) -> bool:
        """Return True: a file is compared and deleted under its lock."""
        return True

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete files, one after the other."""
        for key in keys:
            self.delete(key)

    def prune(self, folder: str) -> None:
        """Remove the empty folders at and below a folder, and parent folders that become empty."""
        target = self._root / folder
        for path, _, _ in os.walk(target, topdown=False):
            with suppress(OSError):
                # It fails where the folder is not empty, or another process removed it first.
                Path(path).rmdir()
        for parent in target.parents:
            if parent == self._root:
                return
            try:
                parent.rmdir()
            except OSError:
                return

    def sync_folder(self, folder: str) -> None:
        """Make the directory entries of a folder survive a power cut."""
        if self._durable and (self._root / folder).is_dir():
            _sync(str(self._root / folder))

    @contextmanager
    def _written(self, key: str, data: bytes, *, synced: bool, moves: bool) -> Iterator[tuple[str, str]]:
        """Yield a synced temporary file and its target; after the caller linked or renamed it, sync the folder.

        The temporary file is in the folder of the target, because `link` and `rename` work within one file system. It
        is deleted afterwards, unless the caller `moves` it and does not fail.
        """
        # Strings in place of path objects: constructing these takes longer than writing a small file.
        target = f"{self._root}/{key}"
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/.tmp{uuid.uuid4().hex}"
        left = True
        try:
            with self._created(temporary, folder) as file:
                file.write(data)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            yield temporary, target
            left = not moves
            if synced:
                _sync(folder)
        # Not a failure of the storage: the caller lost the race for the name.
        except FileExistsError:
            raise
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error}") from error
        finally:
            # A file that was moved is gone: to delete it again costs a request on a network file system.
            if left:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(temporary)

    @staticmethod
    def _created(path: str, folder: str) -> io.BufferedWriter:
        """Create a file; its folder is made only where it is missing, since most files go into one that is there."""
        for _ in range(_ATTEMPTS):
            try:
                return open(path, "xb")  # without a path object; the caller closes it
            except FileNotFoundError:
                # Again when another process, which deletes what was there, removes the empty folder at once.
                Path(folder).mkdir(parents=True, exist_ok=True)
        return open(path, "xb")  # as above

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        # The kernel releases the lock when the process ends, so a killed writer cannot block others. The lock file is
        # never deleted: a lock on an unlinked file would not exclude a process that creates a new one.
        path = (self._root / key).parent.parent / ".lock"
        try:
            with path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise StoreError(f"cannot lock {path}: {error}") from error


def sync_path(path: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Sync a local file, or the directory entries of a local folder, to disk. A remote URI needs no sync.

    Args:
        path: A local path or a URI.
        storage_options: The options of the table; with the durability "process", nothing is synced.
    """
    if "://" not in path and is_durable(storage_options or {}):
        _sync(path)


def _sync(path: str) -> None:
    # A folder can be opened for reading only; fsync takes such a descriptor for files too.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
