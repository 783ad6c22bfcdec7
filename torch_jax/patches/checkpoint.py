"""``torch.distributed.checkpoint``: tensors over a mesh in parts, and folders that stay whole.

The replacements are in :mod:`torch_jax.distributed.checkpoint_pieces` and
:mod:`torch_jax.distributed.checkpoint_folders`, which are loaded when a process that has used the
device saves a checkpoint.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch_jax.core import waking
from torch_jax.core.patching import around

_DCP = "torch.distributed.checkpoint"


def _of(what: str) -> Any:
    return importlib.import_module(f"torch_jax.distributed.checkpoint_{what}")


@around(f"{_DCP}.default_planner._create_write_items", f"{_DCP}.default_planner")
def _patch_write_items(original: Any, fqn: str, object: Any) -> Any:
    """A tensor over a mesh is written in parts; PyTorch would gather all of it."""
    items = _of("pieces").write_items(fqn, object) if waking.is_awake() else []
    return items or original(fqn, object)


@around(f"{_DCP}.default_planner.DefaultSavePlanner.resolve_data", f"{_DCP}.default_planner")
def _patch_resolve_data(original: Any, self: Any, write_item: Any) -> Any:
    """PyTorch finds pieces to save in tensors of its own classes only, not in those over a mesh."""
    if waking.is_awake():
        piece = _of("pieces").piece_of(self.state_dict.get(write_item.index.fqn), write_item)
        if piece is not None:
            return piece
    return original(self, write_item)


_HUGGING_FACE = f"{_DCP}.hf_storage"


@around(f"{_HUGGING_FACE}.HuggingFaceStorageWriter.write_data", _HUGGING_FACE)
def _patch_hugging_face(original: Any, self: Any, plan: Any, planner: Any) -> Any:
    """A safetensors file has each name once: of several pieces only the last one would be kept."""
    if waking.is_awake():
        plan = _of("pieces").in_one_piece(plan, planner)
    return original(self, plan, planner)


_FILES = f"{_DCP}.filesystem"


@around(f"{_FILES}._FileSystemWriter.write_data", _FILES)
def _patch_write_data(original: Any, self: Any, plan: Any, planner: Any) -> Any:
    """A checkpoint that replaces another one must not write into that one's files."""
    if waking.is_awake():
        return _of("folders").write_data(original, self, plan, planner)
    return original(self, plan, planner)


@around(f"{_FILES}._FileSystemWriter.finish", _FILES)
def _patch_finish(original: Any, self: Any, metadata: Any, results: Any) -> None:
    """PyTorch removes old metadata before the new are written: a crash then leaves neither."""
    if waking.is_awake():
        _of("folders").finish(original, self, metadata, results)
    else:
        original(self, metadata, results)


@around(f"{_FILES}.FileSystemReader._slice_file", _FILES)
def _patch_slices(original: Any, self: Any, file: Any, sinfo: Any) -> Any:
    """PyTorch loads a piece whose bytes have changed on the disk as if nothing had happened."""
    if waking.is_awake():
        _of("folders").check(file, sinfo)
    return original(self, file, sinfo)
