"""What a power cut can leave of an operation on local disk, by the rules of POSIX.

`fsync` of a file makes its content durable, and `fsync` of a folder the names in it. Of everything else, any part may
be on the disk: a name that was made, replaced or removed since its folder was synced is there as before or as after,
each by itself and in any order; content that was written since its file was synced is there as before, whole, or by
half.

The system calls of the process are watched at each `fsync`, where the folder is compared with what is durable so far.
That sees the files of pylance too, which writes them without Python. A power cut between two syncs leaves nothing that
a power cut right before the second of them cannot leave.
"""

import os
import random
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest

_FEW_STATES = 64
"""Up to so many states are made all; of more, those in which one thing differs, and some at random."""
_RANDOM_STATES = 32
_LOCKS = frozenset({".lock", "queues"})
"""Names of locks, and of folders of locks: nobody reads them, so it makes no difference whether they survive."""


class Entry(NamedTuple):
    """What a name in a folder stands for: the number of a file or folder."""

    number: int
    is_folder: bool


Names = Mapping[str, Entry]
Choice = Mapping[tuple[int, str] | int, int]
"""The answer to each open question: of a name by its folder and itself, of content by the number of the file."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The names in each folder, and the content of each file; by the numbers of the folders and files."""

    names: Mapping[int, Names] = field(default_factory=dict)
    content: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """What is certainly on the disk, and what the process has made so far; `done` after the operation has returned."""

    root: int
    durable: Disk
    made: Disk
    done: bool

    def states(self, chance: random.Random) -> Iterator[Mapping[str, bytes | None]]:
        """Every folder that a power cut can leave, or many: the content of each file by its path, None for a folder."""
        seen = set[frozenset[tuple[str, bytes | None]]]()
        for choice in self._choices(chance):
            state = dict(self._tree(self.root, "", choice))
            if (key := frozenset(state.items())) not in seen:
                seen.add(key)
                yield state

    def _choices(self, chance: random.Random) -> Iterator[Choice]:
        open_: dict[tuple[int, str] | int, range] = {place: range(2) for place in self._open_names()}
        open_ |= {file: range(3) for file in self._open_files()}
        if prod(map(len, open_.values())) <= _FEW_STATES:
            for numbers in product(*open_.values()):
                yield dict(zip(open_, numbers, strict=True))
            return
        for usual in (dict.fromkeys(open_, 0), {place: len(ways) - 1 for place, ways in open_.items()}):
            yield usual
            for place, ways in open_.items():
                yield from ({**usual, place: way} for way in ways)
        for _ in range(_RANDOM_STATES):
            yield {place: chance.choice(ways) for place, ways in open_.items()}

    def _open_names(self) -> Iterator[tuple[int, str]]:
        for folder in self.durable.names.keys() | self.made.names.keys():
            before, after = self.durable.names.get(folder, {}), self.made.names.get(folder, {})
            yield from (
                (folder, name)
                for name in sorted(before.keys() | after.keys() - _LOCKS)
                if before.get(name) != after.get(name)
            )

    def _open_files(self) -> Iterator[int]:
        return (file for file, found in self.made.content.items() if self.durable.content.get(file) != found)

    def _tree(self, folder: int, path: str, choice: Choice) -> Iterator[tuple[str, bytes | None]]:
        before, after = self.durable.names.get(folder, {}), self.made.names.get(folder, {})
        for name in before.keys() | after.keys():
            entry = (after if choice.get((folder, name)) else before).get(name)
            if entry is None:
                continue
            below = f"{path}/{name}" if path else name
            if entry.is_folder:
                yield below, None
                yield from self._tree(entry.number, below, choice)
            else:
                yield below, self._content(entry.number, choice.get(entry.number, 0))

    def _content(self, file: int, choice: int) -> bytes:
        before, after = self.durable.content.get(file, b""), self.made.content.get(file)
        if choice == 0 or after is None:
            return before
        half = len(after) // 2
        return after if choice == 2 else after[:half] + before[half:]  # the last of three


@dataclass(slots=True)
class Recorder:
    """Watches the syncs of this process below a folder."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    _durable: Disk = field(default_factory=Disk)
    _held: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is durable at each sync inside the block, and at its end; all that is there before is durable."""
        self._durable = self._scanned()
        sync, lock = os.fsync, threading.Lock()

        def noted(descriptor: int) -> None:
            # An operation may copy files in several threads.
            with lock:
                self.note(done=False)
                sync(descriptor)
                self._secure(os.fstat(descriptor))

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", noted)
                yield
            self.note(done=True)
        finally:
            for descriptor in self._held.values():
                os.close(descriptor)

    def note(self, *, done: bool) -> None:
        """Add this moment, unless nothing differs from the last one."""
        found = Moment(self.root.stat().st_ino, self._durable, self._scanned(), done)
        if not self.moments or found != self.moments[-1]:
            self.moments.append(found)

    def _secure(self, synced: os.stat_result) -> None:
        made = self.moments[-1].made if self.moments else self._durable
        number, names, content = synced.st_ino, {**self._durable.names}, {**self._durable.content}
        if stat.S_ISDIR(synced.st_mode) and number in made.names:
            names[number] = made.names[number]
        elif number in made.content:
            content[number] = made.content[number]
        self._durable = Disk(names, content)

    def _scanned(self) -> Disk:
        names: dict[int, Names] = {}
        content: dict[int, bytes] = {}
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            found: dict[str, Entry] = {}
            # Another thread may delete a folder, or a temporary file, that was just listed.
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                names[folder.stat().st_ino] = found
                for entry in entries:
                    number, is_folder = entry.inode(), entry.is_dir(follow_symlinks=False)
                    found[entry.name] = Entry(number, is_folder)
                    self._hold(number, entry.path)
                    if is_folder:
                        waiting.append(Path(entry.path))
        for number, descriptor in self._held.items():
            status = os.fstat(descriptor)
            if not stat.S_ISDIR(status.st_mode):
                content[number] = os.pread(descriptor, status.st_size, 0)
        return Disk(names, content)

    def _hold(self, number: int, path: str) -> None:
        # The number of a file that was deleted would be given to a new one, if no descriptor were open.
        if number not in self._held:
            with suppress(FileNotFoundError):
                self._held[number] = os.open(path, os.O_RDONLY)


def put_back(folder: Path, state: Mapping[str, bytes | None]) -> None:
    """Make an empty folder what a power cut left."""
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
