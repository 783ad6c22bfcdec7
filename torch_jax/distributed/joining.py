"""Meeting of processes: the address of JAX's coordinator goes through PyTorch's store."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from typing import Any, NamedTuple

import jax
import torch

from torch_jax._private import jax_processes
from torch_jax.budgets import SECONDS_TO_ANSWER, SECONDS_TO_HEAR_OF_AN_END, SECONDS_TO_MEET
from torch_jax.core import waking
from torch_jax.memory import processes

_KEY = "torch_jax/coordinator"


class _Joined(NamedTuple):
    """The place of this process among the joined ones, and its connection to the coordinator."""

    rank: int
    size: int
    connection: socket.socket
    client: Any


_joined: _Joined | None = None
_asking = threading.Lock()


def join(store: Any, rank: int, size: int) -> None:
    """Make JAX know the other processes; the default group of a process calls it.

    A process joins once: later groups of the same size find the processes connected.
    """
    global _joined
    known = (rank, size) if _joined is None else (_joined.rank, _joined.size)
    if size > 1 and known != (rank, size):
        raise RuntimeError(
            f"this process was rank {known[0]} of {known[1]} on device 'jax', and JAX cannot make "
            f"it rank {rank} of {size}: start new processes for that"
        )
    # a user's own coordinator may have connected it, by jax.distributed.initialize
    if size > 1 and _joined is None and not jax_processes.is_connected():
        refuse_started("torch.distributed.init_process_group('jax')")
        _joined = _join(store, rank, size)
        processes.ended = ended
        atexit.register(_leave)
    waking.wake()
    jax.devices()  # JAX's client waits for all processes, each of which is here now


def refuse_started(call: str) -> None:
    """Raise if JAX has made its devices, and cannot add other processes any more."""
    if jax_processes.is_started():
        raise RuntimeError(
            "device 'jax' was used before the processes have met, and JAX must know of others "
            f"from the start: move {call} above the first tensor, model or seed on device 'jax'"
        )


def _join(store: Any, rank: int, size: int) -> _Joined:
    if "LOCAL_RANK" in os.environ and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        jax_processes.only_accelerator(int(os.environ["LOCAL_RANK"]))
    if rank == 0:
        host = _address(store)
        with socket.create_server(("", 0)) as listener:  # a free port
            port = listener.getsockname()[1]
        ranks_port = jax_processes.start_coordinator(port, size)
        store.set(_KEY, json.dumps([host, port, ranks_port]))
    host, port, ranks_port = json.loads(store.get(_KEY))
    connection = socket.create_connection((host, ranks_port), timeout=SECONDS_TO_MEET)
    connection.sendall(f"{rank}\n".encode())
    return _Joined(rank, size, connection, jax_processes.connect(f"{host}:{port}", rank, size))


def _address(store: Any) -> str:
    """Return the address at which the others reach this process, of rank 0.

    ``torchrun`` names it; otherwise this process holds the store that all have found. A file, if
    processes have met by one, names no host.
    """
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    of_store = store.host if isinstance(store, torch.distributed.TCPStore) else None
    if known := os.environ.get("MASTER_ADDR") or of_store:
        return known
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        try:  # this host's name may mean the loopback only
            way_out.connect(("192.0.2.1", 9))  # nothing is sent: this asks for the route
            return way_out.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def ended() -> list[int]:
    """Return the ranks, of the default group, whose processes are known to have ended, in order."""
    if _joined is None:
        return []
    try:
        with _asking:
            _joined.connection.settimeout(SECONDS_TO_ANSWER)
            _joined.connection.sendall(b"?\n")
            return json.loads(_joined.connection.makefile().readline() or "[]")
    except (OSError, ValueError):
        return []


def failed(what: str, error: BaseException) -> Exception:
    """Return the error of a collective that has failed, which names the ranks that have ended."""
    if isinstance(error, torch.distributed.DistBackendError):
        return error  # it names the reason
    gone = _ended_by_now(error)
    later = f", and after it {gone[1:]}" if gone[1:] else ""  # whose errors may come of the first
    why = f": rank {gone[0]} has ended{later}" if gone else ""
    return torch.distributed.DistBackendError(f"{what} failed on device 'jax'{why} ({error})")


def explained(what: str, error: Exception) -> Exception:
    """Return an error of gloo's, or one that names the ranks whose end has caused it."""
    return failed(what, error) if _ended_by_now(error) else error


def _ended_by_now(error: BaseException) -> list[int]:
    """Return the ranks that have ended; a process may close its connections before it ends."""
    deadline = time.monotonic() + SECONDS_TO_HEAR_OF_AN_END * ("onnection" in str(error))
    while not (gone := ended()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return gone


def _leave() -> None:
    """End JAX's client at the end of the process, before its library is taken down."""
    if _joined is not None:
        with contextlib.suppress(Exception):  # the coordinator, or other processes, have ended
            _joined.client.shutdown()
        _joined.connection.close()
