"""Every operator of PyTorch's database, compiled for a TPU and a GPU that are elsewhere.

``make targets TARGETS_ARGS="tpu-v5e-1 gpu-h200 --dtypes float32,bfloat16 -k conv"``: the first sample
of each entry and its gradient become one program, which the chips' own compiler compiles. Entries
that need values on the host are counted by themselves. The exit status is 1 where an entry does not
compile that is not in one of the lists below.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # the compilers need no chip, and must not look for one

import torch

import torch_jax
from tests.conformance.samples import differentiable, dtypes, entries, samples
from tests.support.arguments import on, tensors

TARGETS = ("tpu-v5e-1", "gpu-h200")

# Entries that do not come to a compiler, on any platform.
NOWHERE = frozenset(
    """
    chalf jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
    jiterator_binary_return_by_ref jiterator_unary linalg.eig sparse.mm.reduce sparse.sampled_addmm
    """.split()
)
# What a platform's compiler lacks.
LACKING: dict[str, frozenset[str]] = {"tpu": frozenset(), "gpu": frozenset()}


def main(arguments: list[str] | None = None) -> int:
    """Compile the entries that the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.on_targets", description=__doc__
    )
    parser.add_argument("targets", nargs="*", help=f"chips ({' '.join(TARGETS)})")
    parser.add_argument("--dtypes", default="float32", help="names with commas (%(default)s)")
    parser.add_argument("-k", default="", help="entries with this in their names")
    parser.add_argument("--every", type=int, default=1, help="every n-th entry")
    given = parser.parse_args(arguments)
    asked = [getattr(torch, name) for name in given.dtypes.split(",")]
    chosen = [one for one in entries("") if given.k in one.full_name][:: given.every]
    return max(
        _compiled(name, chosen, dtype) for name in given.targets or TARGETS for dtype in asked
    )


def _compiled(name: str, chosen: list[Any], dtype: torch.dtype) -> int:
    """Compile entries for a target; returns the exit status."""
    lacking = LACKING[name[:3]]
    counts: Counter[str] = Counter()
    with warnings.catch_warnings(), torch_jax.compile_for(name) as found:
        warnings.simplefilter("ignore")
        for entry in chosen:
            if dtype not in dtypes(entry) or entry.full_name in NOWHERE:
                continue
            start = time.perf_counter()
            outcome, told = _outcome(entry, dtype, found)
            if outcome == "failed" and entry.full_name in lacking:
                outcome = "lacking"
            counts[outcome] += 1
            seconds = time.perf_counter() - start
            if outcome == "failed" or seconds > 20:
                print(f"{name} {dtype} {entry.full_name}: {outcome}, {seconds:.0f} s {told}")
    print(f"{name} {dtype}:", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    sys.stdout.flush()
    return int(counts["failed"] > 0)


def _outcome(entry: Any, dtype: torch.dtype, found: Any) -> tuple[str, str]:
    """Return what came of an entry, and the compiler's words where it does not compile."""
    found.programs.clear()
    try:
        _call(entry, dtype)
        torch_jax.sync()
        programs = list(found.programs)
    except torch_jax.DataDependentError:
        return "need values", ""
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"
    try:
        for program in programs:
            _ = program.compiled
    except Exception as error:
        return "failed", str(error).partition("\n")[0][:300]
    return "compile", ""


def _call(entry: Any, dtype: torch.dtype) -> None:
    """Call an entry with its first sample, and take the gradient where it has one."""
    case = samples(entry, dtype)[0]
    first, args, kwargs = on("jax", (case.input, case.args, case.kwargs))
    result = entry(first, *args, **kwargs)
    if differentiable(entry, dtype):
        outputs = [one for one in tensors(result) if one.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


if __name__ == "__main__":
    sys.exit(main())
