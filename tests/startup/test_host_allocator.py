"""The setting ``keep_host_memory``: freed memory stays with the process."""

from __future__ import annotations

import platform

import pytest

from tests.support.processes import output

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt"),
]

PROGRAM = """
import resource, sys
import torch
import torch_jax

a = torch.ones(2, device="jax") + 1
work = torch_jax.jit(lambda x: (torch.exp(x @ x.t()) @ x)[0, 0])
x = torch.rand(4096, 32, device="jax")
for _ in range(8):
    work(x).item()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(25):  # on a busy machine a call may come before the one before has freed its pages
    work(x).item()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_program_finds_the_pages_of_the_call_before():
    """64 megabytes are 16,384 pages: each call touches as many."""
    faults = {
        keep: int(output("-c", PROGRAM, new=True, TORCH_JAX_KEEP_HOST_MEMORY=keep))
        for keep in ("0", "1")
    }
    assert faults["1"] < faults["0"] / 4, faults


GROWTH = """
import ctypes
import torch_jax
from torch_jax.core import heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

heap.keep()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
before = resident()
blocks = [library.malloc(64 << 20) for _ in range(8)]
for block in blocks:
    library.memset(ctypes.c_void_p(block), 1, ctypes.c_size_t(64 << 20))
for block in blocks[:-1]:  # the last one keeps the heap as long as it is
    library.free(block)
heap.trim()
print(resident() - before)
"""


def test_free_blocks_go_back_to_the_kernel_where_the_heap_has_grown():
    """One of eight blocks of 64 megabytes is in use."""
    assert int(output("-c", GROWTH, new=True)) < 100
