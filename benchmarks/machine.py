"""The machine of a measurement, and the load from other programs."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time

import jax
import torch

_LOOKS, _SECONDS_BETWEEN_LOOKS = 20, 0.05


def conditions() -> dict[str, object]:
    """Return what is measured with, and the load before anything is measured."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_gibibytes()} GiB",
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
    }


def ready_tasks_of_others() -> float:
    """Return how many tasks of other processes are ready to run, the median of some looks.

    The load of a minute would count this process too. On systems other than Linux, return 0.
    """
    looks = []
    for _ in range(_LOOKS):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        looks.append(_ready_tasks() - 1)  # this process looks
    return max(statistics.median(looks), 0.0)


def _ready_tasks() -> int:
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[0])
    except OSError:
        return 0


def _processor() -> str:
    """Return the model of the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _gibibytes() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
