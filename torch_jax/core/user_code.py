"""The user's code, apart from that of this package, of libraries and of Python, by its file."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

import torch

OWN = str(Path(__file__).parents[1]) + os.sep
_OTHERS = (sysconfig.get_paths()["stdlib"] + os.sep, str(Path(str(torch.__file__)).parent) + os.sep)
_INSTALLED = ("/site-packages/", "/dist-packages/")


@functools.cache
def is_library(file: str) -> bool:
    """Return whether the file of some code is Python's or this package's, or was installed.

    >>> is_library("/home/me/train.py"), is_library(torch.__file__), is_library("<stdin>")
    (False, True, False)
    """
    return file.startswith((OWN, *_OTHERS, "<frozen ")) or any(at in file for at in _INSTALLED)
