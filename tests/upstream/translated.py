"""PyTorch's tests of many processes, written for one kind of device, as tests of another.

Most of them name ``cuda`` and ``nccl``. A copy of their folder names a device and a backend in
their place: one rule for the device under test and for the CPU, which is what failures are compared
with. Each process has one device, so that the device of a rank has no number.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

BACKENDS = {"jax": "jax", "cpu": "gloo"}
DEVICE_IDS = {"jax": '["jax:0"]', "cpu": "None"}  # for DistributedDataParallel

# Before anything of a test file is run, in whichever process imports it.
_FIRST = "import tests.upstream.ranks  # which device, how many of them\n"
_CALL = r"[^()]*(?:\([^()]*\)[^()]*)*"  # arguments, with calls among them
_RULES: tuple[tuple[str, str], ...] = (
    (rf'torch\.device\(\s*"cuda",{_CALL}\)', 'torch.device("@:0")'),
    (r'f?"cuda:[^"]*"', '"@:0"'),
    # the number of a rank, as that of its device
    (r"torch\.device\((?:self\.)?rank\)", 'torch.device("@:0")'),
    (r"torch\.cuda\.device\((?:self\.)?rank\)", 'torch.@.device("@:0")'),
    (r"gpus_for_rank\(self\.world_size\)\[self\.rank\]\[0\]", '"@:0"'),
    (r"(device_ids ?= ?)\[[^\]]+\]", r"\1%"),
    (r"torch\.cuda\.device_count\(\) < self\.world_size", "False"),
    (r'f"\{((?:self\.|cls\.)?(?:device_type|DEVICE_TYPE)(?:\(\))?)\}:[^"]*"', r"\1"),
    (r'f"\{((?:self\.|cls\.)?device_type\.type)\}:[^"]*"', r"\1"),
    (rf"\.cuda\({_CALL}\)", '.to("@")'),
    (r'devices\.append\("cuda"\)', 'devices[:] = ["@"]'),
    (r"torch\.cuda\.device_count\(\)", "torch.accelerator.device_count()"),
    (r"torch\.cuda\b(?!\.amp|\.nccl)", "torch.@"),
    (r'(["\'])cuda\1', r"\1@\1"),
    (r'"(cpu:gloo,)?(?:cuda:)?nccl"', '"#"'),
    (r"(?:dist\.|c10d\.)?Backend\.NCCL\b", '"#"'),
    (r"(?:dist\.|c10d\.)?is_nccl_available\(\)", "True"),
    (r'backend="gloo"', 'backend="#"'),  # it serves tensors of CUDA, and those of the CPU
    (r"\bMultiProcContinousTest\b", "MultiProcContinuousTest"),  # its name in PyTorch 2.6
)


def translated(source: str, device: str) -> str:
    """The text of a test file for a device.

    >>> translated('x = torch.device("cuda", self.rank % torch.cuda.device_count())', "jax")[-25:]
    'x = torch.device("jax:0")'
    """
    for pattern, words in _RULES:
        words = words.replace("@:0", device if device == "cpu" else f"{device}:0")
        words = words.replace("@", device).replace("#", BACKENDS[device])
        words = words.replace("%", DEVICE_IDS[device])
        source = re.sub(pattern, words, source)
    future = re.search(r"^from __future__ .*\n", source, re.MULTILINE)
    at = future.end() if future else 0
    return source[:at] + _FIRST + source[at:]


def copy(tests: Path, to: Path, device: str) -> None:
    """Write the folder of tests of many processes, translated."""
    shutil.copytree(tests / "distributed", to / "distributed")
    for file in to.rglob("test_*.py"):
        file.write_text(translated(file.read_text(), device))
