"""Private names of JAX about many processes; JAX is imported only by functions."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_jax._private import jax_core
from torch_jax.budgets import SECONDS_TO_MEET

_FOR_EVER = 10**8  # seconds: the coordinator process tells at once who has ended
_VISIBLE = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")


def is_started() -> bool:
    """Whether JAX has made its devices, which is when it must know of other processes."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", {}))


def is_connected() -> bool:
    """Whether JAX knows of other processes, be it by us or by ``jax.distributed.initialize``."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None


def start_coordinator(port: int, size: int) -> int:
    """Start :mod:`torch_jax._private.coordinator`; returns the port at which ranks register."""
    script = Path(__file__).with_name("coordinator.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), *map(str, (port, size, SECONDS_TO_MEET))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_quiet(os.environ),
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


def _quiet(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}


def connect(address: str, rank: int, size: int) -> Any:
    """Tell JAX of its coordination service, before it makes its devices; returns the client.

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
    """Have JAX find the other processes, as it knows from schedulers and clouds."""
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
    """Whether a scheduler has started one process on each host, which is to have all its devices.

    JAX gives each process of Slurm and Open MPI the one device of its number on the host.

    >>> _is_alone_on_host({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "4"})
    True
    """
    tasks = variables.get("SLURM_NTASKS")
    alone = tasks is not None and tasks == variables.get("SLURM_STEP_NUM_NODES")
    return alone or variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"


def only_accelerator(index: int) -> None:
    """Let this process see one GPU of its host; nothing where the user has said which."""
    jax = importlib.import_module("jax")
    for name in _VISIBLE:
        if getattr(jax.config, name, None) == "all":
            jax.config.update(name, str(index))


class Shared:
    """Texts and numbers that all processes share: JAX's coordination service holds them.

    It outlives the processes; a store of PyTorch's may be in one of them.
    """

    def __init__(self, prefix: str) -> None:
        """For keys that begin so; all processes must have met."""
        self._client = importlib.import_module("jax._src.distributed").global_state.client
        self._prefix = f"torch_jax/{prefix}/"

    def first(self, key: str, text: str) -> str:
        """``text``, or what another process has left here before."""
        try:
            self._client.key_value_set(self._prefix + key, text)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            return self.get(key) or text
        return text

    def set(self, key: str, text: str) -> None:
        """Leave a text, in place of the one before."""
        self._client.key_value_set(self._prefix + key, text, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        """The text that is here; None where none is."""
        try:
            return self._client.key_value_try_get(self._prefix + key)
        except RuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def add(self, key: str, number: int) -> int:
        """A number that is counted up from 0; gives what it is then."""
        return self._client.key_value_increment(self._prefix + key, number)

    def remove(self, *keys: str) -> None:
        """Take away what is here."""
        for key in keys:
            self._client.key_value_delete(self._prefix + key)


_array_type = functools.cache(jax_core.array_type)


def local_part(array: Any) -> Any:
    """What this process has of an array over processes, as an array that is bound to no device.

    Arrays of this package are not ("uncommitted" in JAX's words). One that is would be compiled for
    anew by every operator.
    """
    part = array.addressable_shards[0].data
    return _array_type()(part.aval, part.sharding, [part], committed=False)
