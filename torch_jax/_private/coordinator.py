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


def _named(connection: socket.socket, size: int, ended: list[int]) -> list[int] | None:
    """Return the ranks that a connection names, its question answered; None where it has ended."""
    try:
        words = connection.recv(64).split()
        numbers = [int(word) for word in words if word != b"?"]
        if b"?" in words:
            connection.sendall(json.dumps(ended).encode() + b"\n")
    except (OSError, ValueError):
        return None
    return numbers if words and all(0 <= number < size for number in numbers) else None


def _serve(listener: socket.socket, size: int, patience: float) -> None:
    """Answer the ranks until all have registered and ended, or no more of them can register."""
    ranks: dict[Any, int] = {}  # by their open connections
    come: set[int] = set()
    ended: list[int] = []
    deadline = time.monotonic() + patience
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while ranks or (len(come) < size and time.monotonic() < deadline):
        for key, _ in selector.select(timeout=1.0):
            connection: Any = key.fileobj
            if connection is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            if (named := _named(connection, size, ended)) is None:
                selector.unregister(connection)
                connection.close()
                if connection in ranks:
                    ended.append(ranks.pop(connection))
            for number in named or ():
                ranks[connection] = number
                come.add(number)


def main(port: str, size: str, seconds: str) -> None:
    """Serve until the last rank has gone."""
    service = _jax.get_distributed_runtime_service(
        f"[::]:{port}", int(size), heartbeat_timeout=_FOR_EVER, shutdown_timeout=1, recoverable=True
    )
    with socket.create_server(("", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        _serve(listener, int(size), float(seconds))
    del service


if __name__ == "__main__":
    main(*sys.argv[1:])
