"""All measurements that need a card, in one run of less than 25 minutes.

``python -m benchmarks.accelerator`` prints as it goes and writes ``build/accelerator.json``, after
each section. A section is a process of its own with a time limit, so that one that dies costs no
other. ``--quick`` takes tiny sizes, for a machine without a card; names of sections run these only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

import torch_jax
from benchmarks import (
    attention,
    blocks,
    cases,
    cuda,
    jit_memory,
    jit_start,
    machine,
    models,
    ops,
    timing,
)
from benchmarks.timing import Samples, Timed, compare, in_fresh_process, sample
from torch_jax.doctor import page

OURS, PURE, BARE, EAGER, COMPILED = (
    "torch_jax.jit", "torch_jax.jit, pure", "hand-written JAX",
    "PyTorch, CUDA", "PyTorch, CUDA, inductor",
)  # fmt: skip
OPERATORS, SEED = 40, 0  # of the conformance tests
Facts = dict[str, Any]
TOLERANCE = 1e-4  # of a loss of float32, relative


class Wrong(Exception):
    """A section has found something that is not as it should be."""


# --- sections: each fills in a dict, of which nothing is lost where it fails ----------------------


def doctor(found: Facts, is_quick: bool) -> None:
    """Say what the machine is, and what ``python -m torch_jax doctor`` says."""
    examined = page.examine()
    print("\n".join(page.text(examined)))
    found |= {name: [one._asdict() for one in items] for name, items in examined.items()}
    found["conditions"] = machine.conditions()
    wrong = [one.name for items in examined.values() for one in items if one.problem]
    _refuse(wrong, "the doctor objects to")


def _refuse(wrong: list[str], message: str) -> None:
    if wrong:
        raise Wrong(f"{message}: {', '.join(wrong)}")


def smoke(found: Facts, is_quick: bool) -> None:
    """Train three steps by each executor, and ask an exported model for the first loss."""
    from tests.support.executors import EXECUTORS

    case = cases.SMALL_GPT
    want = _losses(case, "cpu", lambda step: step)
    ways: dict[str, Callable] = {**EXECUTORS, "jit, recorded": torch_jax.jit}
    calls = {name: functools.partial(_losses, case, "jax", way) for name, way in ways.items()}
    wrong = []
    for name, call in (calls | {"export": functools.partial(_exported, case)}).items():
        try:
            found[name] = losses = call()
            far = [abs(a - b) > TOLERANCE * b for a, b in zip(losses, want, strict=False)]
            wrong += [name] if any(far) else []
        except Exception as error:
            found[name] = _first_line(error)
            wrong.append(name)
        print(f"  {name:16} {found[name]}", flush=True)
    _refuse(wrong, f"losses differ from {want}, those of the CPU")


def _losses(case: cases.Case, device: str, way: Callable) -> list[float]:
    step = way(cases.torch_step(case, device))
    batch = [one.to(device) for one in case.made()[1]]
    return [step(*batch).item() for _ in range(3)]


def _exported(case: cases.Case) -> list[float]:
    model, (inputs, targets) = case.made()
    logits = torch_jax.export(model.to("jax").eval(), (inputs.to("jax"),)).call(inputs)
    return [case.loss(logits, targets).item()]


def conformance(found: Facts, is_quick: bool) -> None:
    """Run some operators of PyTorch's database against the CPU; a seed draws them."""
    from tests.conformance.samples import entries

    names = sorted(entry.full_name for entry in entries())
    drawn = random.Random(SEED).sample(names, 6 if is_quick else OPERATORS)
    tests = [f"tests/conformance/test_operators.py::test_operator[{name}]" for name in drawn]
    os.environ["CONFORMANCE_SAMPLES"] = "2"
    status, text = _output_of("-m", "pytest", "-q", "-k", "test_operator", *tests)
    found |= {"operators": drawn, "last line": text.splitlines()[-1]}
    found["failed"] = dict(re.findall(r"^FAILED .*?\[(\S+)\](.*)$", text, re.M))
    print(found["last line"])
    _refuse(list(found["failed"]) or ["pytest"] * bool(status), "operators differ from the CPU's")


