"""``python -m examples.trainers [library ...]``: losses on device jax, and on the CPU.

Without a name all of them, which takes a minute; ``--whole-step`` runs each step as one program.
"""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    "plain",
    "with_accelerate",
    "with_lightning",
    "with_ignite",
    "with_transformers",
    "with_peft",
    "with_trl",
)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", metavar="library", help=", ".join(NAMES))
    parser.add_argument("--whole-step", action="store_true", help="each step as one program")
    options = parser.parse_args()
    for name in options.libraries or NAMES:
        program = importlib.import_module(f"examples.trainers.{name}")
        for device in ("jax", "cpu"):
            whole_step = options.whole_step and device == "jax"
            losses = program.main(device, whole_step=whole_step)
            print(f"{name} on {device}:", *(f"{loss:.4f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()
