"""A training step of a Llama in JAX alone, sharded by the rules that ``torch_jax.plan`` assumes.

``python -m tests.support.planned_step 8 '[{...}]'`` compiles it for so many virtual devices, with
no memory for any array, and prints what XLA says of each program, as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

from tests.support.partitioned import collectives

_MATRICES = {  # the projections of one kind are one array, so that their gradients are summed once
    "qkv": ("fsdp", "tensor", None),
    "out": ("tensor", "fsdp"),
    "gate_up": ("fsdp", None, "tensor"),
    "down": ("tensor", "fsdp"),
    "norm_1": (None,),
    "norm_2": (None,),
}
_BATCH = ("data", "fsdp")


def _shapes(config: dict) -> dict[str, tuple[int, ...]]:
    width, hidden = config["hidden_size"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = width // heads
    return {
        "qkv": (width, groups, (heads // groups + 2) * size),
        "out": (width, width),
        "gate_up": (width, 2, hidden),
        "down": (hidden, width),
        "norm_1": (width,),
        "norm_2": (width,),
    }


def lowered(config: dict, mesh: dict, batch: int, length: int, remat: str, scan: bool) -> Any:
    """The step of these sizes for a mesh, not yet compiled."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    axes = {kind: mesh.get(kind, 1) for kind in ("data", "fsdp", "tensor")}
    over = jax.make_mesh(tuple(axes.values()), tuple(axes), (AxisType.Auto,) * 3)
    shapes, layers = _shapes(config), config["num_hidden_layers"]
    width, words = config["hidden_size"], config["vocab_size"]

    def laid(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(over, P(*spec)))

    def empty(shape: tuple, *spec: Any, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(over, P(*spec)))

    def one(lead: tuple = ()) -> dict:
        return {k: empty(lead + s, *(None,) * len(lead), *_MATRICES[k]) for k, s in shapes.items()}

    layer = functools.partial(_layer, config, lambda x: laid(x, _BATCH, None, None))
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    if remat != "none":
        layer = jax.checkpoint(layer, policy=policy if remat == "dots" else None)

    def loss(params: dict, tokens: Any) -> Any:
        x = laid(params["embed"][tokens[:, :-1]], _BATCH, None, None)
        if scan:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
        for weights in () if scan else params["layers"]:
            x = layer(x, weights)
        logits = laid(_norm(x, params["norm"]) @ params["head"], _BATCH, None, "tensor")
        picked = logits * jax.nn.one_hot(tokens[:, 1:], words)
        return (jax.nn.logsumexp(logits, -1) - picked.sum(-1)).mean()

    def step(params: dict, first: dict, second: dict, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), params, first, second
        )
        return params, first, second, value

    params = {
        "embed": empty((words, width), "fsdp", "tensor"),
        "head": empty((width, words), "fsdp", "tensor"),
        "norm": empty((width,), None),
        "layers": one((layers,)) if scan else [one() for _ in range(layers)],
    }
    tokens = empty((batch, length + 1), _BATCH, dtype=jnp.int32)
    kept = jax.tree.map(lambda x: x.sharding, params)
    run = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=(kept, kept, kept, None))
    return run.lower(params, params, params, tokens)


def _norm(x: Any, weight: Any) -> Any:
    import jax

    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def _layer(config: dict, constrain: Any, x: Any, w: dict) -> Any:
    """Attention and a gated multilayer perceptron; positions, which cost nothing, are left out."""
    import jax
    import jax.numpy as jnp

    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    joint = jnp.einsum("bsh,hgd->bsgd", _norm(x, w["norm_1"]), w["qkv"])
    query, key, value = jnp.split(joint, [heads // groups * size, (heads // groups + 1) * size], -1)
    query = query.reshape(*query.shape[:3], heads // groups, size)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", query, key) / size**0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    mixed = jnp.einsum("bgrqk,bkgd->bqgrd", scores, value)
    x = constrain(x + constrain(mixed.reshape(*x.shape[:2], -1) @ w["out"]))
    both = jnp.einsum("bsh,hti->bsti", _norm(x, w["norm_2"]), w["gate_up"])
    return constrain(x + constrain((jax.nn.silu(both[:, :, 0]) * both[:, :, 1]) @ w["down"]))


def facts(config: dict, mesh: dict, batch: int, length: int, remat: str, scan: bool) -> dict:
    """What XLA says of the compiled step."""
    start = time.perf_counter()
    compiled = lowered(config, mesh, batch, length, remat, scan).compile()
    memory = compiled.memory_analysis()
    found = collectives(compiled.as_text())
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "flops": compiled.cost_analysis()["flops"],  # of one round of each loop
        "collectives": [[*key, count] for key, count in found.items()],
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    flag = f"--xla_force_host_platform_device_count={sys.argv[1]}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    print(json.dumps([facts(**case) for case in json.loads(sys.argv[2])]))
