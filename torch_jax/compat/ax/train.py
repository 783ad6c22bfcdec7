"""``torchax.train``: a training step of a model, a loss and an optimizer of optax."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

from torch_jax.compat.ax import draws, interop
from torch_jax.interop.from_jax import from_jax_function

remat = interop.torch_view(jax.remat)
mark_sharding = interop.torch_view(jax.lax.with_sharding_constraint)


def make_train_step(
    model_fn: Callable[..., Any],
    loss_fn: Callable[..., Any],
    optax_optimizer: Any,
    remat_policy: Any = None,
) -> Callable[..., Any]:
    """Return a training step: ``step(weights, buffers, opt_state, args, label)``.

    ``torchax.interop.jax_jit(step)`` makes one program of it.

    Args:
      model_fn: ``model_fn(weights, buffers, args)`` returns the model's result.
      loss_fn: ``loss_fn(result, label)`` returns the loss.
      optax_optimizer: a transformation of optax.
      remat_policy: of ``jax.checkpoint_policies``: the values that the backward pass keeps.

    Returns:
      A function that returns the loss, the new weights and the new state of the optimizer.
    """

    def loss_of(weights: Any, buffers: Any, args: Any, label: Any) -> Any:
        with jax.named_scope("compute_loss"):
            return loss_fn(model_fn(weights, buffers, args), label)

    policy = {"policy": remat_policy}
    loss = loss_of if remat_policy is None else interop.gradient_checkpoint(loss_of, policy)
    value_and_grad = interop.jax_value_and_grad(loss)

    def step(weights: Any, buffers: Any, opt_state: Any, args: Any, label: Any) -> Any:
        with jax.named_scope("compute_gradient"):
            value, gradient = value_and_grad(weights, buffers, args, label)
        with jax.named_scope("optimizer_updates"):
            updates, opt_state = interop.call_jax(
                optax_optimizer.update, gradient, opt_state, weights
            )
            weights = interop.call_jax(optax.apply_updates, weights, updates)
        return value, weights, opt_state

    return step


class Container:
    """Holds a module without being one."""

    one_mod: nn.Module


class ScannedModule(nn.Module):
    """Layers that are alike as one, whose weights are stacked, under ``jax.lax.scan``.

    Its parameters are ``params.NAME``, with ``___`` for dots. Each layer draws its own random
    numbers. ``torch_jax.scan_layers`` does the same and does not change the layers.

    Args:
      module_list: the layers.
      checkpoint_policy: the values that the backward pass keeps of each; none by default.
    """

    def __init__(self, module_list: Sequence[nn.Module], checkpoint_policy: Any = None):
        super().__init__()
        self.c = Container()
        self.c.one_mod = module_list[0]
        self.checkpoint_policy = checkpoint_policy
        stacked = defaultdict(list)
        for module in module_list:
            for name, tensor in module.state_dict().items():
                stacked[name].append(tensor)
        self.layer_weights_keys = list(stacked)
        self.count = len(module_list)
        self.params = nn.ParameterDict(
            {_flat(name): torch.stack(tensors) for name, tensors in stacked.items()}
        )

    def forward(self, *args: Any) -> Any:
        """Return the first argument after all layers; each of them gets the other arguments."""
        weights = {name: self.params[_flat(name)] for name in self.layer_weights_keys}
        words = [draws.next_words() for _ in range(self.count)]
        keys = None if words[0] is None else jnp.stack([jnp.asarray(one) for one in words])
        layer = functools.partial(torch.func.functional_call, self.c.one_mod)

        def body(args: tuple, given: Any) -> Any:
            weights, words = given
            one = jax.checkpoint(
                interop.of_arrays(layer, lambda: words), policy=self.checkpoint_policy
            )
            return (one(weights, args), *args[1:]), None

        def scan(args: tuple, weights: Any, keys: Any) -> Any:
            return jax.lax.scan(body, args, (weights, keys), length=self.count)[0][0]

        return from_jax_function(scan)(args, weights, keys)


def _flat(name: str) -> str:
    return name.replace(".", "___")
