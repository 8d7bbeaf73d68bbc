"""The proxy that gives a server on this machine the latency of a distant one."""

import urllib.request
from http.client import HTTPConnection
from pathlib import Path

from tests.conftest import HOST, server


def test_everything_is_passed_on_in_order(tmp_path: Path) -> None:
    """Large requests and answers are complete, also on a reused connection; a missing server ends the connection."""
    sent = bytes(range(256)) * 4096
    with server(tmp_path / "server.log", "tests.servers.s3_server") as address:
        behind = ("--to", address.rpartition(":")[2], "--latency", "0.01")
        with server(tmp_path / "proxy.log", "tests.servers.delaying_proxy", *behind) as proxy:
            connection = HTTPConnection(proxy)
            for method, path, body in (("PUT", "/b", None), ("PUT", "/b/k", sent), ("PUT", "/b/l", sent[:9])):
                connection.request(method, path, body)
                answer = connection.getresponse()
                assert (200, b"") == (answer.status, answer.read())
            assert sent == urllib.request.urlopen(f"http://{proxy}/b/k").read()
            connection.request("GET", "/b/l")
            assert sent[:9] == connection.getresponse().read()
            connection.close()
            assert proxy.startswith(HOST)
