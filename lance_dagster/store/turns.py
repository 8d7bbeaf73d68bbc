"""Turns: the writers of one machine commit to a branch one after another, where they would race and mostly lose.

Two lock files for each queue. A writer that waits for the second has the first, so that a writer which comes back at
once has to wait behind one that waited already. The kernel releases the locks of a process that ends.

The writer before leaves the manifest that it has just put, so that the next one makes a single request in its turn: the
put. A number that is free then shows that this manifest is still the newest, as after a listing.

Turns only save attempts, and keep writers from starving each other. Correctness does not depend on them: a turn is
waited for only a few seconds, and is had at once where locks cannot be used. Writers of other machines have queues of
their own, and the commit itself decides between them.

Tables on local disk have their queues beside their refs, so that all users and containers that see the table share
them. Those of tables on object storage are in the folder for temporary files, in a folder of the user. A shared folder
there would let one user delay the commits of another one.
"""

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lance_dagster.store.interface import Patience, Turn
from lance_dagster.store.local import taken_turn

# Objects whose names have the same hash share a queue, which costs time and nothing else.
_QUEUE_DIGITS = 3
# A note is the hash of what the queue is for, a number, the time, and the hash of the manifest that was left.
_NOTE_BYTES = 256
# A manifest is handed over up to this size, and for so many nanoseconds: meanwhile another machine could commit several
# versions and clean up all but the last, so that the next number is free. It could between a listing and a put, too.
_HANDED_BYTES, _HANDED_NS = 1 << 22, 250_000_000
# A commit to an object store takes at least one request in its turn.
_PATIENCE = Patience(turn=10.0, head=0.002, shortest=0.006, longest=0.06)


@contextmanager
def turn_of_machine(key: str, meanwhile: Callable[[], object] = object) -> Iterator[Turn]:
    """Wait for a turn among the writers of this user on this machine.

    Args:
        key: What the writers write to.
        meanwhile: Called by the writer that is next.
    """
    folder = _folder_of_user()
    if folder is None:
        yield Turn()
        return
    digest = hashlib.sha256(key.encode()).hexdigest()
    path = f"{folder}/{digest[:_QUEUE_DIGITS]}"
    with taken_turn(f"{path}.next", path, _PATIENCE, meanwhile) as (turn, descriptor):
        if descriptor is None:
            yield turn
            return
        turn.newest, handed = _noted(descriptor, digest)
        # A writer that did not wait may come long after the one before.
        turn.manifest = _handed(f"{path}.manifest", handed) if turn.waited and handed else None
        found = turn.newest
        yield turn
        # Not after an error: then nothing newer is known.
        if turn.newest != found:
            _leave(descriptor, path, digest, turn)


def _folder_of_user() -> str | None:
    """Return the folder of the queues of this user, made where it is missing; None where there can be none.

    Anybody may create names in the folder for temporary files, so a folder or link of another user is not used.
    """
    try:
        path = f"{tempfile.gettempdir()}/lance_dagster-{os.getuid()}"
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if private else None


def _noted(descriptor: int, digest: str) -> tuple[int, str]:
    """Return the number that the writer before left in the file of a lock, and the hash of what it has just put.

    The number is 0 where that writer wrote to something else, and the hash is empty where it left nothing just now.
    """
    try:
        whose, number, noted, left = os.pread(descriptor, _NOTE_BYTES, 0).decode("ascii").split(" ")[:4]
        # The clock is the same for all processes of a machine, and never goes back.
        is_recent = 0 <= time.monotonic_ns() - int(noted) <= _HANDED_NS
        return (int(number), left.strip() if is_recent else "") if whose == digest else (0, "")
    except (OSError, ValueError):
        # Nobody has written yet, or only in part before the disk was full.
        return 0, ""


def _handed(path: str, digest: str) -> bytes | None:
    """Return the manifest that the writer before left, None where it is another one or only a part."""
    try:
        with open(path, "rb") as file:
            data = file.read(_HANDED_BYTES)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _leave(descriptor: int, path: str, digest: str, turn: Turn) -> None:
    """Leave the number of the newest version to the next writer, and its manifest where that waits already."""
    left = ""
    data = turn.manifest
    # Nothing is lost where it is left in part, or not at all.
    with suppress(OSError):
        if data is not None and len(data) <= _HANDED_BYTES and _is_awaited(f"{path}.next"):
            with open(f"{path}.manifest", "wb") as file:
                file.write(data)
            left = hashlib.sha256(data).hexdigest()
        note = f"{digest} {turn.newest} {time.monotonic_ns()} {left}"
        os.pwrite(descriptor, note.ljust(_NOTE_BYTES).encode(), 0)


def _is_awaited(path: str) -> bool:
    """Return whether a writer waits with the lock of the one that is next."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
