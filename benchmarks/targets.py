"""Programs for TPUs and GPUs beside hand-written JAX, as the chips' own compilers count them.

Nothing runs: ``jax[tpu]`` and ``jax[cuda13]`` compile for chips that are elsewhere. Float32
products are true float32 on both sides, as PyTorch has them.

``python -m benchmarks.targets gpu-h200 gpt`` counts some models on some chips.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import SingleDeviceSharding

import torch_jax
from benchmarks import blocks, cases, reference
from benchmarks.timing import note
from torch_jax import config, target
from torch_jax._private import jax_core
from torch_jax.observe.checking.costs import costs as costs_of

TARGETS = ("tpu-v5e-1", "tpu-v5p-1", "gpu-h200")
OURS, BARE = "torch_jax", "hand-written JAX"
WANTED = {"bytes": 1.10, "fusions": 1.10, "compile seconds": 1.2}


class Counted(NamedTuple):
    """Hold what a compiler says of a program.

    Attributes:
      bytes: megabytes that it moves.
      fusions: kernels that it launches, fused loops, products and calls of libraries alike.
      doubles: instructions of float64.
      temporaries: megabytes that it needs while it runs.
      seconds: how long it took to compile.
    """

    bytes: float
    fusions: int
    doubles: int
    temporaries: float
    seconds: float


def counted(compile_: Callable[[], Any]) -> Counted:
    """Compile, and count."""
    start = time.perf_counter()
    compiled = compile_()
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    return Counted(
        costs_of(text, jax_core.costs_of(compiled))["bytes accessed"] / 1e6,
        text.count(" fusion(") + text.count('custom_call_target="__cu'),
        text.count("= f64["),
        compiled.memory_analysis().temp_size_in_bytes / 1e6,
        seconds,
    )


def _of_second_call(make: Callable[[], Callable[[], Any]]) -> Any:
    """Return what the second call of a jitted function runs, compiled for the target."""
    with torch_jax.compile_for(config.get("target")) as found:
        call = make()
        call()
        call()
        return found.runs[-1].compiled


def ours(case: cases.Case) -> Any:
    """Return the training step of a case, compiled by torch_jax."""

    def make() -> Callable[[], Any]:
        step = torch_jax.jit(cases.torch_step(case, "jax"))
        batch = [one.to("jax") for one in case.made()[1]]
        return lambda: step(*batch)

    return _of_second_call(make)


def ours_forward(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return the forward pass of a model, compiled by torch_jax."""

    def make() -> Callable[[], Any]:
        jitted = torch_jax.jit(model.to("jax").eval())
        given = [one.to("jax") for one in inputs]
        return lambda: torch.no_grad()(jitted)(*given)

    return _of_second_call(make)


def bare(case: cases.Case) -> Any:
    """Return the training step of a case, in hand-written JAX."""
    model, batch = case.made()
    params, arrays = reference.params_of(model), reference.batch_of(batch)
    given = params, case.jax_init(params), arrays
    return _compiled(jax.jit(case.jax_step, donate_argnums=(0, 1)), given)


def bare_forward(function: Callable[..., Any], given: tuple) -> Any:
    """Return the forward pass in hand-written JAX, which writes over its caches if it has any."""
    donated = (0,) if isinstance(given[0], list) else ()
    return _compiled(jax.jit(function, donate_argnums=donated), given)


def _compiled(jitted: Any, given: Any) -> Any:
    """Return a hand-written function compiled for the target."""
    where = SingleDeviceSharding(target.devices()[0])
    forms = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), given)
    with jax.default_matmul_precision("highest"):
        return jitted.lower(*forms).compile()


def many_tensors(count: int = 400) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return AdamW alone over as many tensors of several sizes, ours and hand-written."""
    shapes = [((64, 64), (64,), (256, 64), (256,))[i % 4] for i in range(count)]

    def make() -> Callable[[], Any]:
        params = [torch.nn.Parameter(torch.ones(shape, device="jax")) for shape in shapes]
        optimizer = cases.adamw(params)
        for one in params:
            one.grad = torch.ones_like(one)
        return torch_jax.jit(optimizer.step)

    def by_hand() -> Any:
        params = {str(i): jnp.ones(shape) for i, shape in enumerate(shapes)}
        given = params, reference.adamw_init(params), params
        return _compiled(jax.jit(reference.adamw, donate_argnums=(0, 1)), given)

    return lambda: _of_second_call(make), by_hand


Compiles = Callable[[], Any]


def _of_case(case: cases.Case) -> tuple[Compiles, Compiles]:
    return lambda: ours(case), lambda: bare(case)


def _of_forward(made: Callable[[], blocks.Made]) -> tuple[Compiles, Compiles]:
    return lambda: ours_forward(*made()[0]), lambda: bare_forward(*made()[1])


def _of_its_forward(case: cases.Case) -> tuple[Compiles, Compiles]:
    def made() -> blocks.Made:
        model, (inputs, targets) = case.made()
        arrays = reference.batch_of((inputs, targets))
        return (model, (inputs,)), (case.jax_forward, (reference.params_of(model), arrays[0]))

    return _of_forward(made)


def contenders() -> dict[str, tuple[Compiles, Compiles]]:
    """Return what is compared: for each name, what compiles ours, and the hand-written one."""
    trained = {"gpt": cases.GPT, "resnet": cases.RESNET} | blocks.TRAINED
    with_forward = {name: trained[name] for name in ("gpt", "resnet")}
    return {
        **{name: _of_case(case) for name, case in trained.items()},
        **{f"{name}-forward": _of_its_forward(case) for name, case in with_forward.items()},
        "vit-forward": _of_forward(lambda: blocks.vit(torch.bfloat16)),
        "llama-decoding": _of_forward(lambda: blocks.decoding(torch.bfloat16)),
        "video-forward": _of_forward(lambda: blocks.video(torch.bfloat16)),
        "adamw-400": many_tensors(),
    }


def run(names: tuple[str, ...] = TARGETS, models: tuple[str, ...] = ()) -> None:
    """Print a table of counts and their ratios for each chip."""
    for name in names:
        with config.temporarily("target", name):
            print(f"\n{name}: {OURS} / {BARE} (ratio)")
            for model, (by_us, by_hand) in contenders().items():
                if not models or model in models:
                    _compare(f"{model} on {name}", counted(by_us), counted(by_hand))


def _compare(title: str, mine: Counted, theirs: Counted) -> None:
    ratios = np.divide(mine, np.maximum(theirs, 1e-9))
    shown = [
        f"{label} {a:.4g} / {b:.4g}" + (f" ({ratio:.2f})" if b else "")
        for label, a, b, ratio in zip(Counted._fields, mine, theirs, ratios, strict=True)
    ]
    print(f"  {title}: " + ", ".join(shown), flush=True)
    for label, field in (("bytes", 0), ("fusions", 1), ("compile seconds", 4)):
        note(f"{title}: {label}", OURS, BARE, float(ratios[field]), WANTED[label], "")


if __name__ == "__main__":
    chips = tuple(one for one in sys.argv[1:] if one.startswith(("tpu-", "gpu-")))
    run(chips or TARGETS, tuple(one for one in sys.argv[1:] if one not in chips))
