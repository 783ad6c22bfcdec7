"""Every operator of PyTorch's database, compiled for a TPU and a GPU that are elsewhere.

``make targets TARGETS_ARGS="tpu-v5e-1 gpu-h200 --dtypes float32,bfloat16 -k conv"``: the first
sample of each entry and its gradient become one program, which the chips' own compiler compiles.
Entries that need values on the host are counted by themselves. The exit status is 1 where an entry
does not compile that is not in one of the lists below.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
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
LACKING: dict[str, frozenset[str]] = {"tpu": frozenset({"cdouble"}), "gpu": frozenset()}


def main(arguments: list[str] | None = None) -> int:
    """Compile the entries that the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.on_targets")
    parser.add_argument("targets", nargs="*", help=f"chips ({' '.join(TARGETS)})")
    parser.add_argument("--dtypes", default="float32", help="names with commas (%(default)s)")
    parser.add_argument("-k", default="", help="entries with this in their names")
    parser.add_argument("--every", type=int, default=1, help="every n-th entry")
    parser.add_argument("--entries", help=argparse.SUPPRESS)  # of a child: compile just these
    given = parser.parse_args(arguments)
    if given.entries is not None:
        _compile(given.targets[0], given.entries.split(","), getattr(torch, given.dtypes))
        return 0
    chosen = [one for one in entries("") if given.k in one.full_name][:: given.every]
    status = 0
    for dtype in given.dtypes.split(","):
        asked = [one.full_name for one in chosen if getattr(torch, dtype) in dtypes(one)]
        status |= max(_asked(name, asked, dtype) for name in given.targets or TARGETS)
    return status


def _asked(name: str, left: list[str], dtype: str) -> int:
    """Compile entries for a target; return the exit status.

    A child process compiles them: where it dies, the next begins behind the entry at hand.
    """
    lacking = LACKING[name[:3]]
    left = [one for one in left if one not in NOWHERE]
    counts: Counter[str] = Counter()
    while left:
        options = ["--entries", ",".join(left), "--dtypes", dtype]
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, name, *options], stdout=subprocess.PIPE, text=True
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        if len(lines) < len(left):
            lines.append((left[len(lines)], "failed", f"the process ended ({done.returncode})", 0))
        left = left[len(lines) :]
        for entry, outcome, told, seconds in lines:
            if outcome == "failed" and entry in lacking:
                outcome = "lacking"
            counts[outcome] += 1
            if outcome == "failed" or seconds > 20:
                print(f"{name} {dtype} {entry}: {outcome}, {seconds:.0f} s {told}", flush=True)
    print(f"{name} {dtype}:", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return int(counts["failed"] > 0)


def _compile(name: str, asked: list[str], dtype: torch.dtype) -> None:
    """Compile entries for a target, and print a line of JSON for each."""
    by_name = {one.full_name: one for one in entries("")}
    with warnings.catch_warnings(), torch_jax.compile_for(name) as found:
        warnings.simplefilter("ignore")
        for one in asked:
            start = time.perf_counter()
            outcome, told = _outcome(by_name[one], dtype, found)
            print(json.dumps([one, outcome, told, time.perf_counter() - start]), flush=True)


def _outcome(entry: Any, dtype: torch.dtype, found: Any) -> tuple[str, str]:
    """Return what came of an entry, and the compiler's words where it does not compile."""
    found.programs.clear()
    try:
        kept = _call(entry, dtype)  # what nobody holds is not computed
        torch_jax.sync()
        del kept
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
    return ("compile" if programs else "need no program"), ""


def _call(entry: Any, dtype: torch.dtype) -> Any:
    """Call an entry with its first sample; return the results, and what has gradients now."""
    case = samples(entry, dtype)[0]
    first, args, kwargs = on("jax", (case.input, case.args, case.kwargs))
    result = entry(first, *args, **kwargs)
    if differentiable(entry, dtype):
        outputs = [one for one in tensors(result) if one.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
    return result, first, args, kwargs


if __name__ == "__main__":
    sys.exit(main())
