"""A training step of a Llama over many chips beside the same step in hand-written JAX.

Nothing runs: the chips' own compilers lay both out (:mod:`benchmarks.targets`). Parameters,
gradients and AdamW's moments are split by the rules of ``examples/sharding`` (FSDP and tensor
parallel), activations by sequences. Products are of bfloat16, all else is of float32.

``python -m benchmarks.targets_sharded tpu-v5e-4x4`` compares on some chips.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.nn import functional as F

import torch_jax
from benchmarks import cases, reference
from benchmarks.targets import BARE, OURS
from examples.sharding.__main__ import RULES
from examples.sharding.llama import Attention, Config, Llama, rotated
from torch_jax import config, target
from torch_jax._private import jax_core
from torch_jax.distributed import rules
from torch_jax.observe.checking import hlo
from torch_jax.observe.checking.costs import costs as costs_of

TARGETS = ("tpu-v5e-4x4", "tpu-v5p-4x4x4", "tpu-v5e-16x16", "tpu-v5e-16x16-2slices", "gpu-h200-8")
MODEL = 4  # chips that share heads and hidden units; the others split batch and weights
SIZES = Config(vocabulary=32000, width=2048, hidden=5632, layers=4, heads=16, groups=8)
LENGTH, SEQUENCES = 2048, 2  # of a chip's part of the batch
ACTIVATIONS = ("data", None, None)
_STARTS = re.compile(rf"^ +%(?:async-collective|{'|'.join(hlo.COLLECTIVES)})-start[.\d]* = ", re.M)


class Counted(NamedTuple):
    """Hold what a compiler says of a program over many chips.

    Attributes:
      collectives: how many of each kind, and the bytes of their results on one chip.
      asynchronous: collectives that start, and end later.
      memory: bytes of a chip: arguments, temporaries, and results that overwrite none of these.
      bytes: that a chip moves.
      seconds: how long it took to lower and compile.
    """

    collectives: dict[str, tuple[int, int]]
    asynchronous: int
    memory: int
    bytes: float
    seconds: float


def counted(compile_: Callable[[Mesh], Any], mesh: Mesh) -> Counted:
    """Compile, and count."""
    start = time.perf_counter()
    compiled = compile_(mesh)
    seconds = time.perf_counter() - start
    text, memory = compiled.as_text(), compiled.memory_analysis()
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return Counted(
        hlo.collectives(text),
        len(_STARTS.findall(text)),
        needed + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        costs_of(text, jax_core.costs_of(compiled))["bytes accessed"],
        seconds,
    )


# --- by torch_jax ---------------------------------------------------------------------------------


class Fused(Attention):
    """The attention of the example by PyTorch's fused function, which keeps no scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, length, width) to the same."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        given = rotated(query), rotated(key), value
        mixed = F.scaled_dot_product_attention(
            *(one.to(value.dtype) for one in given), is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


def model_on_meta(mesh: Mesh) -> Llama:
    """Return the model without elements."""
    with torch.device("meta"):
        model = Llama(SIZES, lambda x: torch_jax.with_sharding_constraint(x, ACTIVATIONS, mesh))
        for layer in model.layers:
            layer.attention = Fused(SIZES)
    return model


def batch(mesh: Mesh) -> tuple[int, int]:
    """Return the shape of a batch: sequences, and their tokens."""
    return SEQUENCES * mesh.shape["data"], LENGTH + 1


def ours(mesh: Mesh) -> Any:
    """Return the step, compiled by torch_jax."""
    with torch_jax.compile_for(config.get("target")) as found:
        model = torch_jax.shard(model_on_meta(mesh), mesh, RULES)
        optimizer = cases.adamw(model.parameters())
        tokens = torch.zeros(batch(mesh), dtype=torch.int64, device="jax")
        tokens = torch_jax.shard(tokens, mesh, ("data",))

        @torch_jax.jit
        def step(tokens: torch.Tensor) -> torch.Tensor:
            with torch.autocast("jax", torch.bfloat16):
                loss = cases.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()  # gradients that remain would be results of the program
            return loss.detach()

        step(tokens)
        step(tokens)
        return found.runs[-1].compiled


# --- by hand --------------------------------------------------------------------------------------


def bare(mesh: Mesh) -> Any:
    """Return the step, written by hand in JAX and compiled."""
    model = model_on_meta(mesh)
    placed = rules.shardings(model, mesh, RULES)
    params = {
        name: jax.ShapeDtypeStruct(tuple(one.shape), jnp.float32, sharding=placed[id(one)])
        for name, one in rules.tensors_of(model)
    }
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    state = {"step": count, "m": params, "v": params}
    rows = NamedSharding(mesh, PartitionSpec("data"))
    tokens = jax.ShapeDtypeStruct(batch(mesh), jnp.int32, sharding=rows)

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(_loss)(params, tokens, mesh)
        return *reference.adamw(params, state, grads), loss

    kept = jax.tree.map(lambda one: one.sharding, (params, state))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*kept, None))
    return jitted.lower(params, state, tokens).compile()


