"""Private names of JAX about many processes; JAX is imported only by functions."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_jax._private import jax_core
from torch_jax.budgets import SECONDS_TO_MEET

_FOR_EVER = 10**8  # seconds: the coordinator process reports at once which ranks have ended
_VISIBLE = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")


def is_started() -> bool:
    """Return whether JAX has made its devices, and so must know of other processes."""
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {}))


def is_connected() -> bool:
    """Return whether JAX knows of other processes, by us or ``jax.distributed.initialize``."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None


def start_coordinator(port: int, size: int) -> int:
    """Start :mod:`torch_jax._private.coordinator`; return the port at which ranks register."""
    script = Path(__file__).with_name("coordinator.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), *map(str, (port, size, SECONDS_TO_MEET))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"},
        start_new_session=True,  # Ctrl-C is for the ranks; it ends when they have gone
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    if not line:
        raise RuntimeError(
            f"JAX's coordination service did not start on port {port} (exit status "
            f"{process.wait()})"
        )
    process.returncode = 0  # it is left alone: Popen warns of processes that still run
    return int(line)


def connect(address: str, rank: int, size: int) -> Any:
    """Connect JAX to its coordination service, before it makes its devices; return the client.

    ``jax.distributed.initialize`` would start the service in rank 0.
    """
    jax = importlib.import_module("jax")
    library = importlib.import_module("jax._src.lib")._jax
    state = importlib.import_module("jax._src.distributed").global_state
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    client = library.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=SECONDS_TO_MEET,
        heartbeat_timeout=_FOR_EVER,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state.client, state.process_id, state.num_processes = client, rank, size
    state.coordinator_address = address
    return client


def connect_as_found() -> None:
    """Have JAX find the other processes, by the schedulers and clouds that it knows."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    seen = {name: getattr(jax.config, name, None) for name in _VISIBLE}
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise RuntimeError(
            f"no other processes were found ({error}): give torch_jax.initialize() the "
            "coordinator, processes and rank, or start the script by torchrun, srun or mpirun"
        ) from error
    if _is_alone_on_host(os.environ):
        for name, devices in seen.items():
            if devices is not None:
                jax.config.update(name, devices)


def _is_alone_on_host(variables: Mapping[str, str]) -> bool:
    """Return whether a scheduler has started one process a host, to use all its devices.

    JAX gives each process of Slurm and Open MPI the one device of its number on the host.

    >>> _is_alone_on_host({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "4"})
    True
    """
    tasks = variables.get("SLURM_NTASKS")
    alone = tasks is not None and tasks == variables.get("SLURM_STEP_NUM_NODES")
    return alone or variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"


def only_accelerator(index: int) -> None:
    """Let this process see one GPU of its host; do nothing where the user has chosen."""
    jax = importlib.import_module("jax")
    for name in _VISIBLE:
        if getattr(jax.config, name, None) == "all":
            jax.config.update(name, str(index))


class Shared:
    """Texts and numbers that all processes share: JAX's coordination service holds them.

    It outlives the processes; a store of PyTorch's may be in one of them.
    """

    def __init__(self, prefix: str) -> None:
        """Take the beginning of the keys; all processes must have met."""
        self._client = importlib.import_module("jax._src.distributed").global_state.client
        self._prefix = f"torch_jax/{prefix}/"

    def first(self, key: str, text: str) -> str:
        """Return ``text``, or the text that another process has stored here before."""
        try:
            self._client.key_value_set(self._prefix + key, text)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            return self.get(key) or text
        return text

    def set(self, key: str, text: str) -> None:
        """Store a text, in place of the one before."""
        self._client.key_value_set(self._prefix + key, text, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        """Return the text that is here; None where none is."""
        try:
            return self._client.key_value_try_get(self._prefix + key)
        except RuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def add(self, key: str, number: int) -> int:
        """Count a number up from 0, and return its new value."""
        return self._client.key_value_increment(self._prefix + key, number)

    def remove(self, *keys: str) -> None:
        """Remove the texts of these keys."""
        for key in keys:
            self._client.key_value_delete(self._prefix + key)


def local_part(array: Any) -> Any:
    """Return this process's part of an array over processes, bound to no device.

    Arrays of this package are never bound ("committed" in JAX's words): each operator would be
    compiled again for one that is.
    """
    part = array.addressable_shards[0].data
    return jax_core.array_type()(part.aval, part.sharding, [part], committed=False)
