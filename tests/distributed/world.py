"""Ranks as processes of Python, and what they found."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ROOT, environment


def variables(rank: int, size: int, port: int) -> dict[str, str | None]:
    """What ``torchrun`` sets, and settings as users have them."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {
        **{name: str(value) for name, value in ranks.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCH_JAX_JIT_FALLBACK": None,
        "TORCH_JAX_JIT_RECORDED_CALLS": None,
    }


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(
    *arguments: str,
    size: int = 2,
    seconds: float = 300,
    changes: Callable[[int], dict[str, str | None]] = lambda rank: {},
) -> list[tuple[int, str]]:
    """Python with these arguments as so many ranks: exit status and output of each.

    ``$RANK`` among the arguments stands for the rank's number; ``changes`` are those of its
    variables.
    """
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, *(str(rank) if one == "$RANK" else one for one in arguments)],
            env=environment(variables(rank, size, port) | changes(rank)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


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
