"""Run the graph on the CPU, then on JAX eagerly and compiled; interrupt a run; compare it all."""

import argparse
import sys
from dataclasses import dataclass, field, replace

import torch_jax
from examples.video_pipeline import training
from examples.video_pipeline.application import (
    Interrupted,
    Request,
    Result,
    Workers,
    make_video,
)
from examples.video_pipeline.compare import KINDS, LIMIT, differences, failures, kind
from examples.video_pipeline.compiled import compile_models, explanations
from examples.video_pipeline.models import Models, build
from torch_jax.capture.history import Explanation

NODES = {"embeddings": "encode", "latents": "denoise", "frames": "decode"}


def requests(quick: bool) -> list[Request]:
    """A video, one that is interrupted in the middle of the denoising loop, and two more."""
    size = {"steps": 4} if quick else {"steps": 8, "frames": 9, "size": 64}
    cat = Request("a cat bakes a cake", **size)
    dogs = Request("two dogs drive a red car", seed=1, **size)
    return [cat, replace(dogs, interrupt_after=size["steps"] // 2 - 1), dogs, cat]


@dataclass
class Session:
    """What the same requests gave in one mode; ``None`` where a run was interrupted."""

    results: list[Result | None] = field(default_factory=list)
    told: list[dict[str, Explanation]] = field(default_factory=list)  # by model, after each run

    @property
    def finished(self) -> list[Result]:
        return [result for result in self.results if result is not None]

    def counts(self, of: str) -> dict[str, list[int]]:
        """By model, how many ``recorded`` calls or ``compiles`` after each run."""
        return {name: [getattr(told[name], of) for told in self.told] for name in self.told[0]}


def run(wanted: list[Request], device: str, compiled: bool = False) -> tuple[Session, Models]:
    """One application: the same models for all requests, worker threads, one graph each."""
    models, session, workers = build(), Session(), Workers()
    if compiled:
        compile_models(models)
    for request in wanted:
        try:
            session.results.append(make_video(workers, models, request, device))
        except Interrupted as error:
            print(f"    {request.prompt!r}: {error}")
            session.results.append(None)
        else:
            print(f"    {request.prompt!r}: {sum(session.results[-1].seconds.values()):.1f} s")
        if compiled:
            session.told.append(explanations(models))
    workers.close()
    return session, models


def worst(session: Session, expected: Session) -> dict[str, float]:
    """The largest difference from the CPU in embeddings, latents and frames, over all runs."""
    found = dict.fromkeys(KINDS, 0.0)
    for ours, theirs in zip(session.finished, expected.finished, strict=True):
        for stage, apart in differences(ours, theirs).items():
            found[kind(stage)] = max(found[kind(stage)], apart)
    return found


def table(cpu: Session, eager: Session, compiled: Session) -> str:
    """Stages by line: differences, seconds of the last run, and of the first, which compiles."""
    head = ["stage", "max diff eager", "max diff jit", "limit"]
    head += ["CPU s", "eager s", "jit s", "first eager s", "first jit s"]
    lines = [head]
    apart = worst(eager, cpu), worst(compiled, cpu)
    for stage in KINDS:
        last = [s.finished[-1].seconds[NODES[stage]] for s in (cpu, eager, compiled)]
        first = [s.finished[0].seconds[NODES[stage]] for s in (eager, compiled)]
        numbers = [f"{d[stage]:.1e}" for d in apart] + [f"{LIMIT:.0e}"]
        lines.append([stage, *numbers, *(f"{s:.3f}" for s in last), *(f"{s:.1f}" for s in first)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def show_dropout(models: Models) -> list[str]:
    """Run the text encoder in training mode on the device; what is wrong with it."""
    encoder = models.text_encoder.to("jax")
    ids = training.tokens(models.tokenizer, "a cat bakes a cake " * 10, "jax")
    layers = training.dropped(encoder, ids)
    zeros, elements = sum(x.zeros for x in layers), sum(x.elements for x in layers)
    print(f"    {len(layers)} dropouts of p = {layers[0].p} made {zeros / elements:.1%} zeros")
    return training.failures(layers)


def main() -> int:
    """Returns 1 where a stage differs by more than rounding, or a model is compiled needlessly."""
    parser = argparse.ArgumentParser(prog="python -m examples.video_pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller frames and steps")
    wanted = requests(parser.parse_args().quick)
    torch_jax.config.set("cpu_fallback", "error")

    print("1. The graph on the CPU")
    cpu, _ = run(wanted, "cpu")
    print("2. The same on device jax, eagerly")
    eager, models = run(wanted, "jax")
    print("3. The same with the three models under torch_jax.jit")
    compiled, _ = run(wanted, "jax", compiled=True)
    print("4. The text encoder in training mode")
    failed = show_dropout(models)

    print(f"\n{table(cpu, eager, compiled)}\n")
    print("after each run, with every model reloaded:")
    for of in ("recorded", "compiles"):
        for name, counts in compiled.counts(of).items():
            print(f"  {of:8}  {name:12}", *counts)
    for mode, session in (("eager", eager), ("jit", compiled)):
        for ours, theirs in zip(session.finished, cpu.finished, strict=True):
            failed += [f"{mode}: {failure}" for failure in failures(ours, theirs)]
    failed += [
        f"compiled after the first run: {compiled.told[-1][name]}"
        for name, counts in compiled.counts("compiles").items()
        if counts[-1] != counts[0]
    ]
    for failure in failed:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
