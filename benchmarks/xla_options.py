"""XLA's options on the CPU, one at a time: times of running and compiling with and without each.

What pays stands in ``torch_jax/compiler/options.py`` with what was measured: run this again when
jaxlib changes. A ratio below 1 says that the option helps. Those marked with a star change what
programs compute, and are shown to be known: they round, or treat NaN and infinity, otherwise, or,
copies by regions, write over an array before a reshape of it is read (jaxlib 0.10.2).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import torch

import torch_jax
from benchmarks import cases
from benchmarks.timing import note, sample
from torch_jax.compiler import options

ROUNDS, CALLS = 7, 1
CANDIDATES: dict[str, dict[str, Any]] = {
    # what is set, taken back
    "YNNPACK, XLA's choice": {"xla_cpu_experimental_ynn_fusion_type": None},
    "concurrency scheduler": {"xla_cpu_enable_concurrency_optimized_scheduler": True},
    # YNNPACK, one kind at a time
    "YNNPACK: products": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"},
    "YNNPACK: products alone": {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
    },
    "YNNPACK: convolutions alone": {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
    },
    "YNNPACK: reductions": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"},
    "YNNPACK: elementwise": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_ELTWISE"},
    # of code generation
    "vectors of 128 bits": {"xla_cpu_prefer_vector_width": 128},
    "vectors of 512 bits": {"xla_cpu_prefer_vector_width": 512},
    "no fusion emitters": {"xla_cpu_use_fusion_emitters": False},
    "multi-output fusion": {"xla_cpu_use_multi_output_fusion": True},
    "no tiled emitter": {"xla_cpu_disable_tiled_emitter": True},
    "tiling propagation": {"xla_cpu_experimental_enable_tiling_propagation": True},
    "code in one part": {"xla_cpu_parallel_codegen_split_count": 1},
    "code in 8 parts": {"xla_cpu_parallel_codegen_split_count": 8},
    "LLVM at level 1": {"xla_backend_optimization_level": 1},
    "LLVM at level 2": {"xla_backend_optimization_level": 2},
    "no expensive LLVM passes": {"xla_llvm_disable_expensive_passes": True},
    "copies by regions *": {"xla_cpu_copy_insertion_use_region_analysis": True},
    "fast minimum and maximum *": {"xla_cpu_enable_fast_min_max": True},
    "fast math *": {"xla_cpu_enable_fast_math": True},
}


def _gradients(case: cases.Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The loss of a model and its gradients, as a function of JAX, and arguments."""
    model, batch = case.made()
    return _gradients_of(model, case.loss, batch)


def _gradients_of(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    fn, params, buffers = torch_jax.functional(model)
    loss_of = torch_jax.to_jax_function(loss)

    def step(params: Any, buffers: Any, inputs: Any, targets: Any) -> Any:
        return jax.value_and_grad(
            lambda params: loss_of(fn(params, buffers, inputs)[0], targets)
        )(params)  # fmt: skip

    return step, (params, buffers, *(tensor.numpy() for tensor in batch))


def _inference(case: cases.Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    model, batch = case.made()
    fn, params, buffers = torch_jax.functional(model.eval())
    return lambda p, b, x: fn(p, b, x)[0], (params, buffers, batch[0].numpy())


def _mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    batch = torch.randn(64, 512), torch.randint(0, 512, (64,))
    return _gradients_of(torch.nn.Sequential(*layers), cases.cross_entropy, batch)


WORKLOADS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "MLP, gradients": _mlp,
    "ResNet, inference": lambda: _inference(cases.RESNET),
    "ResNet, gradients": lambda: _gradients(cases.RESNET),
    "GPT, gradients": lambda: _gradients(cases.GPT),
}


def compiled(lowered: Any, args: Any, changes: dict[str, Any]) -> tuple[cases.Call, float] | None:
    """A call of the program compiled so, and the seconds that took; None if XLA refuses."""
    given = {name: v for name, v in (options.whole() | changes).items() if v is not None}
    start = time.perf_counter()
    try:
        program = lowered.compile(given)
        jax.block_until_ready(program(*args))
    except Exception as error:  # of this jaxlib, which does not know the option, or its value
        print(f"  refused: {str(error).splitlines()[0][:90]}")
        return None
    return lambda: jax.block_until_ready(program(*args)), time.perf_counter() - start


def compare(name: str) -> None:
    """Print, for each candidate, time and compile time relative to the options that are set."""
    function, args = WORKLOADS[name]()
    args = jax.device_put(args)
    lowered = jax.jit(function).lower(*args)
    base = compiled(lowered, args, {})
    assert base is not None
    ours, seconds = base
    print(f"\n{name}: compiled in {seconds:.1f} s as it is")
    for label, changes in CANDIDATES.items():
        other = compiled(lowered, args, changes)
        if other is None:
            continue
        times = sample({"set": ours, "changed": other[0]}, CALLS, ROUNDS)
        pairs = zip(times["set"].values, times["changed"].values, strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"  {label:28} {ratio:6.2f}x  compiled in {other[1] / seconds:5.2f}x", flush=True)
        note(f"XLA's options: {name}", label, "set", ratio, None, "")


def run() -> None:
    """Compare all candidates on all workloads."""
    for name in WORKLOADS:
        compare(name)
