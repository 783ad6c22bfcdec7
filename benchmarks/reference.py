"""The models of ``models.py`` and their training steps as a JAX author writes them by hand.

A step is ``(params, opt_state, batch) -> (params, opt_state, loss)`` and is jitted with
``donate_argnums=(0, 1)``. ``params`` is flat, under the names of the PyTorch model's state dict,
running statistics among them. Images are NHWC and kernels HWIO, as is usual in JAX.
:mod:`benchmarks.cases` checks them against PyTorch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from benchmarks.models import HEAD

Params = dict[str, jax.Array]
Batch = tuple[jax.Array, jax.Array]
ADAMW: dict[str, Any] = {"lr": 3e-4, "weight_decay": 0.01}
SGD: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def params_of(model: torch.nn.Module) -> Params:
    """A state dict as new arrays, with kernels HWIO and integers 32 bits wide."""
    return {name: array_of(value, (2, 3, 1, 0)) for name, value in model.state_dict().items()}


def batch_of(batch: tuple[torch.Tensor, torch.Tensor]) -> Batch:
    """Inputs and targets as arrays, images NHWC and integers 32 bits wide."""
    inputs, targets = batch
    return array_of(inputs, (0, 2, 3, 1)), array_of(targets)


def array_of(value: torch.Tensor, order: tuple[int, ...] = ()) -> jax.Array:
    """A tensor as a new array, with its dims in this order where there are as many of them."""
    value = value.detach().cpu()
    value = value.permute(order) if value.ndim == len(order) else value
    if value.dtype == torch.bfloat16:  # NumPy has none
        return array_of(value.float()).astype(jnp.bfloat16)
    return jnp.array(value.int() if value.dtype == torch.int64 else value, copy=True)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean negative log likelihood of ``targets``, one less dimension than ``logits``."""
    likelihood = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(likelihood, targets[..., None], axis=-1).mean()


# ---- optimizers -------------------------------------------------------------------------------


