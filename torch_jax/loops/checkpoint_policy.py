"""``torch_jax.checkpoint_policy``: the values that a checkpoint keeps, and does not compute again.

JAX's names for PyTorch's own mechanism, ``torch.utils.checkpoint`` with ``context_fn=``
(https://docs.jax.dev/en/latest/gradient-checkpointing.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from torch_jax.core import waking

_aten: Any = torch.ops.aten
_WITHOUT_BATCH = (_aten.mm, _aten.addmm, _aten.mv, _aten.addmv, _aten.dot, _aten.linear)
_DOTS = (*_WITHOUT_BATCH, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.matmul)
KINDS = {
    "nothing_saveable": (),
    "dots_saveable": _DOTS,
    "dots_with_no_batch_dims_saveable": _WITHOUT_BATCH,
}


def checkpoint_policy(
    kind: str = "nothing_saveable", names: Iterable[str] = ()
) -> Callable[[], tuple[Any, Any]]:
    """Return a ``context_fn`` for ``torch.utils.checkpoint`` and :func:`torch_jax.scan_layers`.

    Args:
      kind: ``"nothing_saveable"``; ``"dots_saveable"``: results of matrix products are kept; or
        ``"dots_with_no_batch_dims_saveable"``: of those without a batch, such as ``nn.Linear``'s.
      names: values of these names are kept, too; :func:`checkpoint_name` names them.

    Raises:
      ValueError: the kind is unknown.

    >>> from torch.utils.checkpoint import checkpoint
    >>> layer, x = torch.nn.Linear(2, 2).to("jax"), torch.ones(2, 2, device="jax")
    >>> policy = checkpoint_policy("dots_saveable")
    >>> y = checkpoint(lambda x: layer(x).sin(), x, use_reentrant=False, context_fn=policy)
    """
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(map(repr, KINDS))}, not {kind!r}")
    wanted = frozenset((names,) if isinstance(names, str) else names)
    policy = functools.partial(_judge, KINDS[kind], wanted)
    return functools.partial(create_selective_checkpoint_contexts, policy)


def _judge(
    kept: tuple, names: frozenset[str], _context: Any, op: Any, *args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    packet = getattr(op, "overloadpacket", None)
    named = packet is torch.ops.torch_jax.checkpoint_name and args[1] in names
    saves = named or any(packet is one for one in kept)
    return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_name(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x``, known by a name to :func:`checkpoint_policy`; on any device.

    In a program it is JAX's ``checkpoint_name``, so that policies of ``jax.checkpoint`` know it.

    >>> checkpoint_name(torch.ones(2), "attention")
    tensor([1., 1.])
    """
    waking.wake()
    return torch.ops.torch_jax.checkpoint_name(x, name)
