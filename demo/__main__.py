"""``python -m demo``: run every part, then print one table and write the training curves."""

import argparse
import sys
import time
from pathlib import Path

import torch

from demo import generate, search, train
from demo.report import plot, table


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--device", default="jax", help="device to hold against the CPU")
    parser.add_argument("--question", action="append", help="ask this instead; may be repeated")
    parser.add_argument("--steps", type=int, help="training steps (200, with --quick 40)")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="where plots go")
    parser.add_argument("--quick", action="store_true", help="less text and fewer steps")
    return parser.parse_args()


def main() -> int:
    """Run the demo. Returns 1 if a way differs from CPU PyTorch by more than rounding."""
    args = arguments()
    device = torch.device(args.device)
    steps = args.steps or (40 if args.quick else 200)
    start = time.perf_counter()
    print(f"PyTorch {torch.__version__} on {device}, held against PyTorch's own CPU kernels")

    print("\n1. Search Python's documentation with a pretrained model (all-MiniLM-L6-v2)")
    questions = args.question or search.QUESTIONS
    found = search.run(device, questions, limit=100 if args.quick else None)
    print("\n2. Train a character-level GPT on the same text")
    ways = train.ways(device)
    gpt, gpt_runs = train.run_gpt(ways, steps)
    print("\n3. Train a CNN on handwritten digits")
    cnn, cnn_runs = train.run_cnn(ways, steps, dropout=0.25)
    print("\n4. Train it again without dropout, so that the losses can be compared")
    exact, _ = train.run_cnn(ways, min(steps, 60), dropout=0.0)
    print("\n5. Train a GPT-2 of transformers for a moment, and let it write")
    written = generate.run(device, min(steps, 100), tokens=40 if args.quick else 100)

    rows = [found, gpt, cnn, exact, written]
    print(f"\n{table(rows)}\n")
    args.output.mkdir(parents=True, exist_ok=True)
    curves = args.output / "training_curves.png"
    plot({"char GPT": gpt_runs, "digits CNN (own dropout masks)": cnn_runs}, curves)
    print(f"training curves: {curves}")
    print(f"{time.perf_counter() - start:.0f} s in all")

    failures = [failure for row in rows for failure in row.failures]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
