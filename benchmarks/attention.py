"""Attention: the form that is chosen, all scores at once, JAX's own, and PyTorch's on the CPU.

``python -m benchmarks.attention`` prints milliseconds, the least of several alternating runs, and
the memory that a program needs besides its arguments and results.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F

from torch_jax.compiler import options
from torch_jax.core.x64 import x64
from torch_jax.ops import attention, attention_kernels
from torch_jax.ops.attention_forms import SIZES, Sizes

CHOSEN, BARE = "chosen", "jax.nn"
SHAPES = [(8, 6, 128, 64), (2, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 4096, 64)]


def _ours(query, key, value, grad, is_causal: bool) -> Any:
    found = attention.attention(query, key, value, None, 0.0, is_causal, prng=jax.random.key(0))
    rest = None, None, 0, 0, 0.0, is_causal, None, None
    wanted = (True, True, True, False)
    given = grad, query, key, value, None, wanted, found[0], found[1], *rest
    return found[0], attention.attention_backward(*given)[:3]


def _jax(query, key, value, grad, is_causal: bool) -> Any:
    has_kernel = jax.default_backend() == "gpu" and query.dtype == jnp.bfloat16
    by = "cudnn" if has_kernel else "xla"

    def attend(*operands: jax.Array) -> jax.Array:
        layout = (x.swapaxes(1, 2) for x in operands)
        return jax.nn.dot_product_attention(
            *layout, is_causal=is_causal, implementation=by
        ).swapaxes(1, 2)

    out, transpose = jax.vjp(attend, query, key, value)
    return out, transpose(grad)


def _torch(operands: list[torch.Tensor], grad: torch.Tensor, is_causal: bool) -> Callable[[], Any]:
    def both() -> Any:
        out = F.scaled_dot_product_attention(*operands, is_causal=is_causal)
        return torch.autograd.grad(out, operands, grad)

    return both


def contenders(
    shape: tuple[int, ...], is_causal: bool, dtype: Any = jnp.float32
) -> tuple[dict[str, Any], dict[str, int]]:
    """What is called, forward and backward together, and the MiB of temporaries of each."""
    arrays = [np.random.RandomState(i).randn(*shape).astype(np.float32) for i in range(4)]
    given = [jnp.asarray(array, dtype) for array in arrays]
    everything = dict.fromkeys(SIZES, Sizes(*(1 << 62 for _ in Sizes._fields)))
    lowered = {}
    for name, function in ((CHOSEN, _ours), ("all scores", _ours), (BARE, _jax)):
        is_whole = mock.patch.dict(SIZES, everything if name == "all scores" else {})
        by_blocks = mock.patch.dict(attention_kernels.KERNELS, clear=name == "all scores")
        precise = jax.default_matmul_precision("highest")  # as PyTorch's are, and ours
        with x64(), is_whole, by_blocks, precise:
            jax.clear_caches()
            lowered[name] = jax.jit(function, static_argnums=4).trace(*given, is_causal).lower()
    with ThreadPoolExecutor() as pool:  # each takes an accelerator's compiler many seconds
        programs = pool.map(lambda one: one.compile(options.whole()), lowered.values())
        compiled = dict(zip(lowered, programs, strict=True))
    used = {name: one.memory_analysis().temp_size_in_bytes >> 20 for name, one in compiled.items()}
    return {name: functools.partial(_run, one, given) for name, one in compiled.items()}, used


def _run(program: Any, given: list[Any]) -> None:
    jax.block_until_ready(program(*given))


def by_torch(shape: tuple[int, ...], is_causal: bool) -> Callable[[], Any]:
    """PyTorch on the CPU, forward and backward together."""
    tensors = [torch.from_numpy(np.random.RandomState(i).randn(*shape)).float() for i in range(4)]
    return _torch([t.requires_grad_() for t in tensors[:3]], tensors[3], is_causal)


def measure(calls: dict[str, Any], repeats: int) -> dict[str, float]:
    """Milliseconds: the least of ``repeats`` rounds, in each of which every contender runs once."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], 1000 * (time.perf_counter() - start))
    return least


def main() -> None:
    """Print the table."""
    torch.ones(1, device="jax")
    for shape in SHAPES:
        for is_causal in (True, False):
            calls, memory = contenders(shape, is_causal)
            calls["PyTorch"] = by_torch(shape, is_causal)
            found = measure(calls, 3 if shape[2] > 1000 else 15)
            kind = "causal" if is_causal else ""
            print(f"{' x '.join(map(str, shape))} {kind}")
            for name, milliseconds in found.items():
                print(f"  {name:12}{milliseconds:10.2f} ms{memory.get(name, 0):8} MiB")


if __name__ == "__main__":
    main()
