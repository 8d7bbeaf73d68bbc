"""Tables on local disk, durable by default.

The order of a write: write the object to a temporary file, fsync the file, link it to its name, fsync the folder.
- The name appears only after the content is complete, so a reader sees the whole object or none.
- `link` fails when the name exists, so that of two writers of one name exactly one wins. `rename` would replace the
  first writer's object silently, and `open("x")` would show an incomplete object.
- The file is synced before it is linked: otherwise a power cut could leave the name with empty content. The folder is
  synced after that, because the new name itself lives in the folder.

- Data files that a manifest names, and their folder, are synced with the content of the manifest, before that has its
  name: the file system then writes its journal once for all of them.
- A folder is an entry of its parent, which is synced too: once for each folder that a store writes into, and once for
  all folders above the root, from the top downwards. Another process, or a write that was not to be synced, may have
  made them.
- When the last sync fails, the name may be lost by a power cut although it can be read: `NotDurableError` says so.

No method follows a symbolic link below the root (`store.local_tree`). With the storage option `durability` set to
"process" nothing is synced, as with pylance. Temporary files are named `.tmp...`; Lance's cleanup removes such files.
"""

import errno
import fcntl
import hashlib
import io
import os
import random
import shutil
import stat
import time
import uuid
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from lance_dagster.errors import InvalidInputError, NotDurableError
from lance_dagster.store.interface import ObjectInfo, Patience, Turn
from lance_dagster.store.local_tree import LocalTree, copy_at_once, failed, linked, refuse_file, renewed
from lance_dagster.store.options import is_durable

_ATTEMPTS = 5
# Errors that are ignored when a folder above the root is synced: such a folder was not made for the table.
_UNSYNCED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL})
# The locks with which writers of one branch take turns; branches share them.
_QUEUES, _MOST_QUEUES = "_refs/queues", 16
_PATIENCE = Patience(turn=3.0, head=0.0004, shortest=0.003, longest=0.03)