def adamw_init(params: Params) -> dict[str, Any]:
    """First and second moments, and the count of steps."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"step": jnp.zeros((), jnp.int32), "m": zeros, "v": jax.tree.map(jnp.copy, zeros)}


def adamw(params: Params, state: dict[str, Any], grads: Params) -> tuple[Params, dict[str, Any]]:
    """AdamW with the moments' usual decays of 0.9 and 0.999."""
    lr, decay = ADAMW["lr"], ADAMW["weight_decay"]
    step = state["step"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
    scale_m, scale_v = 1 / (1 - 0.9**step), 1 / (1 - 0.999**step)

    def update(p, m, v):
        return p - lr * (decay * p + m * scale_m / (jnp.sqrt(v * scale_v) + 1e-8))

    return jax.tree.map(update, params, m, v), {"step": step, "m": m, "v": v}


def sgd_init(params: Params) -> Params:
    """Momenta of the parameters, none of the running statistics."""
    return jax.tree.map(jnp.zeros_like, _split(params)[0])


def sgd(params: Params, momenta: Params, grads: Params) -> tuple[Params, Params]:
    """Gradient descent with momentum."""
    momenta = jax.tree.map(lambda m, g: SGD["momentum"] * m + g, momenta, grads)
    return jax.tree.map(lambda p, m: p - SGD["lr"] * m, params, momenta), momenta


def _split(params: Params) -> tuple[Params, Params]:
    """What is trained, and the running statistics."""
    statistics = {k: v for k, v in params.items() if k.endswith(_STATISTICS)}
    return {k: v for k, v in params.items() if k not in statistics}, statistics


def _blocks(p: Params) -> int:
    """Return how many blocks a model has."""
    return len({name.split(".")[1] for name in p if name.startswith("blocks.")})


# ---- GPT --------------------------------------------------------------------------------------


def layer_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    """Normalize the last dimension in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    found = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return (found * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(x.dtype)


def linear(p: Params, name: str, x: jax.Array) -> jax.Array:
    """A product with a weight of ``[outputs, inputs]``, and a bias."""
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def gpt_forward(p: Params, tokens: jax.Array) -> jax.Array:
    """``[batch, length]`` int32 to ``[batch, length, vocabulary]``."""
    x = p["token.weight"][tokens] + p["position.weight"]
    for i in range(_blocks(p)):
        b = f"blocks.{i}"
        qkv = linear(p, f"{b}.qkv", layer_norm(p, f"{b}.norm1", x))
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], -1, HEAD), 3, axis=2)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(p, f"{b}.out", attended.reshape(x.shape))
        hidden = jax.nn.gelu(linear(p, f"{b}.up", layer_norm(p, f"{b}.norm2", x)))
        x = x + linear(p, f"{b}.down", hidden)
    return linear(p, "head", layer_norm(p, "norm", x))


def gpt_loss(params: Params, batch: Batch) -> jax.Array:
    """Cross entropy of the next tokens."""
    tokens, targets = batch
    return cross_entropy(gpt_forward(params, tokens), targets)


def gpt_train_step(params: Params, state: Any, batch: Batch) -> tuple[Params, Any, jax.Array]:
    """One step of AdamW."""
    loss, grads = jax.value_and_grad(gpt_loss)(params, batch)
    return *adamw(params, state, grads), loss


# ---- ResNet -----------------------------------------------------------------------------------


def _convolve(p: Params, name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    kernel = p[f"{name}.weight"]
    layout = ("NHWC", "HWIO", "NHWC")
    # not "SAME", which would pad a stride of two at the other end
    edges = [((n - 1) // 2,) * 2 for n in kernel.shape[:2]]
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, edges, dimension_numbers=layout)


def _batch_norm(p: Params, name: str, x: jax.Array, new: Params | None) -> jax.Array:
    """Normalize by the batch, putting its statistics into ``new``, or where None by the running."""
    mean, variance = p[f"{name}.running_mean"], p[f"{name}.running_var"]
    if new is not None:
        count = x.size // x.shape[-1]
        batch_mean, batch_variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        unbiased = batch_variance * count / (count - 1)
        new[f"{name}.running_mean"] = 0.9 * mean + 0.1 * batch_mean
        new[f"{name}.running_var"] = 0.9 * variance + 0.1 * unbiased
        new[f"{name}.num_batches_tracked"] = p[f"{name}.num_batches_tracked"] + 1
        mean, variance = batch_mean, batch_variance
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _block(p: Params, name: str, x: jax.Array, stride: int, new: Params | None) -> jax.Array:
    is_deep = f"{name}.conv3.weight" in p
    y = _convolve(p, f"{name}.conv1", x, 1 if is_deep else stride)
    y = jax.nn.relu(_batch_norm(p, f"{name}.norm1", y, new))
    y = _convolve(p, f"{name}.conv2", y, stride if is_deep else 1)
    y = _batch_norm(p, f"{name}.norm2", y, new)
    if is_deep:
        y = _batch_norm(p, f"{name}.norm3", _convolve(p, f"{name}.conv3", jax.nn.relu(y)), new)
    if f"{name}.shortcut.0.weight" in p:
        x = _convolve(p, f"{name}.shortcut.0", x, stride)
        x = _batch_norm(p, f"{name}.shortcut.1", x, new)
    return jax.nn.relu(y + x)


def resnet_forward(p: Params, images: jax.Array, new: Params | None = None) -> jax.Array:
    """``[batch, height, width, 3]`` to ``[batch, classes]``.

    With a dict for ``new`` it normalizes as in training and puts the new running statistics there.
    """
    is_deep = "blocks.0.conv3.weight" in p
    stem = _convolve(p, "stem", images, 2 if is_deep else 1)
    x = jax.nn.relu(_batch_norm(p, "norm", stem, new))
    if is_deep:
        edges = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)
    for i in range(_blocks(p)):
        stride = 2 if i and f"blocks.{i}.shortcut.0.weight" in p else 1
        x = _block(p, f"blocks.{i}", x, stride, new)
    return linear(p, "head", x.mean((1, 2)))


def resnet_loss(params: Params, statistics: Params, batch: Batch) -> tuple[jax.Array, Params]:
    """Cross entropy of the classes, and the new running statistics."""
    images, targets = batch
    new: Params = {}
    logits = resnet_forward(params | statistics, images, new)
    return cross_entropy(logits, targets), new


def resnet_train_step(params: Params, state: Any, batch: Batch) -> tuple[Params, Any, jax.Array]:
    """One step of gradient descent with momentum."""
    trained, statistics = _split(params)
    gradient = jax.value_and_grad(resnet_loss, has_aux=True)
    (loss, statistics), grads = gradient(trained, statistics, batch)
    trained, state = sgd(trained, state, grads)
    return trained | statistics, state, loss


# ---- linear -----------------------------------------------------------------------------------


def linear_forward(params: Params, x: jax.Array) -> jax.Array:
    """``[rows, features]`` to the same."""
    return x @ params["weight"].T + params["bias"]


def linear_loss(params: Params, batch: Batch) -> jax.Array:
    """Mean squared error."""
    inputs, targets = batch
    return jnp.square(linear_forward(params, inputs) - targets).mean()


def linear_train_step(params: Params, state: Any, batch: Batch) -> tuple[Params, Any, jax.Array]:
    """One step of gradient descent with momentum."""
    loss, grads = jax.value_and_grad(linear_loss)(params, batch)
    return *sgd(params, state, grads), loss