def _output_of(*arguments: str) -> tuple[int, str]:
    """Run Python with these arguments; return its status and what it has printed."""
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def gpt(found: Facts, is_quick: bool) -> None:
    """Time training steps of GPT-2's smallest size."""
    _training(found, "SMALL_GPT" if is_quick else "GPT2", is_quick)


def resnet(found: Facts, is_quick: bool) -> None:
    """Time training steps of ResNet-50."""
    _training(found, "SMALL_RESNET" if is_quick else "RESNET50", is_quick)


_IN_BFLOAT16 = {"GPT2": blocks.gpt(models.GPT2), "SMALL_GPT": blocks.gpt(models.SMALL_GPT)}


def _training(found: Facts, name: str, is_quick: bool) -> None:
    """Find the milliseconds of a step by each contender: bfloat16 first, as people train."""
    case = getattr(cases, name)
    half = _IN_BFLOAT16.get(name) or case._replace(autocast=torch.bfloat16, jax_step=None)
    ways = [
        ("bfloat16", "highest", half),
        ("float32", "medium", case),
        ("float32", "highest", case),
    ]
    for dtype, precision, case in ways[:: 2 if is_quick else 1]:
        title = f"{name}, training step, {dtype}, products of precision {precision!r}"
        cuda.use_precision(precision)
        with jax.default_matmul_precision("highest" if precision == "highest" else "default"):
            contenders = {
                OURS: cases.training(case, "jax", compiled=True),
                PURE: cases.training(case, "jax", compiled=True, pure=True),
            }
            if case.jax_step is not None:
                contenders[BARE] = cases.bare_training(case)
            warm_up = 0.5 if is_quick else 3.0
            samples = sample(contenders, 1, 5 if is_quick else 20, 30.0, warm_up)
        samples |= _on_cuda(name, precision, dtype, len(samples[OURS].values))
        compare(title, samples, {})
        found[title] = {who: 1e3 * statistics.median(one.values) for who, one in samples.items()}


def _on_cuda(name: str, precision: str, dtype: str, count: int) -> Samples:
    """Time PyTorch's steps, in processes of their own, if PyTorch was built for CUDA."""
    if not torch.cuda.is_available():
        return {}
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ways = {EAGER: "eager", COMPILED: "inductor"}
    run = functools.partial(in_fresh_process, "benchmarks.cuda", name)
    return {
        title: Timed(run(way, precision, dtype, str(count), **off)) for title, way in ways.items()
    }


def attentions(found: Facts, is_quick: bool) -> None:
    """Time forms of attention, forward and backward together: milliseconds, MiB of temporaries."""
    torch.ones(1, device="jax")
    shapes = [(2, 2, 128, 64)] if is_quick else [(8, 12, 1024, 64), (2, 16, 4096, 128)]
    for dtype, shape in itertools.product((jnp.bfloat16, jnp.float32), shapes):
        calls, memory = attention.contenders(shape, True, dtype)
        measured = attention.measure(calls, 3 if is_quick else 15)
        title = f"{' x '.join(map(str, shape))} {dtype.dtype.name}, causal"
        found[title] = {name: (measured[name], memory[name]) for name in calls}
        print(f"  {title}: {found[title]}", flush=True)


def eager(found: Facts, is_quick: bool) -> None:
    """Time eager operators beside the bare jitted calls that do the same."""
    found["rows"] = timing.ROWS
    ops.run(5 if is_quick else 200)


def first_answers(found: Facts, is_quick: bool) -> None:
    """Time new processes to their first loss: without a cache on disk, and with it."""
    found["rows"] = timing.ROWS
    jit_start.run(1, 1, "SMALL_GPT" if is_quick else "GPT2")


def memory(found: Facts, is_quick: bool) -> None:
    """Measure bytes at the peak of a training step beside hand-written JAX."""
    found["rows"] = timing.ROWS
    jit_memory.run(1, "SMALL_GPT" if is_quick else "GPT2")


