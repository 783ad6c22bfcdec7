"""Private names of ``torch.distributed.checkpoint``, looked up tolerantly, as in ``pytorch.py``."""

from __future__ import annotations

import importlib
from typing import Any


def holds_checkpoint(writer: Any) -> bool:
    """Return whether a writer of files is about to write over a checkpoint."""
    exists = getattr(writer, "_metadata_exists", None)
    return exists is not None and exists()


def writer_for(writer: Any, checkpoint_id: Any) -> Any:
    """Return PyTorch's writer for the user's writer, or for a place to write to.

    Return None where this PyTorch lacks the function: it finds a writer by itself.
    """
    module = importlib.import_module("torch.distributed.checkpoint._storage_utils")
    setup = getattr(module, "_storage_setup", None)
    return writer if setup is None else setup(writer, checkpoint_id)
