"""Compile a script's programs for its target, and describe memory, time and collectives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch_jax.core import absent
from torch_jax.observe.checking import hlo
from torch_jax.observe.checking.costs import costs as costs_of

_GB, _GIB = 1e9, 2.0**30


class Chip(NamedTuple):
    """The figures of one chip."""

    flops: float  # a second, at most, of matrix products in bfloat16
    memory: float  # bytes
    bandwidth: float  # bytes a second to and from memory


CHIPS = {
    "v5e": Chip(197e12, 16 * _GB, 819 * _GB),
    "v5p": Chip(459e12, 95 * _GIB, 2765 * _GB),
    "v6e": Chip(918e12, 32 * _GB, 1600 * _GB),
    "h100": Chip(989e12, 80 * _GB, 3350 * _GB),
    "h200": Chip(989e12, 141 * _GB, 4800 * _GB),
    "b200": Chip(2250e12, 180 * _GB, 7700 * _GB),
}
"""TPUs after docs.cloud.google.com/tpu/docs, GPUs after NVIDIA's data sheets (H100 SXM, H200 SXM,
HGX B200), without sparsity."""


def checked(found: Any, name: str, kept_in: Path | None = None) -> dict[str, Any]:
    """Compile the programs of a block of :func:`torch_jax.compile_for`, and return their needs.

    Of jitted functions, the programs of the last calls are compiled; without any, the largest
    recording. With ``kept_in`` all programs of jitted functions are compiled, and kept there.
    """
    for one in found.programs:
        one.kept_in = kept_in if one.name else None
    chip = CHIPS[found.target.chip]
    # of later steps: the last one of each function
    jitted = {one.name: one for one in found.runs if one.name}
    largest = sorted(found.programs, key=lambda one: one.operators)[-1:]
    programs = [_measured(one, chip) for one in list(jitted.values()) or largest]
    needed = max((one["needs"] for one in programs), default=0)
    return {
        "script": name,
        "target": found.target.name,
        "chips": found.target.chips,
        "available": chip.memory,
        "needed": needed,
        "fits": all(one["error"] is None for one in programs) and needed <= chip.memory,
        "programs": programs,
        "outside": found.outside,
        "looks": dict(absent.LOOKS),
        "kept": _kept(found, kept_in) if kept_in else None,
    }


def _kept(found: Any, folder: Path) -> dict[str, Any]:
    """Compile the other programs that are to be kept, and describe the folder."""
    for one in found.programs:
        if one.name:
            with suppress(Exception):  # the page names programs that do not compile
                _ = one.compiled
    sizes = [entry.stat().st_size for entry in folder.glob("*.entry")]
    return {"folder": str(folder), "programs": len(sizes), "bytes": sum(sizes)}


def _measured(program: Any, chip: Chip) -> dict[str, Any]:
    """Return the figures of the target's compiler for a program, for one chip."""
    report: dict[str, Any] = {
        "name": program.name, "line": program.line, "operators": program.operators,
        "calls": program.calls, "error": None, "causes": [],
    }  # fmt: skip
    start = time.perf_counter()
    try:
        compiled = program.compiled
    except Exception as error:
        return report | _failed(error, chip)
    memory, text = program.memory_analysis(), compiled.as_text()
    costs, (_, repeated) = costs_of(text, program.cost_analysis()), hlo.rounds(text)
    flops, moved = costs.get("flops", 0.0), costs.get("bytes accessed", 0.0)
    seconds = max(flops / chip.flops, moved / chip.bandwidth)
    arguments, results = memory.argument_size_in_bytes, memory.output_size_in_bytes
    results -= memory.alias_size_in_bytes
    return report | {
        "arguments": arguments,
        "results": results,
        "temporaries": memory.temp_size_in_bytes,
        "needs": arguments + results + memory.temp_size_in_bytes,
        "flops": flops,
        "moved": moved,
        "seconds": seconds,
        "unknown_loops": sum(one.rounds is None for one in repeated),
        "utilization": flops / chip.flops / seconds if seconds else 0.0,
        "collectives": hlo.collectives(text),
        "largest": [one._asdict() for one in hlo.largest(text)],
        "compile_seconds": time.perf_counter() - start,
    }


