"""Peak memory of the GPT's training step, beside hand-written JAX with donated state.

``python -m benchmarks.jit_memory ours GPT`` (or ``bare``, or ``GPT2``, another case) prints, in
bytes, what one process used.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

import jax

from benchmarks import cases, modes, reference
from benchmarks.timing import Timed, compare, in_fresh_process, together

ROUNDS = 3
TARGET = 1.05
OURS, BARE = "torch_jax.jit", "hand-written JAX"
WHAT = {
    "executable": "arguments, outputs and temporaries of the executable",
    "resident": "resident memory at its peak, compiling included",
    "device": "the device's memory at its peak",
}


def run(rounds: int = ROUNDS, case: str = "GPT") -> None:
    """Compare what the executable asks for, and what fresh processes were seen to use."""
    runs: dict[str, list[dict[str, Any]]] = {OURS: [], BARE: []}
    for _ in range(rounds):
        runs[OURS].append(in_fresh_process("benchmarks.jit_memory", "ours", case))
        runs[BARE].append(in_fresh_process("benchmarks.jit_memory", "bare", case))
    judged = "device" if "device" in runs[OURS][0] else "executable"
    for what in runs[OURS][0]:
        samples = {name: together(one[what] for one in some) for name, some in runs.items()}
        targets = {BARE: TARGET} if what == judged else {}
        compare(f"{case} training step: {WHAT[what]}", samples, targets, "MiB", 2**-20)


def used(who: str, case: cases.Case) -> dict[str, Timed]:
    """Bytes that training needs, by way of looking."""
    make = _ours if who == "ours" else _bare
    step, analysis = make(case)
    before = _resident()
    mode = modes.settle(step, 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"resident": Timed([peak - before], mode)}
    stats = jax.devices()[0].memory_stats()
    if stats:
        found["device"] = Timed([stats["peak_bytes_in_use"]], mode)
    lowered = Timed([_needed(analysis())], mode if who == "ours" else "")
    return {"executable": lowered, **found}


def _ours(case: cases.Case) -> tuple[cases.Call, cases.Call]:
    import torch_jax

    step = torch_jax.jit(cases.torch_step(case, "jax"))
    batch = [tensor.to("jax") for tensor in case.made()[1]]
    return lambda: step(*batch).item(), lambda: step.lower(*batch).memory_analysis()


def _bare(case: cases.Case) -> tuple[cases.Call, cases.Call]:
    model, batch = case.made()
    params, arrays = reference.params_of(model), reference.batch_of(batch)
    state = case.jax_init(params)
    shapes = jax.eval_shape(lambda *a: a, params, state, arrays)
    del params, state
    compiled = jax.jit(case.jax_step, donate_argnums=(0, 1))
    return cases.bare_training(case), lambda: compiled.lower(*shapes).compile().memory_analysis()


def _needed(analysis: Any) -> int:
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
    )


def _resident() -> int:
    """Bytes that this process holds in memory now (Linux; elsewhere at its peak so far)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    with jax.default_matmul_precision("highest"):  # of hand-written JAX: ours has PyTorch's
        print(json.dumps(used(sys.argv[1], getattr(cases, sys.argv[2]))))
