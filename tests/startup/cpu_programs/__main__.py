"""Run programs: ``python -m tests.startup.cpu_programs [--awake] NAME ...``."""

from __future__ import annotations

import argparse
import json
import re
import warnings
from typing import Any

import torch

from tests.startup.cpu_programs import Program, programs

# addresses, and the folders of one run
_CHANGING = re.compile(r"0x[0-9a-f]+|/tmp/\w+")


def show(value: Any) -> Any:
    """A value as it is compared."""
    if isinstance(value, torch.Tensor):
        about = type(value).__name__, value.dtype, value.device, tuple(value.shape), value.layout
        return [*map(str, about), repr(value.detach())]
    if isinstance(value, list | tuple):
        return [show(one) for one in value]
    if isinstance(value, dict):
        return {str(key): show(one) for key, one in value.items()}
    return repr(value)


def outcome(function: Program) -> tuple[Any, list[str]]:
    """What a program gives, or raises, and of what it warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = show(function())
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return result, sorted({f"{each.category.__name__}: {each.message}" for each in caught})


def main() -> None:
    """Run the programs, after a use of the device where ``--awake`` asks for one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--awake", action="store_true")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    if options.awake:
        torch.ones(1, device="jax")
    outcomes = {name: outcome(programs()[name]) for name in options.names}
    is_used = hasattr(torch, "jax") and torch.jax.is_initialized()
    print(_CHANGING.sub("...", json.dumps({"outcomes": outcomes, "is used": is_used})))


if __name__ == "__main__":
    main()
