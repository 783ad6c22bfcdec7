"""Scripts written for CUDA, unmodified: what they print is what they print on the CPU."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

import torch_jax
from torch_jax.observe.running import script

SCRIPTS = Path(__file__).parent / "cuda_scripts"
ALONE = ("ddp",)  # of several processes
QUICK = ("checkpoints", "data_parallel", "graphs", "memory", "old_tensors", "prefetcher", "seeds")
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ALONE)
env = torch_jax.default_env()


@pytest.fixture
def as_a_program(monkeypatch):
    """What a script changes of the interpreter is taken back."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with torch.random.fork_rng(device_type="jax"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def redirected():
    """As ``python -m torch_jax run`` has it."""
    for name, value in {"redirect_cuda": True, "redirect_default": False}.items():
        torch_jax.config.set(name, value)
    env.enable_globally()
    try:
        yield
    finally:
        env.disable_globally()
        torch_jax.config.set("redirect_cuda", False)
        torch_jax.config.set("redirect_default", True)


def printed(name: str, *arguments: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert script.run(str(SCRIPTS / f"{name}.py"), list(arguments)) == 0
    return text.getvalue()


def assert_agree(actual: str, expected: str) -> None:
    """The same words, and numbers within two units of the last digit that is printed.

    XLA adds in another order than PyTorch; in ``amp.py``, whose numbers have two digits, operators
    round to bfloat16 here, and not on the CPU.
    """
    ours, theirs = actual.split(), expected.split()
    assert len(ours) == len(theirs) > 0, (actual, expected)
    for mine, other in zip(ours, theirs, strict=True):
        if re.fullmatch(r"-?\d+\.\d+", other):
            digits = len(other.partition(".")[2])
            assert float(mine) == pytest.approx(float(other), abs=2 * 10**-digits), (mine, other)
        else:
            assert mine == other, (actual, expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there, and would be used")
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_a_script_prints_what_it_prints_on_the_cpu(name, as_a_program):
    expected = printed(name)
    with redirected():
        actual = printed(name)
    assert_agree(actual, expected)
