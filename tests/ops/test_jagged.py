"""Jagged rows and padded ones against the CPU's kernels."""

import pytest
import torch

from tests.support.compare import check, to_jax

aten = torch.ops.aten
OFFSETS = torch.tensor([0, 2, 2, 5, 7])


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("values", [torch.randn(7, 3), torch.arange(7), torch.randn(7, 2, 3)])
def test_jagged_to_padded(values, length):
    check(
        lambda v, o: aten._jagged_to_padded_dense_forward(v, [o], [length], -1.5), values, OFFSETS
    )


@pytest.mark.parametrize("total", [None, 7])
def test_padded_to_jagged(total):
    def run(padded, offsets):
        return aten._padded_dense_to_jagged_forward(padded, [offsets], total)

    check(run, torch.randn(4, 3, 5), OFFSETS)
    with pytest.raises(RuntimeError, match="length 3 when max length"):
        run(*to_jax((torch.randn(4, 2, 5), OFFSETS)))


@pytest.mark.parametrize("executor", ["eager", "jit"])
def test_a_nested_tensor_is_padded(executor):
    def padded(a, b, weight):
        nested = torch.nested.as_nested_tensor([a, b], layout=torch.jagged)
        return (nested @ weight).to_padded_tensor(0.5)

    given = (torch.randn(n, 4, requires_grad=True) for n in (2, 3))
    check(padded, *given, torch.randn(4, 5, requires_grad=True), executor=executor)
