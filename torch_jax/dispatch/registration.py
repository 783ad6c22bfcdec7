"""Registers kernels with PyTorch's dispatcher when the device is first used.

Operators of the table and of our own kernels are registered, so that PyTorch calls them directly.
All others come to :func:`torch_jax.dispatch.ladder.fallback`.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax import config, ops
from torch_jax._private import pytorch
from torch_jax.core import forks, log, waking
from torch_jax.dispatch import attention_choice, autocast, call_jax, ladder, sparse
from torch_jax.dispatch.storage_kernels import KERNELS
from torch_jax.memory import shared
from torch_jax.ops.registry import TABLE

# Views that PyTorch has for each device by itself; these are frequent, others come by the fallback.
VIEWS = ("view", "_reshape_alias")

_libraries: list[torch.library.Library] = []  # a registration lives as long as these


def install() -> None:
    """Register kernels for the whole table; called once, at the first use of the device."""
    ops.load()
    shared.install()
    library = torch.library.Library("aten", "IMPL")
    # The doors of waking are registered at `import torch`. Operators of other libraries may be
    # defined later, and arrive at the fallback.
    names = [name for name in served_names() if name not in waking.DOORS] + [*VIEWS]
    pytorch.register(library, names, ladder.door, "PrivateUse1")
    for name in ("_sample_dirichlet", "binomial"):  # else fake tensors ask real ones, which draw
        library.impl(name, lambda self, *_: self.new_empty(self.shape), "Meta")
    _libraries.extend((library, _own_operators(), _above_autograd(), autocast.install()))
    _libraries.extend(sparse.install())
    config.listeners.append(ladder.forget_compiled)
    forks.listeners.append(ladder.forget_compiled)
    config.setters["log"] = log.follow
    log.follow(config.get("log"))


def served_names() -> list[str]:
    """Return names, as ``"add.Tensor"``, of overloads that the table or a kernel serves.

    Names suffice, without a look at thousands of schemas, but for a few overloads that the ladder
    finds to be PyTorch's own, or serves by the fallback.
    """
    packets = {name.partition(".")[0] for name in TABLE}
    packets |= {f"{packet.removesuffix('_functional')}_" for packet in packets}
    writing = _aten("ADInplaceOrView")

    def is_served(name: str) -> bool:
        packet, _, overload = name.partition(".")
        gives_out = overload.endswith("out")
        writes = gives_out or packet.endswith("_") or name in writing
        derived = packet in packets and writes
        repeated = packet.startswith("_foreach_") and not gives_out
        return name in TABLE or name in KERNELS or derived or repeated

    composed = _aten("CompositeImplicitAutograd") - _aten("CPU") - _aten("Autograd")  # by parts
    names = (name.removeprefix("aten::") for name in pytorch.all_op_names() if "aten::" in name)
    return [name for name in names if name not in composed and is_served(name)]


def _aten(key: str) -> set[str]:
    """Return names of overloads for which PyTorch has a kernel of a dispatch key."""
    return {name.removeprefix("aten::") for name in pytorch.names_with_kernel(key)}


def _above_autograd() -> Any:
    """Register what replaces composites before autograd sees their parts."""
    library = torch.library.Library("aten", "IMPL")
    for op, call in ladder.ABOVE_AUTOGRAD.items():
        library.impl(op, call, "AutogradPrivateUse1")
        if ladder.is_composite(op):
            library.impl(op, call, "PrivateUse1")
    library.impl(attention_choice.GRADIENT, attention_choice.differentiate, "AutogradPrivateUse1")
    return library


# A step of Adam; ``kind`` is the use of ``decay``: "none", "decoupled" or "gradient". Sizes and
# corrections of all parameters are numbers where steps are counted on the host, else tensors.
_ADAM = (
    "adam_{}(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] means, Tensor(c!)[] squares, "
    "Tensor(d!)[] maxima, {} sizes, {} corrections, Scalar decay, Scalar weight, "
    "Scalar beta2, Scalar share, Scalar eps, str kind, bool maximize) -> ()"
)

# A layer of a recurrent network in one direction; gradients are in the order of the first seven.
_LAYER = (
    "Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, "
    "Tensor? lengths, str kind, bool reverse"
)
_RECURRENT = (
    f"rnn_layer({_LAYER}) -> (Tensor, Tensor)",
    f"rnn_layer_backward(Tensor grad, Tensor? grad_cell, Tensor output, {_LAYER}, bool[7] wanted) "
    f"-> ({', '.join(['Tensor'] * 7)})",
)


def _own_operators() -> Any:
    """Define and register the operators that PyTorch does not have."""
    library = torch.library.Library("torch_jax", "FRAGMENT")
    for schema in (
        "write_(Tensor(a!) self, Tensor source) -> Tensor(a!)",
        "copy(Tensor self, ScalarType dtype) -> Tensor",
        "shift(Tensor self, int by) -> Tensor",
        "checkpoint_name(Tensor self, str name) -> Tensor",
        "draw_key(Tensor like) -> Tensor",
        _ADAM.format("", "Scalar[]", "Scalar[]"),
        _ADAM.format(".counted", "Tensor[]", "Tensor[]"),
        *_RECURRENT,
        "cross_entropy_backward(Tensor grad, Tensor log_softmax, Tensor target, Tensor? weight, "
        "Tensor total_weight, int reduction, int ignore_index) -> Tensor",
    ):
        library.define(schema)
        name, _, _ = schema.partition("(")
        library.impl(name, ladder.door(f"torch_jax::{name}"), "PrivateUse1")
    for key in ("Conjugate", "Negative"):  # copy_ has resolved such views
        library.impl("write_", torch.library.fallthrough_kernel, key)
    # of named values, on any device: :func:`torch_jax.checkpoint_policy`
    library.impl("checkpoint_name", lambda self, name: self.clone(), "CompositeExplicitAutograd")
    torch.library.register_autograd(
        "torch_jax::checkpoint_name", lambda _context, gradient: (gradient, None), lib=library
    )
    library.define(call_jax.SCHEMA)
    pytorch.register_fake(library, "torch_jax::call_jax", call_jax.fake_call)
    call = ladder.enter(torch.ops.torch_jax.call_jax.default, call_jax.call)
    library.impl("call_jax", call, "PrivateUse1")
    library.impl("call_jax", call, "BackendSelect")  # of a function that takes no tensors
    library.impl("call_jax", call_jax.above_autograd, "AutogradPrivateUse1", with_keyset=True)
    return library
