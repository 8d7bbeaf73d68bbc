"""Symbolic links below the root of a table on local disk: none may be there, and none is followed.

What a deletion or a rename does to a branch would hit whatever the link names, and a reader would be given the rows of
another table.
"""

import errno
import io
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from lance_dagster.errors import StoreError

_TICK_NS = 2_000_000_000
"""How long a change of a folder may leave its time as it is, on the coarsest file systems."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """The names of the links and of the folders in a folder, which had this number and time then."""

    stamp: tuple[int, int]
    links: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class Links:
    """Finds and refuses the symbolic links below a root, which may itself be reached through one."""

    root: str
    # What the folders held that were searched.
    _searched: dict[str, _Searched] = field(default_factory=dict)

    def refuse(self, key: str, *, below: bool = False) -> None:
        """Refuse a folder or file that is a link, that lies behind one, or with `below` that has one below it.

        Raises:
            StoreError: Names the link.
        """
        path = self.root
        for segment in key.split("/") if key else ():
            path = f"{path}/{segment}"
            if os.path.islink(path):
                raise _linked(path)
        for link in self.find(key) if below else ():
            raise _linked(f"{self.root}/{link}")

    def open(self, key: str) -> io.FileIO:
        """Open a file that lies behind no link."""
        self.refuse(key.rpartition("/")[0])
        try:
            # A path string: constructing a `Path` takes longer than reading a small file.
            return io.FileIO(f"{self.root}/{key}", opener=_opened)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.refuse(key)
            raise

    def find(self, folder: str) -> Sequence[str]:
        """Return the keys of the links at or below a folder, sorted.

        A folder that did not change since it was searched is not listed again.
        """
        if os.path.islink(f"{self.root}/{folder}"):
            return [folder]
        found, waiting = list[str](), [folder]
        while waiting:
            below = waiting.pop()
            prefix = f"{below}/" if below else ""
            searched = self._search(below)
            found += [f"{prefix}{name}" for name in searched.links]
            waiting += [f"{prefix}{name}" for name in searched.folders]
        return sorted(found)

    def _search(self, folder: str) -> _Searched:
        path = f"{self.root}/{folder}"
        links, folders = list[str](), list[str]()
        try:
            status = os.stat(path)
            stamp = status.st_ino, status.st_mtime_ns
            known = self._searched.get(folder)
            if known is not None and known.stamp == stamp:
                return known
            with os.scandir(path) as entries:
                for entry in entries:
                    # Neither asks the file system: the listing says of what kind each entry is.
                    if entry.is_symlink():
                        links.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return _Searched((0, 0))
        except OSError as error:
            raise StoreError(f"cannot list {path}: {error}") from error
        found = _Searched(stamp, tuple(links), tuple(folders))
        if time.time_ns() - status.st_mtime_ns > _TICK_NS:
            self._searched[folder] = found
        return found


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _linked(path: str) -> StoreError:
    return StoreError(
        f"{path} is a symbolic link to {os.readlink(path)}: a read or a change through it would be one of another "
        "table or folder; remove the link, or put the files there"
    )
