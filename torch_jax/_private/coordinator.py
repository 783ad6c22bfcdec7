"""JAX's coordination service as a process of its own, which outlives the ranks that it serves.

JAX starts the service in rank 0, and ends all other processes by ``abort`` when that rank dies. Of
a service that is still there, no rank's death ends the others: their collectives raise.

Run as a script with the host and the port of the service and the number of ranks; the first line
that it prints is the port at which ranks register: each holds a connection open for as long as it
lives. A rank sends its number, and a question mark to be told, as a line of JSON, which ranks have
ended. The process ends with the last of the connections. It imports nothing of this package, since
that would import PyTorch.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

from jaxlib import _jax

_PATIENCE = 600.0  # seconds within which all ranks must have registered
_FOR_EVER = 10**8  # seconds; a rank that was stopped for a while, as in a debugger, is not dead


def _serve(listener: socket.socket, size: int) -> None:
    """Answer the ranks until all have come and gone."""
    ranks: dict[socket.socket, int] = {}
    come: set[int] = set()
    deadline = time.monotonic() + _PATIENCE
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while ranks or (len(come) < size and time.monotonic() < deadline):
        for key, _ in selector.select(timeout=1.0):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                selector.register(connection, selectors.EVENT_READ)
                ranks[connection] = -1
                continue
            connection = key.fileobj  # type: ignore[assignment]
            try:
                said = connection.recv(64)
            except OSError:
                said = b""
            if not said:
                selector.unregister(connection)
                connection.close()
                del ranks[connection]
            elif said == b"?":
                ended = sorted(come - set(ranks.values()))
                connection.sendall(json.dumps(ended).encode() + b"\n")
            else:
                ranks[connection] = int(said)
                come.add(int(said))


def main(port: str, size: str) -> None:
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
        _serve(listener, int(size))
    del service


if __name__ == "__main__":
    main(*sys.argv[1:])
