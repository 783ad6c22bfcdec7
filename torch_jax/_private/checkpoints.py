"""Private names of ``torch.distributed.checkpoint``, looked up tolerantly, as in ``pytorch.py``."""

from __future__ import annotations

import importlib
from typing import Any


def holds_checkpoint(writer: Any) -> bool:
    """Whether a checkpoint is where a writer of files is about to write."""
    exists = getattr(writer, "_metadata_exists", None)
    return exists is not None and exists()


def writer_for(writer: Any, checkpoint_id: Any) -> Any:
    """The writer that PyTorch takes where a user has named one, or only where to write to.

    None where this PyTorch lacks the function: it finds one by itself.
    """
    module = importlib.import_module("torch.distributed.checkpoint._storage_utils")
    setup = getattr(module, "_storage_setup", None)
    return writer if setup is None else setup(writer, checkpoint_id)
