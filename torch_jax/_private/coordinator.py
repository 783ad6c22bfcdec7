"""JAX's coordination service as a process of its own, which outlives the ranks that it serves.

JAX starts the service in rank 0, and ends all other processes by ``abort`` when that rank dies.
While the service lives, no rank's death ends the others: their collectives raise.

Run as a script with the port of the service, the number of ranks and the seconds within which all
of them must have registered; the first line that it prints is the port at which ranks register:
each holds a connection open for as long as it lives. A rank sends its number; for a question mark
it gets, as a line of JSON, the ranks that have ended, in order. The process ends with the last
connection. It imports nothing of this package, since that would import PyTorch.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from typing import Any

from jaxlib import _jax

_FOR_EVER = 10**8  # seconds; a rank that was stopped for a while, as in a debugger, is not dead


class _Ranks:
    """The ranks that have registered, and their open connections."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.open: dict[socket.socket, int] = {}
        self.come: set[int] = set()
        self.ended: list[int] = []

    def hear(self, connection: socket.socket) -> bool:
        """Read a connection; return False where it has ended, or is none of a rank's."""
        try:
            words = connection.recv(64).split()
            for word in words:
                if word == b"?":
                    connection.sendall(json.dumps(self.ended).encode() + b"\n")
                elif word.isdigit() and int(word) < self.size:
                    self.open[connection] = int(word)
                    self.come.add(int(word))
                else:
                    return False
            return bool(words)
        except OSError:
            return False

    def part(self, connection: socket.socket) -> None:
        """Note the end of a connection, and of its rank."""
        if connection in self.open:
            self.ended.append(self.open.pop(connection))


def _serve(listener: socket.socket, size: int, patience: float) -> None:
    """Answer the ranks until all have registered and ended, or no more of them can register."""
    ranks = _Ranks(size)
    deadline = time.monotonic() + patience
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while ranks.open or (len(ranks.come) < size and time.monotonic() < deadline):
        for key, _ in selector.select(timeout=1.0):
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            connection: Any = key.fileobj
            if not ranks.hear(connection):
                selector.unregister(connection)
                ranks.part(connection)
                connection.close()


def main(port: str, size: str, seconds: str) -> None:
    """Serve until the last rank has gone."""
    service = _jax.get_distributed_runtime_service(
        f"[::]:{port}",
        int(size),
        heartbeat_timeout=_FOR_EVER,
        shutdown_timeout=1,
        recoverable=True,
    )
    with socket.create_server(("", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        _serve(listener, int(size), float(seconds))
    del service


if __name__ == "__main__":
    main(*sys.argv[1:])