def ddp(found: Facts, is_quick: bool) -> None:
    """Train over all local cards by torchrun; over two processes where JAX runs on the CPU."""
    look = "import jax; print(jax.default_backend(), jax.local_device_count())"
    platform, cards = _output_of("-c", look)[1].split()
    found["processes"] = count = 2 if platform == "cpu" else int(cards)
    if count == 1:
        found["skipped"] = "there is one card: DistributedDataParallel needs two"
        print(found["skipped"])
        return
    run = f"-m torch.distributed.run --standalone --nproc-per-node={count} -m examples.ddp".split()
    with tempfile.TemporaryDirectory() as folder:
        status, text = _output_of(*run, "--checkpoint", f"{folder}/model.pt")
    print(text)
    found["losses"] = losses = [float(loss) for loss in re.findall(r"loss (\S+),", text)]
    if status or not losses or losses[-1] > 0.7 * losses[0]:
        raise Wrong(f"the ranks ended with status {status}, the losses of epochs are {losses}")


# --- the run --------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A part of the run.

    Attributes:
      run: called with the dict that it fills in, and whether sizes are to be tiny.
      most_seconds: after which it is ended.
    """

    run: Callable[[Facts, bool], None]
    most_seconds: int


SECTIONS = {
    "doctor": Section(doctor, 60),
    "smoke": Section(smoke, 120),
    "conformance": Section(conformance, 240),
    "gpt": Section(gpt, 240),
    "resnet": Section(resnet, 240),
    "attention": Section(attentions, 120),
    "eager": Section(eager, 120),
    "first answers": Section(first_answers, 180),
    "memory": Section(memory, 90),
    "ddp": Section(ddp, 60),
}  # 1,470 seconds at most


def main() -> int:
    """Run sections one after another; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("build/accelerator.json"))
    parser.add_argument("--here", action="store_true", help="run one section in this process")
    given = parser.parse_args()
    if given.here:
        return _here(given.sections[0], given.quick, given.out)
    names = given.sections or list(SECTIONS)
    unknown = set(names) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in names:
        print(f"\n=== {name} ===", flush=True)
        found[name] = one = _in_a_process(name, given.quick)
        print(f"{name}: {one['error'] or 'done'}, {one['seconds']:.0f} s", flush=True)
        given.out.write_text(json.dumps(found, indent=1))
    failed = [name for name, one in found.items() if one["error"]]
    print(f"\n{given.out}: {len(found)} sections, failed: {', '.join(failed) or 'none'}")
    return len(failed)


def _in_a_process(name: str, is_quick: bool) -> Facts:
    """Run a section in a process, and return its facts, error and seconds."""
    start, limit, error = time.perf_counter(), SECTIONS[name].most_seconds, ""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # others need memory, too
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        given = f"{'--quick' * is_quick} --here --out {file}".split()
        command = [sys.executable, "-m", "benchmarks.accelerator", name, *given]
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            status = child.wait(limit)
            error = f"its process ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            error = f"it took longer than {limit} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started
            child.wait()
        found = json.loads(file.read_text()) if file.exists() else {"facts": {}, "error": ""}
    found["error"] = error or found["error"]
    return found | {"seconds": time.perf_counter() - start}


class _Kept(dict[str, Any]):
    """Facts that are written to a file as they come: a section may be ended at its limit."""

    file: Path

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.write("it was ended")

    def write(self, error: str) -> None:
        """Write the facts so far, and why the section is not done."""
        self.file.write_text(json.dumps({"facts": self, "error": error}, default=str))


def _here(name: str, is_quick: bool, file: Path) -> int:
    facts, error = _Kept(), ""
    facts.file = file
    try:
        SECTIONS[name].run(facts, is_quick)
    except Exception as raised:
        error = _first_line(raised)
    facts.write(error)
    return 0


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


if __name__ == "__main__":
    sys.exit(main())
