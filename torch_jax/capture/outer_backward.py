"""Results that are differentiated outside of the function: their backward pass is one program.

After a call whose results want gradients, the next backward pass of the process is recorded. That
it goes through these results is not checked: a recording of any other pass is sound, too.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_JIT, around
from torch_jax.memory.storage import is_jax_tensor
from torch_jax.recorded.lazy import is_recording, observed
from torch_jax.recorded.listener import Listener

_PASS = Listener("backward pass")


class _Mark:
    """A mark that lives as long as a node of autograd's graph, which may outlive its tensor."""


# of results whose gradients are left to the caller
_awaited: weakref.WeakSet[_Mark] = weakref.WeakSet()


def await_gradients(result: Any) -> None:
    """Have the next backward pass recorded, if it may be that of these results."""
    if not torch.is_grad_enabled():
        return
    for leaf in trees.flatten(result)[0]:
        if is_jax_tensor(leaf) and leaf.grad_fn is not None:
            metadata: Any = leaf.grad_fn.metadata
            mark = metadata["torch_jax"] = _Mark()
            _awaited.add(mark)
            return


@around("torch.autograd.backward", AT_FIRST_JIT)
@around("torch.autograd.grad", AT_FIRST_JIT)
def _backward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the backward pass through results of a compiled function: it runs as one program."""
    if ACTIVE.observer is not None:
        ACTIVE.observer.went_back = True
    within = is_recording() or pytorch.current_graph_task() != -1
    if within or not _awaited:
        return original(*args, **kwargs)
    _awaited.clear()  # later passes do not go through these results
    with observed(_PASS):
        return original(*args, **kwargs)
