"""XLA's compiler options, one table per platform and purpose, with the evidence beside each.

Options are given with each program and never through ``XLA_FLAGS``, which belong to the user: flags
set there are kept, and an option that this release of XLA does not know is left out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from torch_jax import target
from torch_jax.compiler import products


class Option(NamedTuple):
    """An option of XLA, its value, and the reason."""

    name: str
    value: Any
    why: str


_REDUCTIONS = "LIBRARY_FUSION_TYPE_REDUCE"

# For all programs, in every executor.
ALWAYS: dict[str, tuple[Option, ...]] = {
    "cpu": (
        Option(
            "xla_cpu_experimental_ynn_fusion_type",
            _REDUCTIONS,
            "XLA's own reductions are 3 to 10 times slower where they are over leading dimensions, "
            "and up to 30 times less exact (32 images of 32x32, 32 channels: 1.7 ms for 0.2). What "
            "they read is computed again in each, so that programs of layers that end in a norm "
            "grow with the square of their number: four take twice as long to compile. JAX's "
            "default has YNNPACK's convolutions, too, which are 2 to 4 times slower than those "
            "that they replace (jaxlib 0.10.2, two cores, 64 to 64 channels, 3x3 on 32x32, batch "
            "16: forward 18 ms with it, 9 without; gradients 74 and 27); of products see YNNPACK "
            "below",
        ),
    ),
    "gpu": (
        Option(
            "xla_allow_excess_precision",
            False,
            "XLA takes x.bfloat16().float() out of programs for GPUs, and float8 likewise, so that "
            "nothing is rounded (an H200, and programs compiled for one; TPUs' compiler keeps "
            "them). With rounding a Llama in bfloat16 moves as many bytes, and a GPT 6 % less",
        ),
    ),
}

# For whole programs: those of jit, torch.compile and exports.
WHOLE: dict[str, tuple[Option, ...]] = {
    "cpu": (
        Option(
            "xla_cpu_enable_concurrency_optimized_scheduler",
            False,
            "the scheduler for concurrency costs a training step 5 to 15 % on few cores",
        ),
        Option(
            "xla_disable_hlo_passes",
            "cse_barrier_expander",
            "this pass takes optimization barriers out before XLA merges equal computations: what "
            "torch.utils.checkpoint computes again would be kept instead (eight layers: 38 MiB of "
            "temporaries with the pass, 12 without)",
        ),
    ),
}

_CUBLAS = Option(
    "xla_gpu_enable_triton_gemm",
    False,
    "XLA compiles dozens of Triton kernels for each product, and takes the fastest. One of true "
    "float32 takes its compiler two to five times as long as one of bfloat16 or TF32 (up to 1.7 s "
    "before the driver's own compiler): the first step of GPT-2 took an H200 121 s in float32, and "
    "16 s in TF32. cuBLAS's kernels are compiled already",
)

# For programs of one operator: nothing is fused with a product.
OPERATOR: dict[str, tuple[Option, ...]] = {"gpu": (_CUBLAS,)}

# For whole programs whose matrix products gain by it (compiler/products.py says which).
BY_PRODUCTS: dict[str, tuple[Callable[[str], bool], Option]] = {
    "cpu": (
        products.suit_ynnpack,
        Option(
            "xla_cpu_experimental_ynn_fusion_type",
            f"LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,{_REDUCTIONS}",
            "products with transposed weights take 10 % less time, those of few rows half",
        ),
    ),
    "gpu": (products.are_exact, _CUBLAS),
}


def whole(program: str = "") -> dict[str, Any]:
    """Return the options of whole programs, on this platform; of one, where its text is given."""
    platform = target.platform()
    table = *ALWAYS.get(platform, ()), *WHOLE.get(platform, ())
    if program and platform in BY_PRODUCTS:
        suits, option = BY_PRODUCTS[platform]
        table += (option,) * suits(program)
    return _known(table)


def of_lowered(lowered: Any) -> dict[str, Any]:
    """Return the options of a whole program that JAX has lowered."""
    return whole(lowered.as_text() if target.platform() in BY_PRODUCTS else "")


def operator() -> dict[str, Any]:
    """Return the options of a single operator, fully optimised."""
    platform = target.platform()
    return _known((*ALWAYS.get(platform, ()), *OPERATOR.get(platform, ())))


@functools.cache
def _known(options: tuple[Option, ...]) -> dict[str, Any]:
    """Return the options that the user has not set, and that this release of XLA knows."""
    flags = os.environ.get("XLA_FLAGS", "")
    given = tuple((o.name, o.value) for o in options if f"--{o.name}" not in flags)
    if not given or _compiles(given):
        return dict(given)
    return dict(option for option in given if _compiles((option,)))


@functools.cache
def _compiles(options: tuple[tuple[str, Any], ...]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(dict(options))
    except Exception:  # XLA raises an error for an option that it does not know
        return False
    return True