class _SyncedFolders:
    """The folders below a root, and of which of them it is known that their names survive a power cut."""

    def __init__(self, root: Path, sync: Callable[[str], None]) -> None:
        self._root, self._uri, self._sync = root, str(root), sync
        # The folders whose names are known to be synced, with their inode numbers, which change if a folder is
        # replaced.
        self._numbers: dict[str, int] = {}
        # The number of the root, once the folders that lead to it are known to be synced.
        self._reached: int | None = None

    def create(self, path: str, folder: str, *, synced: bool) -> io.BufferedWriter:
        """Create a file; its folder is made only if it is missing, since most files go into an existing folder."""
        for _ in range(_ATTEMPTS):
            try:
                return open(path, "xb")  # without a path object; the caller closes it
            except FileNotFoundError:
                # This is repeated, since a process that deletes what was there may remove the empty folder at once.
                self.make(folder, synced=synced)
        return open(path, "xb")  # as above

    def make(self, folder: str, *, synced: bool) -> None:
        """Make a folder and the folders above it, and sync the entry of each new folder, the uppermost first."""
        missing: list[str] = []
        for _ in range(_ATTEMPTS):
            path = folder
            while not os.path.isdir(path):
                missing.append(path)
                path = os.path.dirname(path)
            # It fails when another process, which deletes what was there, removes one of them meanwhile.
            with suppress(FileNotFoundError):
                self._make_all(folder)
                # A new folder may have the inode number of a removed folder.
                self._numbers.clear()
                self._reached = None if self._uri in missing else self._reached
                for new_folder in sorted(set(missing), key=len) if synced else ():
                    self._sync(os.path.dirname(new_folder))
                return

    def _make_all(self, folder: str) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            refuse_file(self._uri, error)
            raise

    def secure(self, folder: str) -> None:
        """Sync the entries of the folders that lead to a folder, once for each folder."""
        number = os.stat(folder).st_ino
        if self._numbers.get(folder) == number:
            return
        below = folder.removeprefix(self._uri).strip("/").split("/")
        leading = [self._uri, *(f"{self._uri}/{'/'.join(below[:end])}" for end in range(1, len(below)))]
        self._reach()
        for path in leading:
            self._sync(path)
        self._numbers[folder] = number

    def _reach(self) -> None:
        """Sync the entries of all folders that lead to the root, once for each root."""
        number = os.stat(self._uri).st_ino
        if self._reached == number:
            return
        for path in reversed(self._root.parents):
            try:
                self._sync(str(path))
            except OSError as error:
                if error.errno not in _UNSYNCED:
                    raise
        self._reached = number


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
        self._folders = _SyncedFolders(self._root, self._sync)
        self._tree = LocalTree(self.uri)

    @property
    def storage(self) -> object:
        """Equal for every folder of this host."""
        return "local"

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None when there is none."""
        return self._read(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` up to `end`, or None when it does not exist."""
        return self._read(key, start, end)

    def _read(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        try:
            with self._opened(key) as file:
                file.seek(start)
                # One read of a regular file may return fewer bytes only at its end, or beyond 2 GiB.
                return file.readall() if end is None else file.read(end - start)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            refuse_file(self.uri, error)
            return None
        except (OSError, ValueError) as error:
            raise failed("read", f"{self._root}/{key}", error) from error

    def get_with_etag(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and their digest, or None when it does not exist."""
        data = self.get(key)
        return None if data is None else (data, _tag(data))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object atomically, replacing any existing one; synced when it is `durable`."""
        with self._temporary_file(key, data, synced=durable and self._durable, moves=True) as (temporary, target):
            # Atomic: a reader sees the old object or the new object, never a mixture.
            os.replace(temporary, target)

    def put_hint(self, key: str, data: bytes) -> None:
        """Write a hint over the earlier hint in place, if that has the same size and no other name; else put it.

        To replace a file is to delete a file. ext4 gives a new file none of the inodes that were freed in the last
        seconds, and looks at each of these inodes for each new file, so hints that are replaced at every commit make
        every commit slower. A rename over a file also begins to write the new file to disk (`auto_da_alloc`).

        Of two writers the slower writer may leave its number, in place as by replacement. A reader sees the hint of
        one of the two writers: both hints have the same length, and a few bytes are written by one call.
        """
        self.refuse_links(key.rpartition("/")[0])
        if not _overwritten(f"{self._root}/{key}", data):
            self.put(key, data, durable=False)

    def put_if_absent(self, key: str, data: bytes, *, synced: bool = True, after: Sequence[str] = ()) -> bool:
        """Write an object atomically unless the name exists; return whether it was written.

        The content is synced in any case, with the files and folders of `after`; the name unless `synced` is False.
        """
        try:
            with self._temporary_file(key, data, synced=self._durable, moves=False, named=synced, after=after) as paths:
                temporary, target = paths
                # Atomic and exclusive: fails with FileExistsError when another writer was first.
                os.link(temporary, target)
        except FileExistsError:
            return False
        return True

    def compare_and_swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace an object unless it changed since `tag` was read. Safe between processes of one host."""
        with self._compared(key, tag) as unchanged:
            if unchanged:
                self.put(key, data)
            return unchanged

    def written_tag(self, key: str, data: bytes) -> str | None:  # noqa: ARG002  # the digest of the bytes
        """Return the digest of the bytes."""
        return _tag(data)

    def list(self, folder: str, limit: int | None = None) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        with self._scanned(folder) as entries:
            # One expression: a commit lists a folder of very many manifests.
            names = sorted([entry.name for entry in entries if entry.is_file()])
        # Temporary names stand together, so they need not be looked for in each name.
        del names[bisect_left(names, ".tmp") : bisect_left(names, ".tmq")]
        return names[:limit]

    def list_with_etags(self, folder: str) -> dict[str, str]:
        """Return the names of the files in a folder, sorted; their tags are digests, which take reading them."""
        return dict.fromkeys(self.list(folder), "")

    def list_some(self, folder: str, limit: int) -> Collection[str]:
        """Return the names of at most `limit` files in a folder, unordered, without reading the rest of the folder."""
        with self._scanned(folder) as entries:
            files = (entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".tmp"))
            return list(islice(files, limit))

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the folders in a folder, sorted; links are not followed."""
        with self._scanned(folder) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names of the files in a folder with their sizes in bytes."""
        sizes: dict[str, int] = {}
        with _translated("list", f"{self._root}/{folder}"):
            for name in self.list(folder):
                # Deleted since it was listed.
                with suppress(FileNotFoundError):
                    sizes[name] = (self._root / folder / name).stat().st_size
        return sizes

    def _opened(self, key: str) -> io.FileIO:
        """Open a file that lies behind no link."""
        self.refuse_links(key.rpartition("/")[0])
        try:
            # A path string: constructing a `Path` takes longer than reading a small file.
            return io.FileIO(f"{self._root}/{key}", opener=_open_no_link)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.refuse_links(key)
            raise

    @contextmanager
    def _scanned(self, folder: str) -> Iterator[Iterable[os.DirEntry[str]]]:
        """Yield the entries of a folder, none where there is no such folder."""
        self.refuse_links(folder)
        with _translated("list", f"{self._root}/{folder}"):
            try:
                entries = os.scandir(self._root / folder)
            except (FileNotFoundError, NotADirectoryError) as error:
                refuse_file(self.uri, error)
                yield ()
                return
            with entries:
                yield entries

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """List every file below a folder. Files deleted meanwhile may be missing; symbolic links are not followed."""
        self.refuse_links(folder)
        return self._tree.walk(folder)

    def now(self) -> float:
        """Return the clock of the file system, which on a network mount is another host's."""
        path = self._root / f".tmp{uuid.uuid4().hex}"
        refuse_file(self.uri)
        with _translated("read the clock of", self.uri):
            self._root.mkdir(parents=True, exist_ok=True)
            path.touch()
            try:
                return path.stat().st_mtime
            finally:
                path.unlink(missing_ok=True)

    def download(self, key: str, path: Path) -> bool:
        """Copy a file out of the store; return whether it exists."""
        self.refuse_links(key)
        with _translated("read", f"{self._root}/{key}"):
            try:
                shutil.copyfile(self._root / key, path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                refuse_file(self.uri, error)
                return False
        return True

    def upload(self, path: Path, key: str) -> None:
        """Copy a file into the store, atomically, replacing any existing one."""
        self.refuse_links(key.rpartition("/")[0])
        with _translated(f"copy {path} to", f"{self._root}/{key}"):
            self._copied(path, key)

    def copy_from(self, source_uri: str, key: str) -> bool:
        """Copy a file or a folder tree to `key`, except files that are there. Return whether the target exists."""
        source, target = Path(source_uri), self._root / key
        self.refuse_links(key.rpartition("/")[0])
        with _translated(f"copy {source} to", str(target)):
            if source.is_dir() and target.is_dir():
                # A collection may have deleted a part of an earlier copy.
                return all(self.copy_from(str(path), f"{key}/{path.name}") for path in source.iterdir())
            # Objects never change, so an existing copy is complete: an interrupted copy is resumed where it stopped.
            if not renewed(target) and source.exists():
                self._copied(source, key)
            return target.exists()

    def _copied(self, source: Path, key: str) -> None:
        target = self._root / key
        self._folders.make(str(target.parent), synced=self._durable)
        copy_at_once(source, target, self._sync if self._durable else None)
        self.sync_folder(key.rpartition("/")[0])

    def delete(self, key: str) -> None:
        """Delete a file; succeed when it does not exist."""
        self.refuse_links(key.rpartition("/")[0])
        with _translated("delete", f"{self._root}/{key}"), suppress(NotADirectoryError):
            (self._root / key).unlink(missing_ok=True)

    def compare_and_delete(self, key: str, tag: str) -> bool:
        """Delete a file unless it changed since `tag` was read. Safe between processes of one host."""
        with self._compared(key, tag) as unchanged:
            if unchanged:
                self.delete(key)
                # A caller that was told of the deletion must not find the name again after a power cut.
                self.sync_folder(key.rpartition("/")[0])
            return unchanged

    def deletes_conditionally(self) -> bool:
        """Return True: a file is compared and deleted under its lock."""
        return True

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete files one by one."""
        for key in keys:
            self.delete(key)

    def prune(self, folder: str) -> None:
        """Remove the empty folders at and below a folder, and parent folders that become empty."""
        self.refuse_links(folder)
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
        """Make the directory entries of a folder survive a power cut, and the entries of the folders above it."""
        path = f"{self._root}/{folder}"
        problem = OSError()
        for _ in range(_ATTEMPTS):
            # A folder that is not there has no entry that could be lost. Another process may remove it meanwhile, as
            # one does that deletes the same branch, or remove it and make it again.
            if not self._durable or not os.path.isdir(path):
                return
            try:
                self._folders.secure(path)
                self._sync(path)
                return
            except FileNotFoundError as error:
                problem = error
            except OSError as error:
                problem = error
                break
        # A class of its own: a second sync may succeed without having written what the first sync failed to write.
        raise NotDurableError(str(failed("sync", path, problem))) from problem

    @contextmanager
    def turn(self, name: str, meanwhile: Callable[[], object] = object) -> Iterator[Turn]:
        """Wait until other writers of a name are done, at most a few seconds."""
        folder = f"{self._root}/{_QUEUES}/{zlib.crc32(name.encode()) % _MOST_QUEUES}"
        with taken_turn(f"{folder}/next/.lock", f"{folder}/.lock", _PATIENCE, meanwhile) as (turn, _):
            yield turn

    def refuse_links(self, *keys: str, below: Sequence[str] = ()) -> None:
        """Refuse folders and files that are links or lie behind one, and the folders in `below` that have one below.

        Raises:
            StoreError: Names the link.
        """
        # The check is inlined here, because every read and every write calls this method.
        for key in (*keys, *below):
            path = self.uri
            for segment in key.split("/") if key else ():
                path = f"{path}/{segment}"
                if os.path.islink(path):
                    raise linked(path)
        for link in self._tree.links(*below) if below else ():
            raise linked(f"{self.uri}/{link}")

    def links(self, folder: str = "") -> Sequence[str]:
        """Return the keys of the symbolic links at or below a folder, sorted."""
        return self._tree.links(folder)

    @contextmanager
    def _temporary_file(
        self, key: str, data: bytes, *, synced: bool, moves: bool, named: bool = True, after: Sequence[str] = ()
    ) -> Iterator[tuple[str, str]]:
        """Yield a synced temporary file and its target; once the caller linked or renamed it, sync the name if `named`.

        What is listed in `after` is synced with the temporary file. The temporary file is in the folder of the target,
        because `link` and `rename` work within one file system. It is deleted afterwards, unless the caller `moves` it
        and does not fail.
        """
        # Strings in place of path objects: constructing these takes longer than writing a small file.
        target = f"{self._root}/{key}"
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/.tmp{uuid.uuid4().hex}"
        self.refuse_links(key.rpartition("/")[0])
        has_temporary, is_named = True, False
        try:
            with self._folders.create(temporary, folder, synced=synced) as file:
                file.write(data)
                file.flush()
                if synced:
                    self._sync_content(file, after)
            if synced:
                self._folders.secure(folder)
            yield temporary, target
            has_temporary, is_named = not moves, True
            if synced and named:
                self._sync(folder)
        # A lost race for the name is not a failure of the storage. A failed sync of the name is not a failed write.
        except (FileExistsError, NotDurableError):
            raise
        except (OSError, ValueError) as error:
            # Before anything was written, so a caller need not ask what became of the write.
            refuse_file(self.uri, error)
            if is_named:
                raise NotDurableError(f"{target} was written, but a power cut may lose it: {error}") from error
            raise failed("write", target, error) from error
        finally:
            # A file that was moved is gone: to delete it again costs a request on a network file system.
            if has_temporary:
                with suppress(OSError, ValueError):
                    os.unlink(temporary)

    def _sync_content(self, file: io.BufferedWriter, after: Sequence[str]) -> None:
        """Sync an open file, and what its content names.

        The system is told first to write the files of `after`. The sync of the open file, for which the file system
        writes its journal, then serves them all, and the syncs of the files of `after` find little to do.

        Raises:
            NotDurableError: A file or folder of `after` could not be synced.
        """
        # What is not there has no name that could be lost.
        paths = [path for key in after if os.path.exists(path := f"{self._root}/{key}")]
        for path in paths:
            _begin_writing(path)
        os.fsync(file.fileno())
        for path in paths:
            try:
                self._folders.secure(path if os.path.isdir(path) else os.path.dirname(path))
                self._sync(path)
            except OSError as error:
                raise NotDurableError(str(failed("sync", path, error))) from error

    def _sync(self, path: str) -> None:
        """Sync a file, or the entries of a folder. All syncs go through here: a test can watch them or fail one."""
        _sync(path)

    @contextmanager
    def _compared(self, key: str, tag: str) -> Iterator[bool]:
        """Lock a file, and say whether it is as it was when `tag` was read."""
        # A missing object fails without the lock, whose file would otherwise be created in a folder that may not exist.
        if self.get(key) is None:
            yield False
            return
        # The read is repeated under the lock: between the two, another process may have swapped.
        with self._lock(key):
            data = self.get(key)
            yield data is not None and _tag(data) == tag

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        # The kernel releases the lock when the process ends, so a killed writer cannot block others. The lock file is
        # never deleted: a lock on an unlinked file would not exclude a process that creates a new file.
        path = (self._root / key).parent.parent / ".lock"
        with _translated("lock", str(path)), path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def taken_turn(
    next_one: str, lock: str, patience: Patience, meanwhile: Callable[[], object]
) -> Iterator[tuple[Turn, int | None]]:
    """Wait for a turn; yield it with the descriptor of the lock, which is None where the file cannot be opened.

    Args:
        next_one: The path of the lock of the writer that is next.
        lock: The path of the lock of the writer whose turn it is.
        patience: How long to wait.
        meanwhile: Called by the writer that is next.
    """
    until = time.monotonic() + patience.turn
    with ExitStack() as held:
        with ExitStack() as waiting:
            ahead, _ = _locked(next_one, until, patience, waiting)
            behind, descriptor = _locked(lock, until, patience, held, meanwhile=meanwhile)
        yield Turn(waited=ahead or behind), descriptor


def _locked(
    path: str, until: float, patience: Patience, held: ExitStack, *, meanwhile: Callable[[], object] | None = None
) -> tuple[bool, int | None]:
    """Lock a file until `held` is closed, or go on without the lock after `until`; return whether the writer waited.

    A writer waits by asking again and again, since a lock that a stopped process holds must not stop others. The longer
    a writer has waited, the more often it asks, so that it is served before a writer that came later. The writer with
    something to do `meanwhile` is the head of the queue: it does that first, and then asks all the time.
    """
    started, waited = time.monotonic(), False
    descriptor = _lock_file(path)
    if descriptor is None:
        return False, None
    held.callback(os.close, descriptor)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if meanwhile is not None and not waited:
                meanwhile()
            waited = True
        except OSError:
            # The file system has no locks.
            return waited, descriptor
        else:
            # A process that was forked meanwhile has the descriptor too, and closing it here would keep the lock.
            held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
            return waited, descriptor
        now = time.monotonic()
        if now > until:
            return waited, descriptor
        longest = patience.longest / (1 + (now - started) / patience.longest)
        pause = patience.head if meanwhile is not None else max(patience.shortest, longest)
        time.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # no secret depends on it


def _lock_file(path: str) -> int | None:
    """Open a file for a lock, with its folder where that is missing; None where this user may not write."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o666)
    except OSError:
        return None


@contextmanager
def _translated(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError:
        # `refuse_file` says what is wrong already; the class is a ValueError too.
        raise
    except (OSError, ValueError) as error:
        raise failed(what, path, error) from error


def sync_path(path: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Sync a local file, or the directory entries of a local folder, to disk. A remote URI needs no sync.

    Args:
        path: A local path or a URI.
        storage_options: The options of the table; with the durability "process", nothing is synced.
    """
    if "://" not in path and is_durable(storage_options or {}):
        with _translated("sync", path):
            _sync(path)


def _begin_writing(path: str) -> None:
    """Have the system begin to write what a file holds, where it can be told so; nothing is waited for."""
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # For pages that are to be written, this call begins the writing; for a folder, it does nothing.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _overwritten(path: str, data: bytes) -> bool:
    """Write over a file of the same size in place, and return whether that was done; a link is left alone."""
    try:
        # Opened without waiting: a pipe of that name would block.
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        # There is no hint yet, or it belongs to another user, who lets others replace it.
        return False
    try:
        status = os.fstat(descriptor)
        # A copy of the table that was made of hard links has the same file: it would get a hint of a version it has
        # not.
        own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        return own and status.st_size == len(data) and os.pwrite(descriptor, data, 0) == len(data)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _sync(path: str) -> None:
    # A folder can be opened for reading only; fsync takes such a descriptor for files too.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
