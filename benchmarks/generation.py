"""``python -m benchmarks.generation``: tokens per second of GPT-2, beside JAX by hand and the CPU.

A GPT-2 of random weights makes tokens for one text or several, greedily:
``torch_jax.generate_loop``, the same model written in JAX by hand with ``lax.while_loop`` over the
same static cache, and ``generate()`` of PyTorch on the CPU. They take turns, and the tokens must be
equal.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

import torch_jax

HEADS = 12


class State(NamedTuple):
    """What a token leaves for the next, in the program by hand."""

    ids: Any
    keys: Any
    values: Any
    length: Any


def _norm(x, weights, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[
        f"{name}.bias"
    ]


def _linear(x, weights, name):
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def by_hand(weights: dict[str, Any], layers: int, state: State, tokens: Any) -> tuple[State, Any]:
    """GPT-2 over ``tokens`` ``[batch, count]`` that follow what the cache holds; the next token."""
    batch, count = tokens.shape
    longest = state.keys[0].shape[2]
    at = state.length + jnp.arange(count)
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][at]
    seen = jnp.arange(longest)[None, :] <= at[:, None]
    keys, values = list(state.keys), list(state.values)
    for i in range(layers):
        name = f"h.{i}"
        mixed = _linear(_norm(x, weights, f"{name}.ln_1"), weights, f"{name}.attn.c_attn")
        q, k, v = (
            part.reshape(batch, count, HEADS, -1).swapaxes(1, 2)
            for part in jnp.split(mixed, 3, axis=-1)
        )
        keys[i] = lax.dynamic_update_slice(keys[i], k, (0, 0, state.length, 0))
        values[i] = lax.dynamic_update_slice(values[i], v, (0, 0, state.length, 0))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys[i]) / q.shape[-1] ** 0.5
        shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        found = jnp.einsum("bhqk,bhkd->bhqd", shares, values[i])
        found = found.swapaxes(1, 2).reshape(batch, count, -1)
        x = x + _linear(found, weights, f"{name}.attn.c_proj")
        wide = _linear(_norm(x, weights, f"{name}.ln_2"), weights, f"{name}.mlp.c_fc")
        x = x + _linear(jax.nn.gelu(wide), weights, f"{name}.mlp.c_proj")
    last = _norm(x[:, -1], weights, "ln_f") @ weights["wte.weight"].T
    following = last.argmax(-1)
    length = state.length + count
    ids = lax.dynamic_update_slice(state.ids, following[:, None], (0, length))
    return State(ids, keys, values, length), following


def jax_loop(layers: int) -> Callable[..., Any]:
    """The loop by hand: prompt and tokens in one program."""

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def run(weights, prompt, longest, width, end):
        batch = prompt.shape[0]
        shape = (batch, HEADS, longest, width // HEADS)
        ids = lax.dynamic_update_slice(jnp.zeros((batch, longest), prompt.dtype), prompt, (0, 0))
        none = [jnp.zeros(shape) for _ in range(layers)]
        state, _ = by_hand(weights, layers, State(ids, none, list(none), jnp.int32(0)), prompt)

        def token(state):
            last = lax.dynamic_slice(state.ids, (0, state.length), (batch, 1))
            return by_hand(weights, layers, state, last)[0]

        return lax.while_loop(lambda state: state.length < end - 1, token, state).ids

    return run


def model_of(layers: int, width: int) -> Any:
    """A GPT-2 of random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_head=HEADS, n_embd=width, bos_token_id=1, eos_token_id=None
    )
    return GPT2LMHeadModel(config).eval()


def compare(layers: int, width: int, batch: int, count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for ``count`` tokens in each way, by rounds; the first call of each is left out."""
    model = model_of(layers, width)
    prompt = torch.randint(3, 50000, (batch, 16), generator=torch.Generator().manual_seed(1))
    longest = 1 << (16 + count - 1).bit_length()
    asked: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    asked["pad_token_id"] = 0
    device = model_of(layers, width).to("jax")
    names = {n.removeprefix("transformer."): p for n, p in device.named_parameters()}
    weights = {n: torch_jax.to_jax(p.detach()) for n, p in names.items()}
    tokens, loop = jnp.asarray(prompt.numpy(), jnp.int32), jax_loop(layers)
    moved = prompt.to("jax")
    mask = torch.ones_like(moved)
    ways: dict[str, Callable[[], Any]] = {
        "JAX by hand": lambda: torch.tensor(
            loop(weights, tokens, longest, width, jnp.int32(16 + count))[:, : 16 + count].tolist()
        ),
        "generate_loop": lambda: device.generate(
            moved, attention_mask=mask, custom_generate=torch_jax.generate_loop, **asked
        ).cpu(),
        "CPU PyTorch": lambda: model.generate(
            prompt, attention_mask=torch.ones_like(prompt), **asked
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        made = {}
        for name, run in ways.items():
            start = time.perf_counter()
            made[name] = run()
            found[name].append(time.perf_counter() - start)
        for name, ids in made.items():
            if not torch.equal(ids, made["CPU PyTorch"]):
                raise AssertionError(f"{name} made other tokens than the CPU")
    return {name: seconds[1:] for name, seconds in found.items()}


def run(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments or [])
    found = compare(args.layers, args.width, args.batch, args.tokens, args.rounds)
    hand = found["JAX by hand"]
    print(f"{'':16} {'tokens/s':>9} {'time / JAX by hand (median of rounds)':>38}")
    for name, seconds in found.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, hand, strict=True))
        rate = args.batch * args.tokens / statistics.median(seconds)
        print(f"{name:16} {rate:9.1f} {ratio:38.2f}")


if __name__ == "__main__":
    run(sys.argv[1:])
