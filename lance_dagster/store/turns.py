"""Turns: the writers of one machine commit to a branch one after another, where they would race and mostly lose.

Two lock files for each queue. A writer that waits for the second has the first, so that a writer which comes back at
once has to wait behind one that waited already. The kernel releases the locks of a process that ends.

Turns only save attempts, and keep writers from starving each other. Correctness does not depend on them: a turn is
waited for only a few seconds, and is had at once where locks cannot be used. Writers of other machines have queues of
their own, and the commit itself decides between them.

Tables on local disk have their queues beside their refs, so that all users and containers that see the table share
them. Those of tables on object storage are in the folder for temporary files, in a folder of the user. A shared folder
there would let one user delay the commits of another one.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lance_dagster.store.interface import Patience, Turn
from lance_dagster.store.local import taken_turn

# Objects whose names have the same hash share a queue, which costs time and nothing else.
_QUEUE_DIGITS = 3
# A note is the hash of what the queue is for, and a number.
_NOTE_BYTES = 128
# A commit to an object store takes two requests in its turn.
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
        turn.newest = found = _noted(descriptor, digest)
        yield turn
        # Not after an error: then nothing newer is known.
        if turn.newest != found:
            with suppress(OSError):
                os.pwrite(descriptor, f"{digest} {turn.newest}".ljust(_NOTE_BYTES).encode(), 0)


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


def _noted(descriptor: int, digest: str) -> int:
    """Return the number that the writer before left in the file of a lock, 0 where it wrote to something else."""
    try:
        whose, _, number = os.pread(descriptor, _NOTE_BYTES, 0).decode("ascii").partition(" ")
        return int(number) if whose == digest else 0
    except (OSError, ValueError):
        # Nobody has written yet, or only in part before the disk was full.
        return 0
