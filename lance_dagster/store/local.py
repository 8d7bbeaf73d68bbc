"""Tables on local disk, durable by default.

An object is written to a temporary file, synced, linked to its name, and the folder synced: readers see it whole or
not at all, two writers of one name cannot both win, and a power cut after the return loses nothing. With the storage
option `durability` set to "process" nothing is synced, as pylance does it: fit for tables that can be made again.
Temporary files are called `.tmp...`, which Lance's own clean-up removes.
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


class LocalStore:
    """A folder on local disk."""

    ordered_listing = False

    def __init__(self, root: str, *, durable: bool = True) -> None:
        """Take an absolute path, and whether writes survive a power cut; the folder is made by the first write."""
        self._root = Path(root)
        self.uri = str(self._root)
        """The absolute path."""
        self._durable = durable

    @property
    def storage(self) -> object:
        """The same for every folder of this host."""
        return "local"

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None when there is none."""
        try:
            # Without a path object, which takes longer to make than the file to read.
            with io.FileIO(f"{self._root}/{key}") as file:
                return file.readall()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self._root / key}: {error}") from error

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and a digest of them, or None when there is none."""
        data = self.get(key)
        return None if data is None else (data, _tag(data))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object whole, whatever is there; synced when it is `durable`."""
        with self._written(key, data, synced=durable and self._durable) as (temporary, target):
            os.replace(temporary, target)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object whole unless there is one."""
        try:
            with self._written(key, data, synced=self._durable) as (temporary, target):
                os.link(temporary, target)
        except FileExistsError:
            return False
        return True

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless it changed since `tag` was read. Safe between processes of one host."""
        if self.get(key) is None:
            return False
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
        """Return the names of at most `limit` files in a folder, in no order; a long folder is not read to its end."""
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
        """List every file below a folder; what is deleted meanwhile may be missing, links are not followed."""
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
        """Return the time by the clock of the file system, which may be another host's."""
        path = self._root / f".tmp{uuid.uuid4().hex}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            path.touch()
            try:
                return path.stat().st_mtime
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot ask {self._root} for its time: {error}") from error

    def download(self, key: str, path: Path) -> bool:
        """Copy a file to another place; False when there is none."""
        try:
            shutil.copyfile(self._root / key, path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            raise StoreError(f"cannot read {self._root / key}: {error}") from error
        return True

    def upload(self, path: Path, key: str) -> None:
        """Copy a file from another place, whatever is there."""
        self.delete(key)
        if not self.copy_from(str(path), key):
            raise StoreError(f"cannot copy {path} to {self._root / key}: it is missing")

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy a file, or a folder with everything in it, to `key`. An existing copy is left as it is."""
        source, target = Path(source_uri), self._root / key
        if target.exists() or not source.exists():
            return target.exists()
        temporary = target.parent / f".tmp{uuid.uuid4().hex}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, temporary)
            else:
                shutil.copyfile(source, temporary)
            for path in (temporary, *temporary.rglob("*")) if self._durable else ():
                sync_path(str(path))
            os.replace(temporary, target)
        except OSError as error:
            raise StoreError(f"cannot copy {source} to {target}: {error}") from error
        return True

    def delete(self, key: str) -> None:
        """Delete a file; nothing happens when there is none."""
        try:
            (self._root / key).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot delete {self._root / key}: {error}") from error

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete files, one after the other."""
        for key in keys:
            self.delete(key)

    def prune(self, folder: str) -> None:
        """Remove the empty folders at and below a folder."""
        for path, _, _ in os.walk(self._root / folder, topdown=False):
            try:
                Path(path).rmdir()
            except OSError:
                # Something is in there, or another process was faster.
                continue

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything below it, and the folders above it that are left empty."""
        target = self._root / folder
        try:
            _remove(target)
        except OSError as error:
            raise StoreError(f"cannot delete {target}: {error}") from error
        for parent in target.parents:
            if parent == self._root:
                return
            try:
                parent.rmdir()
            except OSError:
                # Something else is in there, or another process was faster.
                return

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder survive a power cut."""
        if self._durable and (self._root / folder).is_dir():
            sync_path(str(self._root / folder))

    @contextmanager
    def _written(self, key: str, data: bytes, *, synced: bool) -> Iterator[tuple[str, str]]:
        """Give a temporary file beside the target, and after the caller named it, sync the folder."""
        # Text in place of path objects: making these takes longer than the writing of a small file.
        target = f"{self._root}/{key}"
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/.tmp{uuid.uuid4().hex}"
        try:
            with self._created(temporary, folder) as file:
                file.write(data)
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            yield temporary, target
            if synced:
                sync_path(folder)
        except FileExistsError:
            raise
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error}") from error
        finally:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(temporary)

    @staticmethod
    def _created(path: str, folder: str) -> io.BufferedWriter:
        """Create a file; its folder is made only where it is missing, since most files go into one that is there."""
        try:
            return open(path, "xb")  # without a path object; the caller closes it
        except FileNotFoundError:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return open(path, "xb")  # as above

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        # The kernel drops the lock with the process, so a killed writer leaves nothing behind that blocks others.
        path = (self._root / key).parent.parent / ".lock"
        try:
            with path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise StoreError(f"cannot lock {path}: {error}") from error


def _remove(folder: Path) -> None:
    """Delete a folder, together with other processes that may be doing the same."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue


def sync_path(path: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Sync a local file, or the names in a local folder, to disk. A remote URI is durable already.

    Args:
        path: A local path or a URI.
        storage_options: Of the table it belongs to: with the durability "process", nothing is done.
    """
    if "://" in path or not is_durable(storage_options or {}):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