_USED = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG])")
_CAUSE = re.compile(r"Size: (\S+)\s+(?:Operator: op_name=\"([^\"]*)\")?.*?Shape: (\S+?)\{", re.S)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def _failed(error: Exception, chip: Chip) -> dict[str, Any]:
    """Return the error and the needs of a program that does not compile or does not fit."""
    text = str(error)
    used = _USED.search(text)
    needs = max(float(used[1]) * _UNITS[used[2]], chip.memory * 1.001) if used else 0
    causes = [f"{size} {shape} {name or ''}".strip() for size, name, shape in _CAUSE.findall(text)]
    return {"error": text.partition("\n")[0][:300], "needs": needs, "causes": causes[:3]}


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Return the page as lines of text."""
    chips = f"{report['chips']} chip{'s' * (report['chips'] != 1)}"
    yield f"{report['script']} on {report['target']}: {chips} of {_size(report['available'])}"
    if not report["programs"]:
        yield "Nothing was called on the device: move the model to it, .to('jax') or .to('cuda')."
        return
    share = 100 * report["needed"] / report["available"]
    verdict = "It fits" if report["fits"] else "IT DOES NOT FIT"
    if any(one["error"] and not one["needs"] for one in report["programs"]):
        verdict = "IT DOES NOT COMPILE"
    yield f"{verdict}: {_size(report['needed'])} a chip, {share:.0f} % of its memory"
    if not report["fits"] and report["needed"] > report["available"]:
        yield f"  {_size(report['needed'] - report['available'])} a chip are missing"
    for one in report["programs"]:
        yield ""
        yield from _of_program(one)
    yield ""
    jitted = any(one["name"] for one in report["programs"])
    if report["outside"] and jitted:
        yield f"outside of jit: {report['outside']} operators, which run one by one"
    elif report["outside"]:
        yield "no function is jitted: these operators run one by one, each a program of its own"
        yield "  @torch_jax.jit over the training step makes one program of them"
    if report["kept"]:
        yield "kept in {folder}: {programs} programs".format(**report["kept"])
        yield "  TPUs of this kind load them where TORCH_JAX_CACHE_DIR names the folder"
    for line, form in report["looks"].items():
        yield f"read, and given as 0: a {form} tensor at {line}"


def _of_program(one: dict[str, Any]) -> Iterator[str]:
    name = one["name"] or "operators up to a read value"
    yield f"{name}: {one['operators']} operators, {one['calls']} runs, to {one['line']}"
    if one["error"] is not None:
        yield f"  error             {one['error']}"
        yield from (f"    {cause}" for cause in one["causes"])
        return
    parts = ("arguments", "results", "temporaries")
    sizes = ", ".join(f"{part} {_size(one[part])}" for part in parts)
    yield f"  memory of a chip  {_size(one['needs'])}: {sizes}"
    bound = "by memory" if one["utilization"] < 0.999 else "by products"
    yield (
        f"  time              about {one['seconds'] * 1e3:.2f} ms, bound {bound}: "
        f"{_work(one['flops'])}, {_size(one['moved'])} moved; "
        f"{100 * one['utilization']:.0f} % of the peak (MFU)"
    )
    if one["unknown_loops"]:
        yield f"  loops counted once {one['unknown_loops']}: their rounds depend on values"
    for kind, (count, nbytes) in one["collectives"].items():
        yield f"  {kind:17} {count}, {_size(nbytes)}"
    for at, array in enumerate(one["largest"]):
        label = "largest arrays" if not at else ""
        yield (
            f"  {label:17} {_size(array['nbytes'])} {array['form']} {array['operator']} "
            f"{array['line']}".rstrip()
        )
    yield f"  compiled in       {one['compile_seconds']:.0f} s"


def _work(flops: float) -> str:
    return f"{flops / 1e12:.2f} TFLOP" if flops >= 1e11 else f"{flops / 1e9:.2f} GFLOP"


def _size(nbytes: float) -> str:
    """Return a number of bytes in words.

    >>> _size(2.5e9), _size(3e5), _size(512)
    ('2.50 GB', '0.3 MB', '0.5 kB')
    """
    if nbytes >= _GB / 10:
        return f"{nbytes / _GB:.2f} GB"
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
