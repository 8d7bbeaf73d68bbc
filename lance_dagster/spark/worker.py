"""Prepare a Python worker of Spark for a task, so that small tasks are fast and large tasks need little memory.

Spark writes the function of a task and then its rows to the worker's TCP socket. The kernel of the sender keeps the
rows, as a small packet, until the worker's kernel acknowledges the function, and that waits 40 ms for an answer to send
along. The worker has no answer before it has the rows. Each task would begin with these 40 ms.

Spark closes the connection to a worker whose further rows it does not need, as after a limit. The worker then ends, and
Spark's daemon, of which it is a fork, would print the broken pipe like an error.
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import socket
import stat
import sys
import traceback
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")
# The second task freezes what the first task imported.
_IMPORTING_TASKS = 2
_tasks_begun = itertools.count()
# The parameters of glibc's `mallopt`, and what they are set to.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8
_MALLOC_OPTIONS = {_MOST_ARENAS: 2, _MMAP_THRESHOLD: 32 * 1024 * 1024, _TRIM_THRESHOLD: 16 * 1024 * 1024}
_SETTINGS_OF_MALLOC = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def begin_task() -> None:
    """Prepare a worker for a task; call it before the first row is asked for."""
    _share_memory()
    _end_quietly()
    _freeze_imports()
    _acknowledge()


class _DaemonTraceback:
    """What Spark's daemon needs of the module `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the error that ends the worker, unless it is that nobody reads its rows any more."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


@functools.cache
def _end_quietly() -> None:
    """Let the daemon print no broken pipe when this worker ends; does nothing in other processes than its workers."""
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", "") == "pyspark.daemon":
        # The name in the daemon's module only: functions of users print what they like.
        vars(daemon)["traceback"] = _DaemonTraceback


@functools.cache
def _share_memory() -> None:
    """Let the threads of the process share freed buffers; does nothing with other C libraries than glibc.

    glibc keeps a freed buffer in the heap of the thread that allocated it, up to eight heaps for each core, and pylance
    has many threads: a worker that read embeddings grew by 70 MiB. To return each buffer of 1 MiB to the system at once
    prevents that as well, but then the kernel maps and clears new pages for each batch.

    With two heaps, which return what is free above 16 MiB, a worker takes less processor time for the same rows: 0.33
    instead of 0.51 s to write embeddings, 0.19 instead of 0.33 s to read them. The highest peak of any shape was 324
    MiB; where they return what is free above 128 MiB, it was 340 MiB, too close to the limit of 350. A setting in the
    environment of the worker stays.
    """
    if any(name in os.environ for name in _SETTINGS_OF_MALLOC) or sys.platform != "linux":
        return
    # The C library of Alpine has no such function.
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC_OPTIONS.items():
            set_option(parameter, value)


def _freeze_imports() -> None:
    """Exempt what the worker has imported from its garbage collections.

    A worker collects garbage after every task, and visits every object of every module that it has imported. That
    takes 60 ms, which is most of the time of a small task. The first task imports pylance after this; later tasks
    import nothing, and what they leave has to be collected.
    """
    if next(_tasks_begun) < _IMPORTING_TASKS:
        gc.freeze()


def _acknowledge() -> None:
    """Acknowledge what was received on the TCP sockets of this process; does nothing on other systems than Linux."""
    if not (hasattr(socket, "TCP_QUICKACK") and _OPEN_FILES.is_dir()):
        return
    # Spark gives no task its socket. Other connections, such as those to object storage, only acknowledge sooner once.
    for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 - numbers, and not paths
        # A file may be closed meanwhile by another thread, and the descriptor of the listing itself is closed by now.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _acknowledge_on(os.dup(int(name)))


def _acknowledge_on(descriptor: int) -> None:
    """Acknowledge what was received on a socket if it is a TCP socket, and close its descriptor."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
