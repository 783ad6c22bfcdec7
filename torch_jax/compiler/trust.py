"""The trust in a directory of machine code: could another user have written there?

Where the system knows no owners (Windows), all directories are trusted: there the directories of
users are closed to others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def objection(directory: Path) -> str | None:
    """Return the reason against trust in a directory that exists, None where there is none.

    It must belong to this user, who alone may write there. Others must not be able to put another
    directory in its place: a parent that all may write to needs the sticky bit, like ``/tmp``.
    Groups and other owners of parents are believed.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = directory.resolve(strict=True)
    found = real.stat()
    if found.st_uid != os.geteuid():
        return f"{real} belongs to another user (uid {found.st_uid})"
    if found.st_mode & _OTHERS:
        return f"others may write to {real} (chmod go-w)"
    for parent in real.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may rename what is in {parent}"
    return None
