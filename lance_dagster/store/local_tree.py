"""What lies below a folder on local disk: files, copies of them, and symbolic links, of which there must be none.

A link is never followed. What a deletion or a rename does to a branch would hit whatever the link names, and a reader
would be given the rows of another table.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lance_dagster.errors import InvalidInputError, PermissionRefusedError, StoreError
from lance_dagster.store.interface import ObjectInfo

_TICK_NS = 2_000_000_000
"""The coarsest resolution of modification times, in nanoseconds: changes within it may leave a folder's time equal."""


@dataclass(frozen=True, slots=True)
class _SearchedFolder:
    """The names of the links and of the folders in a folder, which had this number and time then."""

    stamp: tuple[int, int]
    links: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class LocalTree:
    """Lists the files and the symbolic links below a root, which may itself be reached through a link."""

    root: str
    # What the folders held that were searched.
    _searched: dict[str, _SearchedFolder] = field(default_factory=dict)

    def links(self, *folders: str) -> Sequence[str]:
        """Return the keys of the links at or below folders, sorted.

        A folder that did not change since it was searched is not listed again.
        """
        links = [folder for folder in folders if os.path.islink(f"{self.root}/{folder}")]
        waiting = [folder for folder in folders if folder not in links]
        while waiting:
            below = waiting.pop()
            prefix = f"{below}/" if below else ""
            searched = self._search(below)
            links += [f"{prefix}{name}" for name in searched.links]
            waiting += [f"{prefix}{name}" for name in searched.folders]
        return sorted(links)

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every file below a folder; a link is one of them. Files that are deleted meanwhile may be missing."""
        # Iterative, because a branch name may nest folders to any depth.
        waiting = [folder]
        while waiting:
            below = waiting.pop()
            try:
                with os.scandir(f"{self.root}/{below}") as entries:
                    listed = list(entries)
            except (FileNotFoundError, NotADirectoryError) as error:
                refuse_file(self.root, error)
                continue
            except OSError as error:
                raise StoreError(f"cannot list {self.root}/{below}: {error}") from error
            for entry in listed:
                key = f"{below}/{entry.name}" if below else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(key)
                    continue
                try:
                    # A link counts as itself: a collection deletes it, not the file that it names.
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise StoreError(f"cannot look at {self.root}/{key}: {error}") from error
                yield ObjectInfo(key, status.st_size, status.st_mtime)

    def _search(self, folder: str) -> _SearchedFolder:
        path = f"{self.root}/{folder}"
        links, folders = list[str](), list[str]()
        try:
            status = os.stat(path)
            stamp = status.st_ino, status.st_mtime_ns
            cached = self._searched.get(folder)
            if cached is not None and cached.stamp == stamp:
                return cached
            with os.scandir(path) as entries:
                for entry in entries:
                    # Neither asks the file system: the listing says of what kind each entry is.
                    if entry.is_symlink():
                        links.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        except (FileNotFoundError, NotADirectoryError) as error:
            refuse_file(self.root, error)
            return _SearchedFolder((0, 0))
        except OSError as error:
            raise StoreError(f"cannot list {path}: {error}") from error
        searched = _SearchedFolder(stamp, tuple(links), tuple(folders))
        if time.time_ns() - status.st_mtime_ns > _TICK_NS:
            self._searched[folder] = searched
        return searched


def refuse_file(root: str, error: OSError | ValueError | None = None) -> None:
    """Refuse a root that is a file or lies below a file: nothing is there, and nothing can ever be written there.

    A file in the place of a folder below the root is not refused: no object is below that.

    Args:
        root: The folder of a table or of a lake.
        error: What the system said; where it found nothing, there is no file either.

    Raises:
        InvalidInputError: Names the file.
    """
    if isinstance(error, FileNotFoundError):
        return
    path = root
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    # A link to nothing is no folder yet: a mount may be missing. What follows names the link.
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidInputError(
            f"{path if path.isprintable() else repr(path)} is a file, and a table or a lake is a folder: move the file "
            "away, or name another place"
        )


def linked(path: str) -> StoreError:
    """Return the error for a link in the way of an operation."""
    return StoreError(
        f"{path} is a symbolic link to {os.readlink(path)}: a read or a change through it would be one of another "
        "table or folder; remove the link, or put the files there"
    )


def renewed(path: Path) -> bool:
    """Give a file the present time, so that a collection takes it for a new file; return whether it exists."""
    try:
        os.utime(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        # Only its owner may set its time. Then it is copied again.
        return False
    return True


def copy_at_once(source: Path, target: Path, sync: Callable[[str], None] | None) -> None:
    """Copy a file or a folder with all below it, so that the target appears complete; a folder that is there is kept.

    Args:
        source: What is copied.
        target: The name of the copy, in a folder that exists.
        sync: Makes the content of a path durable; None where that is not wanted.
    """
    temporary = target.parent / f".tmp{uuid.uuid4().hex}"
    try:
        if source.is_dir():
            # The copies get times of their own: a collection deletes files that nothing names yet if they look old.
            shutil.copytree(source, temporary, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, temporary)
        # Everything is synced under the temporary name; the rename then publishes a complete copy.
        if sync is not None:
            for path in (temporary, *temporary.rglob("*")):
                sync(str(path))
        os.replace(temporary, target)
    except OSError:
        # Half a copy would take the space that was missing for the rest.
        with suppress(OSError):
            shutil.rmtree(temporary) if source.is_dir() else temporary.unlink()
        # A folder does not replace an existing folder: a process that copies the same was first.
        if not (source.is_dir() and target.is_dir()):
            raise


def failed(what: str, path: str, error: OSError | ValueError) -> StoreError:
    """Return the error for a call of the operating system that failed; a path with a NUL is a ValueError there."""
    # Shown as Python writes it where it would break a message.
    shown = path if path.isprintable() else repr(path)
    code = getattr(error, "errno", None)
    # Refused before anything was done, so a caller need not ask what became of the call.
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionRefusedError(f"{what} {shown}", str(error))
    return StoreError(f"cannot {what} {shown}: {error}")
