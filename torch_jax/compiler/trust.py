"""Whether a directory may be read as machine code: who else could have put something there.

Where the system knows no owners (Windows), all directories are trusted: there the directories of
users are closed to others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def objection(directory: Path) -> str | None:
    """Why a directory that exists is not to be trusted, None where it is.

    It must belong to this user, who alone may write there. Nor may everybody be able to put another
    directory in its place: a parent that all may write to needs the sticky bit, as ``/tmp`` has it.
    Groups and other owners of parents are believed.

    Raises:
      OSError: there is no such directory.
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
