"""Turns: the writers of a machine queue for their commits to a branch; without turns they would race and mostly lose.

A queue has two lock files, `a7f` and `a7f.next`. The writer with the lock of `a7f` has the turn and commits. The writer
with the lock of `a7f.next` is next and waits for `a7f`; all other writers wait for `a7f.next`. So a writer that comes
back at once cannot overtake a writer that waits already. The kernel releases the locks of a process that ends.

At the end of its turn, a writer leaves the manifest that it has put, say version 8. The next writer then makes a single
request in its turn, the put of version 9. If number 9 is free, version 8 was still the newest, as after a listing.

Turns only save attempts, and keep writers from starving each other. Correctness does not depend on turns: a writer
waits for its turn only a few seconds, and does not wait where locks cannot be used. Writers of other machines have
their own queues, and the commit itself decides between machines.

A table on local disk has its queues beside its refs, so that all users and containers that see the table share them.
The queues of tables on object storage are in the folder for temporary files, in a folder of the user. In a shared
folder, one user could delay the commits of all others.
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
# A note is the hash of the key that the writer wrote to, the newest number, the time, and the hash of the manifest.
_NOTE_BYTES = 256
# A manifest is handed over up to this size, and for so many nanoseconds: later, another machine may have committed the
# versions 9 to 12 and cleaned up 9 to 11, so that number 9 is free. The same can happen between a listing and a put.
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
        # A writer that did not wait may come long after the last writer.
        turn.manifest = _handed(f"{path}.manifest", handed) if turn.waited and handed else None
        newest_before = turn.newest
        yield turn
        # After an error there is no newer version to leave.
        if turn.newest != newest_before:
            _leave(descriptor, path, digest, turn)


def _folder_of_user() -> str | None:
    """Return the folder of the queues of this user, made where it is missing; None where there can be none.

    Anybody may create names in the folder for temporary files, so a folder or link of another user is not used.
    """
    try:
        path = f"{tempfile.gettempdir()}/lance_dagster-{os.getuid()}"
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError:
        return None
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return path if private else None


def _noted(descriptor: int, digest: str) -> tuple[int, str]:
    """Return the newest number that the last writer left in the lock file, and the hash of the manifest it left.

    The number is 0 if the last writer wrote to another key; the hash is empty if it left no manifest just now.
    """
    try:
        whose, number, noted, manifest_hash = os.pread(descriptor, _NOTE_BYTES, 0).decode("ascii").split(" ")[:4]
        # The clock is the same for all processes of a machine, and never goes back.
        is_recent = 0 <= time.monotonic_ns() - int(noted) <= _HANDED_NS
        return (int(number), manifest_hash.strip() if is_recent else "") if whose == digest else (0, "")
    except (OSError, ValueError):
        # Nobody has written yet, or only in part before the disk was full.
        return 0, ""


def _handed(path: str, digest: str) -> bytes | None:
    """Return the manifest that the last writer left; None if the file has another manifest or only a part of it."""
    try:
        with open(path, "rb") as file:
            data = file.read(_HANDED_BYTES)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _leave(descriptor: int, path: str, digest: str, turn: Turn) -> None:
    """Leave the number of the newest version to the next writer, and its manifest if the next writer waits already."""
    manifest_hash = ""
    data = turn.manifest
    # If the note is left in part or not at all, the next writer lists the versions.
    with suppress(OSError):
        if data is not None and len(data) <= _HANDED_BYTES and _is_awaited(f"{path}.next"):
            with open(f"{path}.manifest", "wb") as file:
                file.write(data)
            manifest_hash = hashlib.sha256(data).hexdigest()
        note = f"{digest} {turn.newest} {time.monotonic_ns()} {manifest_hash}"
        os.pwrite(descriptor, note.ljust(_NOTE_BYTES).encode(), 0)


def _is_awaited(path: str) -> bool:
    """Return whether a writer is next: it has the lock of this file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
