import os
import platform
import socket
import subprocess
import sys

import pytest

from lance_dagster.spark.worker import begin_task

# glibc gives a buffer its own pages, or takes it from a heap, which keeps freed parts in the process.
BUFFERS = """
import ctypes
from lance_dagster.spark.worker import begin_task

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free", "fast", "own_pages", *"abcdef")]

begin_task()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p]
libc.mallinfo2.restype = Info
libc.free(libc.malloc(16 * 2**20))
before = libc.mallinfo2().own_pages
buffer = libc.malloc(8 * 2**20)
print(libc.mallinfo2().own_pages - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the option TCP_QUICKACK")
def test_a_task_acknowledges_what_was_sent_to_it() -> None:
    """Otherwise Spark holds back the first rows of a task for 40 ms."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as worker:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert 0 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        begin_task()
        assert 1 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps large buffers that were freed")
@pytest.mark.parametrize("given,expected", [({}, "1"), ({"MALLOC_MMAP_THRESHOLD_": str(2**25)}, "0")], ids=str)
def test_a_worker_returns_large_buffers(given: dict[str, str], expected: str) -> None:
    """It does so after a larger one was freed, unless the environment says otherwise."""
    env = {**os.environ, **given}
    done = subprocess.run([sys.executable, "-c", BUFFERS], env=env, capture_output=True, text=True, check=True)
    assert expected == done.stdout.strip()
