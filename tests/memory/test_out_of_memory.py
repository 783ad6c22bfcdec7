"""Tensors that found no room: an error where they are read, and nothing else is harmed."""

import pytest

from tests.support import processes

# Asks for tens of terabytes, which XLA refuses at once.
PROGRAM = """
import torch

kept = torch.arange(6.0, device="jax")
a = torch.ones(1 << 21, 1, device="jax")
sums = lambda a: a + a.t()
{by}

READS = [
    lambda b: b[0, 0].item(),
    lambda b: b.cpu(),
    lambda b: (b * 2)[0, 0].item(),
    lambda b: b.nonzero(),
    lambda b: torch.equal(b, b + 1),
    lambda b: b.untyped_storage().cpu(),
    lambda b: torch.jax.synchronize(),
]

for read in READS:
    try:
        read(sums(a))
    except torch.OutOfMemoryError as error:
        assert "out of memory" in str(error), error
        print("told")

    torch.jax.synchronize()
    assert (kept * 2).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["", "import torch_jax; sums = torch_jax.jit(sums, pure=True)"])
def test_every_read_raises(by):
    assert processes.output("-c", PROGRAM.format(by=by)).split() == ["told"] * 7
