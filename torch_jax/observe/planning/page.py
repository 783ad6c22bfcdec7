"""``python -m torch_jax plan``: what a training step needs, as a table or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator

from torch_jax.observe.planning import sizes
from torch_jax.observe.planning.plan import DTYPES, KINDS, REMAT, Plan, plan

_SAME = {"model": "tensor"}  # another name of an axis, as in the examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("--config", required=True, help=f"a config.json, or one of {', '.join(sizes.MODELS)}")
    add(
        "--mesh",
        required=True,
        help="lengths of axes, the innermost last, such as data=4,fsdp=16,tensor=8; 'model' is "
        "another name of tensor",
    )
    for kind, does in zip(KINDS, ("batch", "batch and matrices", "heads and units"), strict=True):
        add(f"--{kind}", metavar="AXIS", help=f"the axis of another name that splits {does}")
    add("--batch", type=int, required=True, help="sequences of a step, over all chips")
    add("--length", type=int, default=8192, help="tokens of a sequence (%(default)s)")
    add(
        "--chip",
        default="h100",
        help=f"one of {', '.join(sizes.CHIPS)}, or numbers: h100,network=25e9 (%(default)s)",
    )
    add("--dtype", choices=DTYPES, default="bf16", help="bf16 has float32 masters (%(default)s)")
    add("--remat", choices=REMAT, default="layer", help="what is computed again (%(default)s)")
    add("--no-scan", action="store_true", help="layers that are no loop of the program")
    add("--accumulate", type=int, default=1, help="parts of the batch, one after the other")
    add("--split-length", action="store_true", help="activations between layers over tensor, too")
    add("--no-flash", action="store_true", help="attention that keeps its scores")
    add("--efficiency", type=float, default=0.7, help="of the peak, while computing (%(default)s)")
    add("--json", action="store_true", help="print JSON")


def answer(given: argparse.Namespace) -> Iterator[str]:
    """What the command prints.

    Raises:
      ValueError: the step cannot be planned.
    """
    found = planned(given)
    if given.json:
        yield json.dumps(dataclasses.asdict(found) | {"total": found.total, "fits": found.fits})
        return
    yield from lines(found)


def planned(given: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    return plan(
        given.config,
        _axes(given),
        batch=given.batch,
        length=given.length,
        chip=given.chip,
        dtype=given.dtype,
        remat=given.remat,
        scan=not given.no_scan,
        accumulate=given.accumulate,
        split_length=given.split_length,
        flash=not given.no_flash,
        efficiency=given.efficiency,
    )


def _axes(given: argparse.Namespace) -> dict[str, int]:
    """The lengths of the mesh by kind of axis."""
    names = {getattr(given, kind): kind for kind in KINDS if getattr(given, kind)} | _SAME
    found: dict[str, int] = {}
    for part in given.mesh.split(","):
        name, _, length = part.strip().partition("=")
        kind = names.get(name, name)
        if kind in found:
            raise ValueError(f"--mesh {given.mesh}: axis {kind} is named twice")
        if kind in KINDS and not length.isdecimal():
            raise ValueError(
                f"--mesh {given.mesh}: the length of axis {name} is a whole number from 1, not "
                f"{length!r}"
            )
        if kind not in KINDS:
            raise ValueError(
                f"--mesh {given.mesh}: {part!r} is none of data=, fsdp=, tensor=; an "
                f"axis of another name is said to be one: --fsdp {name or 'name'}"
            )
        found[kind] = int(length)
    return found


def lines(found: Plan) -> Iterator[str]:
    """A plan as lines of text."""
    yield f"{found.parameters / 1e9:.2f} billion parameters on {_count(found.chips, 'chip')}"
    yield ""
    yield "memory of a chip"
    for name, size in found.memory.items():
        yield f"  {name:38}{size / 2**30:12.2f} GiB"
    yield f"  {'in all':38}{found.total / 2**30:12.2f} GiB"
    yield f"  {'there is':38}{found.available / 2**30:12.2f} GiB"
    yield ""
    yield "collectives of a step, of a chip"
    for one in found.collectives:
        name = f"{one.kind} of {one.what} over {one.axis}"
        waits = "  computing waits" if one.waits else ""
        yield f"  {name:42}{one.bytes / 1e9:9.2f} GB {one.seconds:9.3f} s{waits}"
    if not found.collectives:
        yield "  none"
    yield ""
    yield "time of a step"
    yield f"  {'operations of a chip':36}{found.flops / 1e12:14.1f} TFLOP"
    for name, seconds in found.seconds.items():
        yield f"  {_TIMES[name]:36}{seconds:14.3f} s"
    rate = found.tokens / found.seconds["step"] / found.chips
    yield f"  {'tokens a second, of a chip':36}{rate:14.0f}"
    yield f"  {'of the peak (MFU)':36}{100 * found.utilization:14.1f} %"
    if not found.fits:
        missing = (found.total - found.available) / 2**30
        yield ""
        advice = "What would fit:" if found.advice else "Split it over more chips."
        yield f"It does not fit: {missing:.1f} GiB are missing. {advice}"
        yield from (f"  {one}" for one in found.advice)


_TIMES = {"compute": "computing", "exposed": "waiting for collectives", "step": "in all"}


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
