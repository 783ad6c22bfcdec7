"""Checks that need many devices: run as a program on eight virtual ones, whatever the tests use.

``python -m tests.support.run_on_mesh quick`` prints, as JSON, what went wrong in each check.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback

from tests.support.on_mesh import CHECKS

FLAG = "--xla_force_host_platform_device_count=8"
FILES = "arrays checkpoints checks interop jax_functions programs trainers training".split()
FILES = "arrays checkpoints checks compat interop jax_functions programs training".split()
for _name in FILES:  # they enter their checks
    importlib.import_module(f"tests.support.mesh_{_name}")


def main(kind: str) -> None:
    """Run checks, and print what each raised."""
    faults = {}
    for name, check in CHECKS[kind].items():
        start = time.perf_counter()
        try:
            check()
        except Exception:
            faults[name] = traceback.format_exc()
        print(f"{time.perf_counter() - start:5.1f} s  {name}")
    print(json.dumps({"checks": list(CHECKS[kind]), "faults": faults}))


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    main(sys.argv[1])