def _linear(params: reference.Params, name: str, x: jax.Array) -> jax.Array:
    weight = params[f"{name}.weight"].astype(jnp.bfloat16)
    return x.astype(jnp.bfloat16) @ weight.T


def _norm(params: reference.Params, name: str, x: jax.Array) -> jax.Array:
    scale = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + jnp.finfo(x.dtype).eps)
    return x * scale * params[f"{name}.weight"]


def _rotated(x: jax.Array) -> jax.Array:
    """Return queries or keys of shape (batch, length, heads, width), turned by their positions."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rates)[:, None]
    a, b = x[..., :half], x[..., half:]
    turned = a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)
    return jnp.concatenate(turned, -1).astype(x.dtype)


def _attention(params: reference.Params, name: str, x: jax.Array) -> jax.Array:
    size = SIZES.width // SIZES.heads
    query, key, value = (
        _linear(params, f"{name}.{which}", x).reshape(*x.shape[:2], -1, size)
        for which in ("query", "key", "value")
    )
    by = "cudnn" if target.platform() == "gpu" else None
    attend = jax.nn.dot_product_attention
    mixed = attend(_rotated(query), _rotated(key), value, is_causal=True, implementation=by)
    return _linear(params, f"{name}.out", mixed.reshape(*x.shape[:2], -1))


def _loss(params: reference.Params, tokens: jax.Array, mesh: Mesh) -> jax.Array:
    def constrain(x: jax.Array) -> jax.Array:
        spec = PartitionSpec(*ACTIVATIONS)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    x = constrain(params["embed.weight"][tokens[:, :-1]])
    for at in range(SIZES.layers):
        name = f"layers.{at}"
        x = x + _attention(params, f"{name}.attention", _norm(params, f"{name}.attention_norm", x))
        h = _norm(params, f"{name}.mlp_norm", x)
        gated = jax.nn.silu(_linear(params, f"{name}.gate", h)) * _linear(params, f"{name}.up", h)
        x = constrain(x + _linear(params, f"{name}.down", gated))
    logits = _linear(params, "head", _norm(params, "norm", x))
    return reference.cross_entropy(logits.astype(jnp.float32), tokens[:, 1:])


# --- beside each other ----------------------------------------------------------------------------


def run(names: tuple[str, ...] = TARGETS) -> None:
    """Print what both need on each of some chips."""
    for name in names:
        with config.temporarily("target", name):
            mesh = torch_jax.mesh(data=-1, model=MODEL)
            print(f"\n{name}: {OURS} / {BARE} (ratio), of one chip", flush=True)
            _compare(counted(ours, mesh), counted(bare, mesh))


def _compare(mine: Counted, theirs: Counted) -> None:
    kinds = sorted(mine.collectives.keys() | theirs.collectives.keys())
    for kind in kinds:
        (count, size), (of_count, of_size) = (
            one.collectives.get(kind, (0, 0)) for one in (mine, theirs)
        )
        _show(kind, count, of_count, "")
        _show(f"{kind}, bytes", size / 1e6, of_size / 1e6, "MB")
    totals = [sum(size for _, size in one.collectives.values()) / 1e6 for one in (mine, theirs)]
    _show("collectives, bytes", *totals, "MB")
    _show("asynchronous", mine.asynchronous, theirs.asynchronous, "")
    _show("memory", mine.memory / 1e9, theirs.memory / 1e9, "GB")
    _show("bytes moved", mine.bytes / 1e9, theirs.bytes / 1e9, "GB")
    _show("compiled in", mine.seconds, theirs.seconds, "s")


def _show(label: str, mine: float, theirs: float, unit: str) -> None:
    ratio = f" ({mine / theirs:.2f})" if theirs else ""
    print(f"  {label:28} {mine:10.5g} / {theirs:.5g} {unit}{ratio}", flush=True)


if __name__ == "__main__":
    run(tuple(sys.argv[1:]) or TARGETS)
