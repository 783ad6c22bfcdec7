"""``torch_xla.test.test_utils``: the printed lines of PyTorch/XLA's own training programs."""

from __future__ import annotations

import time
from typing import Any


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
