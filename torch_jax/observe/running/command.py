"""``python -m torch_jax run script.py``: a script written for CUDA, unmodified, on device jax."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from torch_jax import config
from torch_jax.environment import redirects
from torch_jax.observe.running import costs, page, script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; arguments after the script's name are the script's."""
    add_device(parser)
    parser.add_argument("--report", metavar="FILE.json", help="write the report as JSON, too")
    parser.add_argument("--quiet", action="store_true", help="print no report")
    script.add_arguments(parser)


def answer(given: argparse.Namespace) -> int:
    """Run the script and print the report, on stderr; returns the script's exit status."""
    if not (program := script.named(given)):
        return 2
    folder = tempfile.mkdtemp(prefix="torch_jax_run_")
    try:
        redirect(given.device)
        os.environ[costs.VARIABLE] = folder
        costs.listen()
        start = time.perf_counter()
        status = script.run(program, given.module is not None)
        seconds = time.perf_counter() - start
        costs.stop()
        report = page.summary(costs.together(costs.gathered(folder)), program[0], seconds, status)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rank = int(os.environ.get("RANK", "0"))  # of processes that torchrun has started
    if given.report:
        path = Path(given.report)
        path = path.with_suffix(f".{rank}{path.suffix}") if rank else path
        path.write_text(json.dumps(report, indent=1))
    if not given.quiet and not rank:
        sys.stdout.flush()
        print(page.text(report), file=sys.stderr)
    return status


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option whose value :func:`redirect` takes."""
    meaning = '"cuda" means jax; by "default" also tensors without a device (%(default)s)'
    parser.add_argument("--device", choices=("cuda", "default"), default="cuda", help=meaning)


def redirect(device: str) -> None:
    """Let ``"cuda"`` mean jax here, and in processes that the script starts."""
    settings = {"enabled": True, "redirect_cuda": True, "redirect_default": device == "default"}
    for name, value in settings.items():
        config.set(name, value)
        os.environ[f"TORCH_JAX_{name.upper()}"] = str(int(value))
    redirects.enable_globally()
