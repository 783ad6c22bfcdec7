"""``torch.distributed.checkpoint``: tensors over a mesh in parts, and folders that stay whole.

What is done instead is in :mod:`torch_jax.distributed.checkpoint`, which is loaded when a checkpoint
is saved in a process that has used the device.
"""

from __future__ import annotations

import functools
from typing import Any

from torch_jax.core import waking
from torch_jax.core.patching import patch

_DCP = "torch.distributed.checkpoint"


def _ours() -> Any:
    from torch_jax.distributed import checkpoint

    return checkpoint


@patch(f"{_DCP}.default_planner._create_write_items", f"{_DCP}.default_planner")
def _patch_write_items(original: Any) -> Any:
    """A tensor over a mesh is written in parts; PyTorch would gather all of it."""

    @functools.wraps(original)
    def create(fqn: str, object: Any) -> Any:
        items = _ours().write_items(fqn, object) if waking.is_awake() else []
        return items or original(fqn, object)

    return create


@patch(f"{_DCP}.default_planner.DefaultSavePlanner.resolve_data", f"{_DCP}.default_planner")
def _patch_resolve_data(original: Any) -> Any:
    """PyTorch knows pieces of its own classes of tensors only."""

    @functools.wraps(original)
    def resolve_data(self: Any, write_item: Any) -> Any:
        if waking.is_awake():
            value = self.state_dict.get(write_item.index.fqn)
            piece = _ours().piece_of(value, write_item)
            if piece is not None:
                return piece
        return original(self, write_item)

    return resolve_data


_HUGGING_FACE = f"{_DCP}.hf_storage"


@patch(f"{_HUGGING_FACE}.HuggingFaceStorageWriter.write_data", _HUGGING_FACE)
def _patch_hugging_face(original: Any) -> Any:
    """A safetensors file has each name once, so that of several pieces the last one would stay."""

    @functools.wraps(original)
    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        if waking.is_awake():
            plan = _ours().in_one_piece(plan, planner)
        return original(self, plan, planner)

    return write_data


_FILES = f"{_DCP}.filesystem"


@patch(f"{_FILES}._FileSystemWriter.write_data", _FILES)
def _patch_write_data(original: Any) -> Any:
    """A checkpoint that is written over another one must not write into the files of that one."""

    @functools.wraps(original)
    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        if waking.is_awake():
            return _ours().write_data(original, self, plan, planner)
        return original(self, plan, planner)

    return write_data


@patch(f"{_FILES}._FileSystemWriter.finish", _FILES)
def _patch_finish(original: Any) -> Any:
    """PyTorch removes the old metadata before it has the new one: killed there, it has neither."""

    @functools.wraps(original)
    def finish(self: Any, metadata: Any, results: Any) -> None:
        if waking.is_awake():
            _ours().finish(original, self, metadata, results)
        else:
            original(self, metadata, results)

    return finish
