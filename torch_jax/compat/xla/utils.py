"""Small helpers: files, checkpoints, variables, and the lines that training programs print.

``torch.distributed.checkpoint`` takes tensors over devices in parts (docs/training-at-size.md).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner as SPMDLoadPlanner  # noqa: F401
from torch.distributed.checkpoint import DefaultSavePlanner as SPMDSavePlanner  # noqa: F401
from torch.utils.checkpoint import checkpoint as _checkpoint

from torch_jax.compat.xla.xla_model import save as save

checkpoint = functools.partial(_checkpoint, use_reentrant=True)


def load(path: Any) -> Any:
    """Return the contents of a file of :func:`save`, with tensors on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=False)


def SampleGenerator(data: Any, sample_count: int) -> list[Any]:
    """Return the same data a number of times."""
    return [data] * sample_count


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Return a variable of the environment as a type; ``"1"`` and ``"true"`` are true."""
    if (text := os.environ.get(name)) is None:
        return defval
    return text.lower() in ("1", "true") if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether a variable of the environment has a value that means yes."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


# --- what PyTorch/XLA's own training programs print -----------------------------------------------


def now(fmt: str = "%H:%M:%S") -> str:
    return time.strftime(fmt)


def get_summary_writer(logdir: str | None) -> Any:
    """Return a writer for TensorBoard, None without a folder."""
    if not logdir:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: dict[str, Any] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write scalars, where there is a writer."""
    for name, value in (dict_to_write or {}).items() if summary_writer is not None else ():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Close a writer, where there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: Any,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print a line with the loss and the number of samples a second."""
    value = loss.item() if hasattr(loss, "item") else loss
    print(
        f"| Training Device={device} Epoch={epoch} Step={step} Loss={value:.5f} Rate={rate:.2f} "
        f"GlobalRate={global_rate:.2f} Time={now()}",
        flush=True,
    )
    write_to_summary(summary_writer, step, {"loss": value, "rate": rate})


def print_test_update(device: Any, accuracy: float | None, epoch: Any = None, step: Any = None):
    """Print a line with the share of right answers."""
    print(f"| Test Device={device} Step={step} Epoch={epoch} Accuracy={accuracy} Time={now()}")
