"""``python -m torch_jax plan``: memory and time of a Llama's training on chips and meshes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax

from torch_jax import target
from torch_jax.observe.checking import page
from torch_jax.planning import llama, sizes
from torch_jax.recorded.elsewhere import compile_for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--config", required=True, help=f"a config.json, or one of {', '.join(sizes.MODELS)}")
    add("--target", required=True, help=f"the chips: {target.NAMES} …")
    add(
        "--mesh", action="append", help="lengths of axes, such as data=4,fsdp=16,tensor=8; given "
        "several times, each is compiled (fsdp over all chips)",
    )  # fmt: skip
    add("--batch", type=int, required=True, help="sequences of a step, over all chips")
    add("--length", type=int, default=8192, help="tokens of a sequence (%(default)s)")
    add("--no-remat", action="store_true", help="keep each layer's values for the backward pass")
    add("--no-scan", action="store_true", help="run layers without a loop: compiling takes long")
    add("--json", metavar="FILE.json", help="write the pages as JSON, too")


def answer(given: argparse.Namespace) -> int:
    """Compile the training step for each mesh, and print a page for each; return 0 if one fits."""
    model, chips = sizes.model(given.config), target.parse(given.target).chips
    for name in ("batch", "length"):
        if getattr(given, name) < 1:
            raise ValueError(f"--{name} is a whole number from 1, not {getattr(given, name)}")
    meshes = {mesh: _axes(mesh, chips) for mesh in given.mesh or [f"fsdp={chips}"]}
    jax.config.update("jax_platforms", "cpu")  # compilers need no chip, and one may be in use
    reports = []
    again, loop = not given.no_remat, not given.no_scan
    for mesh, axes in meshes.items():
        with compile_for(given.target) as found:
            size = llama.train(model, axes, given.batch, given.length, again, loop)
            name = f"{given.config}, {mesh}: {size / 1e9:.2f} billion parameters"
            reports.append(page.checked(found, name))
        print(*page.lines(reports[-1]), "", sep="\n", flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps(reports, indent=1))
    return 0 if any(one["fits"] for one in reports) else 1


def _axes(mesh: str, chips: int) -> dict[str, int]:
    """Return the lengths of a mesh by axis.

    >>> _axes("fsdp=4,tensor=2", 8)
    {'fsdp': 4, 'tensor': 2}
    """
    found: dict[str, int] = {}
    product = 1
    for part in mesh.split(","):
        name, _, length = part.strip().partition("=")
        if name not in llama.AXES or name in found or not length.isdecimal():
            raise ValueError(
                f"--mesh {mesh}: {part!r} is none of data=, fsdp= and tensor=, each once, with a "
                "whole number"
            )
        found[name] = int(length)
        product *= found[name]
    if product != chips:
        raise ValueError(f"--mesh {mesh} has {product} places, and the target {chips} chips")
    return found
