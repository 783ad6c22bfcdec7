"""``torch.compile`` beside compiled calls of other threads, and after them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torch_jax
from tests.support.jitted import both

PATIENCE = 30.0  # seconds


@pytest.mark.slow
@both
def test_threads_that_record_in_turn_leave_torch_compile_as_it_was(pure):
    began, may_end = threading.Event(), threading.Event()
    compiled = []

    @torch_jax.jit(pure=pure)
    def outer(x: torch.Tensor) -> torch.Tensor:
        began.set()
        assert may_end.wait(PATIENCE)
        return x + 1

    def compile_once(x: torch.Tensor) -> None:
        torch._dynamo.reset()
        torch.compile(lambda x: x * 2, backend=lambda graph, _: compiled.append(1) or graph)(x)

    def inner(x: torch.Tensor) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            may_end.set()
            first.result(PATIENCE)  # the other call begins before this one, and ends before it
            return x * 2

        torch_jax.jit(body, pure=pure)(x)

    x = torch.ones(2, device="jax")
    compile_once(x)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(outer, torch.ones(2, device="jax"))
        assert began.wait(PATIENCE)
        compile_once(x)  # while another thread records
        threads.submit(inner, x).result(PATIENCE)
    compile_once(x)
    assert len(compiled) == 3
