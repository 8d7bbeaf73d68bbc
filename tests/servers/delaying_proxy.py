"""A proxy that delays the answers of a server: `python -m tests.servers.delaying_proxy --port 9001 --to 9000`.

It gives a server on this machine the latency of a distant one, for any protocol. What the server sends is passed on in
order, each piece after the same delay; what the client sends is passed on at once.
"""

import argparse
import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

from tests.servers.objects import HOST

_PIECE = 1 << 16


class DelayingProxy:
    """Passes connections on to another port of this machine."""

    def __init__(self, to: int, latency: float) -> None:
        """Take the port of the server, and the delay of its answers in seconds."""
        self._to, self._latency = to, latency

    async def serve(self, port: int) -> None:
        """Accept connections until the task is cancelled."""
        async with await asyncio.start_server(self._accepted, HOST, port) as server:
            await server.serve_forever()

    async def _accepted(self, client_reader: StreamReader, client_writer: StreamWriter) -> None:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._to)
        except OSError:
            client_writer.close()
            return
        await asyncio.gather(
            self._passed_on(client_reader, writer, 0), self._passed_on(reader, client_writer, self._latency)
        )

    async def _passed_on(self, source: StreamReader, dest: StreamWriter, latency: float) -> None:
        """Pass on all pieces until the source ends; the delays of pieces overlap."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._sent(waiting, dest))
        loop = asyncio.get_running_loop()
        piece = b"-"
        while piece:
            try:
                piece = await source.read(_PIECE)
            except OSError:
                piece = b""
            # An empty piece marks the end of the connection.
            waiting.put_nowait((loop.time() + latency, piece))
        await sender

    async def _sent(self, waiting: "asyncio.Queue[tuple[float, bytes]]", dest: StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, piece = await waiting.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                if not piece:
                    break
                dest.write(piece)
                await dest.drain()
        dest.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A proxy that delays the answers of a server on this machine.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", type=int, required=True, help="the port of the server")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    given = parser.parse_args()
    try:
        asyncio.run(DelayingProxy(given.to, given.latency).serve(given.port))
    except KeyboardInterrupt:
        sys.exit(0)
