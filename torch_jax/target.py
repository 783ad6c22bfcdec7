"""The target of compiled programs: the platform that JAX runs on, or chips that are elsewhere.

The compilers of TPUs and GPUs need no device. The setting ``target`` names chips, and all code that
chooses a form, an option or a check for a platform asks here. A program compiled for a target
cannot run in this process: :func:`torch_jax.compile_for` and ``python -m torch_jax check`` look at
the program.

The compilers are described in ``jax.experimental.topologies``; a TPU's comes with ``jax[tpu]``, a
GPU's with ``jax[cuda13]``.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import pkgutil
import re
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from torch_jax import config
from torch_jax._private import jax_core


class Gpu(NamedTuple):
    """Hold the numbers of a card that its compiler needs."""

    title: str  # the name that the card reports
    capability: int  # the major number of its compute capability
    processors: int  # streaming multiprocessors
    cache: int  # bytes of its L2 cache
    memory: int  # bytes
    bandwidth: int  # bytes a second that its memory moves
    clock: float  # GHz


GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 52428800, 84942979072, 3352320000000, 1.98),
    "h200": Gpu("NVIDIA H200 141GB HBM3e", 9, 132, 52428800, 151397597184, 4800000000000, 1.98),
    "b200": Gpu("NVIDIA B200", 10, 148, 132644864, 191514411008, 7672320000000, 1.965),
}
"""Cards by the names in targets; the numbers are those that the cards report of themselves."""

TPUS = {"v5e": (2, 1), "v6e": (2, 1), "v5p": (3, 2)}
"""TPUs: the dims of their torus, and how many a chip counts for in names such as ``v5p-8``."""

NAMES = (
    "tpu-v5e-4x4, tpu-v6e-8, tpu-v5p-64, tpu-v5e-16x16-2slices, gpu-h100, gpu-h200-8, gpu-b200-2x8"
)

CUDNN = 91000  # the version that GPU targets are compiled for


class Target(NamedTuple):
    """Chips that programs are compiled for."""

    name: str  # as the user wrote it
    platform: str  # JAX's name, "tpu" or "gpu"
    chip: str  # the name of the kind, as "v5e"
    shape: tuple[int, ...]  # the lengths of a TPU's torus; hosts and cards of a host for GPUs
    slices: int = 1  # how many of these the data center network connects

    @property
    def chips(self) -> int:
        """Return the number of chips."""
        return math.prod(self.shape) * self.slices


def parse(name: str) -> Target:
    """Return the chips of a name.

    TPUs are counted as Google Cloud does: ``tpu-v5e-16`` has 16 chips, ``tpu-v5p-16`` has 16
    cores, which are 8 chips.

    Raises:
      ValueError: there is no such chip, or no such arrangement.

    >>> parse("tpu-v5e-16").shape, parse("tpu-v5p-16").shape, parse("gpu-h200-2x8").chips
    ((4, 4), (2, 2, 2), 16)
    """
    found = re.fullmatch(r"(tpu|gpu)-([a-z0-9]+)(?:-([0-9x]+))?(?:-(\d+)slices)?", name)
    platform, chip, size, slices = found.groups() if found else ("", "", None, None)
    if chip not in (TPUS if platform == "tpu" else GPUS):
        raise ValueError(f"target {name!r} is unknown. Targets are written like {NAMES}")
    lengths = tuple(int(n) for n in (size or "1").split("x") if n)
    shape = _torus(chip, lengths) if platform == "tpu" else _hosts(lengths)
    is_sliced = slices is None or (platform == "tpu" and int(slices) > 1)
    if not is_sliced or not math.prod(shape or (0,)):
        raise ValueError(
            f"target {name!r}: there is no such arrangement of {chip}. Write a number of chips "
            f"that is a power of two, or the lengths, as in {NAMES}"
        )
    return Target(name, platform, chip, shape, int(slices or 1))


def _torus(chip: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of a TPU's torus; an empty tuple where there is none of that size."""
    dims, each = TPUS[chip]
    if len(lengths) == 1:
        chips, rest = (1, 0) if lengths == (1,) else divmod(lengths[0], each)
        power = chips.bit_length() - 1
        lengths = tuple(2 ** ((power + i) // dims) for i in range(dims))
        if rest or math.prod(lengths) != chips:
            return ()
        if lengths == (1, 2, 2):
            lengths = (2, 2, 1)  # the chips of one host are a square
    is_host = all(n % 2 == 0 for n in lengths[:2])
    is_whole = len(lengths) == dims and (is_host or set(lengths) == {1})
    return lengths if is_whole else ()


def _hosts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of hosts and of each host's cards; empty where they make no sense."""
    if len(lengths) == 1:
        lengths = 1, *lengths
    return lengths if len(lengths) == 2 else ()


def chosen() -> Target | None:
    """Return the chips that the setting ``target`` names; None for those that JAX runs on."""
    name = config.get("target")
    return None if name == "here" else _parsed(name)


_parsed = functools.cache(parse)


def cudnn() -> int:
    """Return the version of cuDNN that programs are compiled for, as 91000; 0 without any."""
    return CUDNN if chosen() else jax_core.cudnn_version()


def svd_of_tpus() -> Any:
    """Return the decomposition that JAX has for TPUs, where programs are compiled for these."""
    return jax_core.svd_of_tpus() if platform() == "tpu" else None


_running = functools.cache(jax.default_backend)


def platform() -> str:
    """Return JAX's name of the platform that programs are compiled for: "cpu", "gpu" or "tpu"."""
    target = chosen()
    return _running() if target is None else target.platform


def on_cpu() -> bool:
    """Return whether programs are compiled for a CPU."""
    return platform() == "cpu"


def devices() -> list[Any]:
    """Return the devices that programs are compiled for, as JAX describes them."""
    target = chosen()
    return jax.devices() if target is None else _topology(target)


def device_count() -> int:
    """Return how many devices a program may be spread over."""
    target = chosen()
    return jax.device_count() if target is None else target.chips


class NoCompiler(RuntimeError):
    """The compiler of a target is not installed, or does not know the target."""


@functools.cache
def _topology(target: Target) -> list[Any]:
    """Return the devices of a target, as its compiler describes them."""
    make = _tpus if target.platform == "tpu" else _gpus
    try:
        return list(make(target).devices)[: target.chips]
    except Exception as error:
        package = "jax[tpu]" if target.platform == "tpu" else "jax[cuda13]"
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise NoCompiler(
            f"target {target.name!r}: its compiler cannot be used ({first_line}). "
            f"It comes with: pip install '{package}=={jax.__version__}'"
        ) from error


def _tpus(target: Target) -> Any:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no cloud to ask about this machine
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nothing here takes hold of a chip
    lengths = target.shape if target.chips > 1 else (2,) * len(target.shape[:2]) + (1,) * 3
    name = "x".join(map(str, lengths[: len(target.shape)]))
    more = {"num_slices": target.slices} if target.slices > 1 else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=f"{target.chip}:{name}", **more
    )


def _gpus(target: Target) -> Any:
    hosts, cards = target.shape
    make = functools.partial(
        topologies.get_topology_desc,
        platform="cuda",
        topology=f"1x{hosts}x{cards}",
        target_config=_description(GPUS[target.chip]),
    )
    try:
        return make()
    except NotImplementedError:  # JAX has found no card, and left its plug-in out
        _register_without_a_card()
        return make()


def _register_without_a_card() -> None:
    """Have JAX register its plug-ins for CUDA, without asking a driver for its version."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    try:
        for plugin in pkgutil.iter_modules(importlib.import_module("jax_plugins").__path__):
            if "cuda" in plugin.name:
                importlib.import_module(f"jax_plugins.{plugin.name}").initialize()
    finally:
        del os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"]


def _description(gpu: Gpu) -> str:
    """Return a card as the text of XLA's ``GpuTargetConfigProto``."""
    version = f"{CUDNN // 10000}.{CUDNN // 100 % 100}.{CUDNN % 100}"
    return f"""
    gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
      shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
      shared_memory_per_core: 233472
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
      core_count: {gpu.processors} fpus_per_core: 128 clock_rate_ghz: {gpu.clock}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
      memory_bandwidth: {gpu.bandwidth} device_memory_size: {gpu.memory} l2_cache_size: {gpu.cache}
      cuda_compute_capability {{ major: {gpu.capability} feature_extension: ACCELERATED_FEATURES }}
      device_vendor: "NVIDIA Corporation" device_address_bits: 64 name: "{gpu.title}"
      driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
      dnn_version: "{version}"
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: {CUDNN // 10000} minor: {CUDNN // 100 % 100} }}
    device_description_str: "{gpu.title}"
    """
