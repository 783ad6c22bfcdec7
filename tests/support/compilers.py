"""``python -m tests.support.compilers FOLDER``: the compilers of TPUs and GPUs, in a folder.

They are those that this JAX asks for as ``jax[tpu]`` and ``jax[cuda13]``, and some gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement

EXTRAS = "tpu", "cuda13"
INSTALLED = "jax", "jaxlib"  # in the environment, beside the folder


def requirements() -> list[str]:
    """Return what the extras of JAX ask for, beside JAX itself.

    >>> any(one.startswith("libtpu") for one in requirements())
    True
    """
    found = []
    for one in map(Requirement, metadata.requires("jax") or ()):
        marker, one.marker = one.marker, None
        wanted = marker and any(marker.evaluate({"extra": extra}) for extra in EXTRAS)
        if wanted and not marker.evaluate({"extra": ""}) and one.name not in INSTALLED:
            found.append(str(one))
    return sorted(found)


def main(folder: str) -> None:
    """Install them with pip."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", folder, *requirements()], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
