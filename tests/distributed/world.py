"""Run the checks of this folder in the ranks of one program, and collect their findings."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.ranks import run


def differences(folder: Path, *modules: str) -> dict[str, str]:
    """What the checks of these modules found in any rank, by check; empty where all is well."""
    file = folder / "found"
    ended = run("-m", "tests.distributed.checks", str(file), *modules)
    assert all(status == 0 for status, _ in ended), ended
    found = [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(len(ended))]
    return {
        name: "\n".join(f"rank {r}: {f[name]}" for r, f in enumerate(found) if f[name])
        for name in found[0]
    }
