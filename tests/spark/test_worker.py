import socket
import sys

import pytest

from lance_dagster.spark.worker import begin_task


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the option TCP_QUICKACK")
def test_a_task_acknowledges_what_was_sent_to_it() -> None:
    """Otherwise Spark keeps back the first rows of a task for 40 ms."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as worker:
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert 0 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        begin_task()
        assert 1 == worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
