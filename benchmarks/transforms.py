"""Transforms of ``torch.func`` under ``torch_jax.jit``, beside JAX's own, written by hand.

Gradients of each example, jacobians, products with a hessian, an ensemble, and gradients through
steps of training. Both compute the same, which is checked before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from torch import func

import torch_jax
from benchmarks.timing import compare, sample, wait

TARGET = 1.2
Params = dict[str, Any]


class Case(NamedTuple):
    """The same function in PyTorch and in JAX, and NumPy arrays to call both with."""

    torch_function: Callable[..., Any]
    jax_function: Callable[..., Any]
    arguments: tuple[Any, ...]


def _draw(*size: int) -> np.ndarray:
    return np.random.default_rng(sum(size)).standard_normal(size, np.float32) / size[-1] ** 0.5


def _classes(count: int, below: int = 10) -> np.ndarray:
    return np.random.default_rng(0).integers(0, below, count)


# --- models, each for one example -----------------------------------------------------------------


def _nll(logits: jax.Array, label: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(logits)[label]


MLP = {"w1": _draw(64, 256), "b1": _draw(256), "w2": _draw(256, 10), "b2": _draw(10)}


def _mlp(p: Params, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def _mlp_loss(p: Params, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(_mlp(p, x), label)


def _jax_mlp(p: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def _jax_mlp_loss(p: Params, x: jax.Array, label: jax.Array) -> jax.Array:
    return _nll(_jax_mlp(p, x), label)


CNN = {"c1": _draw(8, 1, 3, 3), "c2": _draw(16, 8, 3, 3), "w": _draw(16, 10)}


def _cnn_loss(p: Params, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    h = torch.relu(F.conv2d(x[None], p["c1"], stride=2))
    h = torch.relu(F.conv2d(h, p["c2"], stride=2))
    return F.cross_entropy(h.mean((2, 3))[0] @ p["w"], label)


def _jax_cnn_loss(p: Params, x: jax.Array, label: jax.Array) -> jax.Array:
    conv = jax.lax.conv
    h = jax.nn.relu(conv(x[None], p["c1"], (2, 2), "VALID"))
    h = jax.nn.relu(conv(h, p["c2"], (2, 2), "VALID"))
    return _nll(h.mean((2, 3))[0] @ p["w"], label)


ATTENTION = {"qkv": _draw(32, 96), "out": _draw(32, 10)}


def _attention_loss(p: Params, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ p["qkv"]).reshape(-1, 3, 4, 8).permute(1, 2, 0, 3)[:, None]
    h = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
    return F.cross_entropy(h.mean(0) @ p["out"], label)


def _jax_attention_loss(p: Params, x: jax.Array, label: jax.Array) -> jax.Array:
    q, k, v = jnp.moveaxis((x @ p["qkv"]).reshape(-1, 3, 4, 8), 1, 0)
    h = jax.nn.dot_product_attention(q[None], k[None], v[None])[0].reshape(-1, 32)
    return _nll(h.mean(0) @ p["out"], label)


# --- transforms -----------------------------------------------------------------------------------


def _by_example(loss: Callable, jax_loss: Callable, params: Params, x: np.ndarray) -> Case:
    """The gradient of each example."""
    return Case(
        func.vmap(func.grad(loss), in_dims=(None, 0, 0)),
        jax.vmap(jax.grad(jax_loss), in_axes=(None, 0, 0)),
        (params, x, _classes(len(x))),
    )


def _through_training(steps: int = 3) -> Case:
    """The gradient of a loss after some steps of gradient descent, for each of many tasks."""

    def torch_loss(p, x, y):
        q = p
        for _ in range(steps):
            gradients = func.grad(_mlp_loss)(q, x, y)
            q = {name: value - 0.1 * gradients[name] for name, value in q.items()}
        return _mlp_loss(q, x, y)

    def jax_loss(p, x, y):
        q = p
        for _ in range(steps):
            gradients = jax.grad(_jax_mean_loss)(q, x, y)
            q = {name: value - 0.1 * gradients[name] for name, value in q.items()}
        return _jax_mean_loss(q, x, y)

    def torch_all(p, x, y):
        return func.grad(lambda p: func.vmap(torch_loss, (None, 0, 0))(p, x, y).mean())(p)

    def jax_all(p, x, y):
        return jax.grad(lambda p: jax.vmap(jax_loss, (None, 0, 0))(p, x, y).mean())(p)

    return Case(torch_all, jax_all, (MLP, _draw(8, 16, 64), _classes(128).reshape(8, 16)))


def _jax_mean_loss(p: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.vmap(_jax_mlp_loss, (None, 0, 0))(p, x, labels).mean()


def _hessian_times(p: Params, v: Params, x: torch.Tensor, y: torch.Tensor) -> Params:
    return func.jvp(func.grad(lambda p: _mlp_loss(p, x, y)), (p,), (v,))[1]


def _jax_hessian_times(p: Params, v: Params, x: jax.Array, y: jax.Array) -> Params:
    return jax.jvp(jax.grad(lambda p: _jax_mean_loss(p, x, y)), (p,), (v,))[1]


STACKED = {name: np.stack([value * (1 + 0.1 * i) for i in range(8)]) for name, value in MLP.items()}

CASES = {
    "gradients by example, MLP": _by_example(_mlp_loss, _jax_mlp_loss, MLP, _draw(128, 64)),
    "gradients by example, CNN": _by_example(_cnn_loss, _jax_cnn_loss, CNN, _draw(64, 1, 28, 28)),
    "gradients by example, attention": _by_example(
        _attention_loss, _jax_attention_loss, ATTENTION, _draw(64, 16, 32)
    ),
    "jacobian, backwards": Case(
        func.vmap(func.jacrev(_mlp, argnums=1), (None, 0)),
        jax.vmap(jax.jacrev(_jax_mlp, argnums=1), (None, 0)),
        (MLP, _draw(128, 64)),
    ),
    "jacobian, forwards": Case(
        func.vmap(func.jacfwd(_mlp, argnums=1), (None, 0)),
        jax.vmap(jax.jacfwd(_jax_mlp, argnums=1), (None, 0)),
        (MLP, _draw(32, 64)),
    ),
    "hessian times a vector": Case(
        _hessian_times, _jax_hessian_times, (MLP, MLP, _draw(128, 64), _classes(128))
    ),
    "ensemble of 8": Case(
        func.vmap(_mlp, (0, None)), jax.vmap(_jax_mlp, (0, None)), (STACKED, _draw(512, 64))
    ),
    "gradient through training": _through_training(),
}


def contenders(case: Case) -> dict[str, Callable[[], Any]]:
    """The case under ``torch_jax.jit`` and under ``jax.jit``; raises where they differ."""
    arrays = jax.tree.map(jnp.asarray, case.arguments)
    tensors = jax.tree.map(lambda a: torch.from_numpy(a).to("jax"), case.arguments)
    ours = torch_jax.jit(case.torch_function)
    theirs = jax.jit(case.jax_function)
    for mine, its in zip(
        jax.tree.leaves(ours(*tensors)), jax.tree.leaves(theirs(*arrays)), strict=True
    ):
        np.testing.assert_allclose(mine.detach().cpu(), its, rtol=1e-3, atol=1e-4)

    def run_ours() -> None:
        for result in jax.tree.leaves(ours(*tensors)):
            wait(result)

    return {"torch_jax.jit": run_ours, "jax.jit": lambda: jax.block_until_ready(theirs(*arrays))}


def run() -> None:
    """Print the times of all cases."""
    for name, case in CASES.items():
        compare(name, sample(contenders(case), calls=5, rounds=15), {"jax.jit": TARGET})


if __name__ == "__main__":
    run()
