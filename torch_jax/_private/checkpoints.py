"""Private names of ``torch.distributed.checkpoint``, looked up tolerantly, as in ``pytorch.py``."""

from __future__ import annotations

from typing import Any


def holds_checkpoint(writer: Any) -> bool:
    """Return whether a writer of files is about to write over a checkpoint."""
    exists = getattr(writer, "_metadata_exists", None)
    return exists is not None and exists()
