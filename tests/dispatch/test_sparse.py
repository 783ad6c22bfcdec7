"""Sparse COO tensors of the device, and errors for other layouts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from torch_jax import config

INDICES = [[0, 1, 1], [1, 0, 0]]


def coo(device: str) -> torch.Tensor:
    values = torch.tensor([1.0, 2.0, 3.0], device=device)
    return torch.sparse_coo_tensor(torch.tensor(INDICES, device=device), values, (2, 3))


def hybrid(device: str) -> torch.Tensor:
    values = torch.arange(6.0, device=device).view(3, 2)
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]], device=device), values, (4, 2))


def dense(device: str, *shape: int) -> torch.Tensor:
    shape = shape or (2, 3)
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape).to(device)


CASES = {
    "coalesce": lambda d: coo(d).coalesce(),
    "coalesce_hybrid": lambda d: hybrid(d).coalesce(),
    "indices": lambda d: coo(d).coalesce().indices().contiguous(),
    "to_dense": lambda d: hybrid(d).to_dense(),
    "zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "to_sparse": lambda d: dense(d).sub(3).to_sparse(),
    "to_sparse_hybrid": lambda d: dense(d).to_sparse(1),
    "mm": lambda d: coo(d) @ dense(d, 3, 2),
    "dense_mm": lambda d: dense(d, 4, 2) @ coo(d),
    "mv": lambda d: coo(d) @ dense(d, 3),
    "addmm": lambda d: torch.sparse.addmm(dense(d, 2, 2), coo(d), dense(d, 3, 2), beta=2),
    "add": lambda d: coo(d) + coo(d),
    "add_in_place": lambda d: coo(d).add_(coo(d)),
    "add_coalesced": lambda d: (coo(d).coalesce() + coo(d).mul(2).coalesce())._values(),
    "dense_add": lambda d: dense(d) + coo(d),
    "dense_add_in_place": lambda d: dense(d).add_(coo(d), alpha=2),
    "mul": lambda d: coo(d) * 2,
    "mul_dense": lambda d: dense(d) * coo(d),
    "mul_broadcast": lambda d: coo(d) * dense(d, 2, 2, 3),
    "mul_exact": lambda d: coo(d).double() * 1.1,
    "mul_in_place": lambda d: coo(d).mul_(3),
    "div": lambda d: coo(d) / 2,
    "sqrt": lambda d: coo(d).sqrt(),
    "sum": lambda d: torch.sparse.sum(coo(d), 0),
    "mask": lambda d: dense(d).sparse_mask(coo(d).coalesce()),
    "moved": lambda d: coo("cpu").to(d),
    "copied": lambda d: copy.deepcopy(coo(d)),
    "copy_": lambda d: coo(d).mul(0).copy_(coo(d)),
    "double": lambda d: coo(d).double(),
    "t": lambda d: coo(d).t(),
    "zero_": lambda d: coo(d).zero_(),
    "view_as_real": lambda d: torch.view_as_real(coo(d) * 1j),
    "view_as_complex": lambda d: torch.view_as_complex(hybrid(d)),
    "index": lambda d: coo(d)[1],
    "promoted": lambda d: coo(d).int() + coo(d),
    "sub_promoted": lambda d: coo(d).to(torch.int8) - coo(d).to(torch.uint8),
    "dense_sub_promoted": lambda d: dense(d).to(torch.int8) - coo(d).to(torch.uint8),
    "dense_promoted": lambda d: dense(d).int() + coo(d),
}

# Computed by PyTorch's kernels for sparse tensors of the CPU.
OF_THE_CPU = {
    "mul_sparse": lambda d: coo(d) * hybrid(d).to_dense()[:2, :1].expand(2, 3).to_sparse(),
    "mul_sparse_in_place": lambda d: coo(d).mul_(coo(d)),
    "dense_mul_in_place": lambda d: dense(d).mul_(coo(d)),
    "div_in_place": lambda d: coo(d).div_(2),
    "floor_divide": lambda d: coo(d) // 2,
    "sqrt_in_place": lambda d: coo(d).coalesce().sqrt_(),
    "pow": lambda d: coo(d) ** 2,
    "cat": lambda d: torch.cat([coo(d), coo(d)]),
    "unsqueeze": lambda d: coo(d).unsqueeze(0),
    "permute": lambda d: coo(d).permute(1, 0),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([1], device=d)),
    "narrow_copy": lambda d: coo(d).narrow_copy(1, 0, 2),
    "sum_dim": lambda d: coo(d).sum(0),
    "norm": lambda d: coo(d).norm(),
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "sparse_mm": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "refused dtypes": lambda d: refusals(d),
}


def refusals(device: str) -> list[type]:
    """Return the errors of writes in place that would lose what is after the point."""
    whole, found = coo(device).int(), []
    for write in (
        lambda: whole.add_(coo(device)),
        lambda: whole.sub_(coo(device)),
        lambda: whole.mul_(2.5),
        lambda: whole.div_(2),
        lambda: whole.to_dense().add_(coo(device)),
    ):
        with pytest.raises(RuntimeError) as error:
            write()
        found.append(error.type)
    return found


def flat(device: str) -> torch.Tensor:
    """Without sparse dims: all values are added to one."""
    values = dense(device, 2, 3)
    none = torch.zeros(0, 2, dtype=torch.long, device=device)
    return torch.sparse_coo_tensor(none, values, (3,))


def scalar(device: str) -> torch.Tensor:
    return torch.tensor(2.0, device=device).to_sparse()


def empty(device: str) -> torch.Tensor:
    indices = torch.zeros(2, 0, dtype=torch.long, device=device)
    return torch.sparse_coo_tensor(indices, torch.ones(0, device=device), (0, 3))


def without_values(device: str) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1]], device=device)
    return torch.sparse_coo_tensor(indices, torch.ones(3, 0, device=device), (4, 0))


KINDS = (flat, scalar, empty, without_values, hybrid)
TAKEN = {
    "coalesce": lambda x: x.coalesce(),
    "dense": lambda x: x.to_dense(),
    "add": lambda x: x + x,
    "subtract": lambda x: x.to_dense().sparse_mask(x.coalesce()).sub_(x),
    "dense_add": lambda x: x.to_dense() + x,
    "dense_mul": lambda x: x.to_dense() * x,
    "mask": lambda x: torch.ones_like(x.to_dense()).sparse_mask(x.coalesce()),
    "again": lambda x: x.to_dense().to_sparse(),
    "no sparse dims": lambda x: x.to_dense().to_sparse(0),
    "number": lambda x: x + 2,
    "number in place": lambda x: x.add_(2),
}


def parts(tensor: torch.Tensor) -> Any:
    """A tensor as it is compared: dense, with what makes it sparse."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.layout == torch.strided:
        return tensor
    return tensor.to_dense(), tensor.is_coalesced(), str(tensor.layout), str(tensor.dtype)


@pytest.mark.parametrize("case", CASES)
def test_sparse_tensors_compute_as_on_the_cpu(case):
    assert_same(parts(CASES[case]("jax")), parts(CASES[case]("cpu")))


@pytest.mark.parametrize("case", OF_THE_CPU)
def test_other_operators_are_those_of_the_cpu(case):
    with config.temporarily("cpu_fallback", "silent"):
        assert_same(parts(OF_THE_CPU[case]("jax")), parts(OF_THE_CPU[case]("cpu")))


def test_gradients_of_sparse_products():
    def gradients(device: str) -> Any:
        values = dense(device, 3).requires_grad_()
        matrix = torch.sparse_coo_tensor(torch.tensor(INDICES, device=device), values, (2, 3))
        torch.sparse.sum(torch.sparse.softmax(matrix, 1) * matrix).backward()
        return values.grad

    with config.temporarily("cpu_fallback", "silent"):
        assert_same(gradients("jax"), gradients("cpu"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_tensors_without_dims_or_values(kind):
    def outcome(take: Any, device: str) -> Any:
        try:
            return take(kind(device)).to_dense()
        except Exception as error:
            return type(error)

    for take in TAKEN.values():
        assert_same(outcome(take, "jax"), outcome(take, "cpu"))


def test_they_go_to_the_cpu_and_are_printed():
    assert coo("jax").cpu().to_dense().equal(coo("cpu").to_dense())
    assert "layout=torch.sparse_coo" in repr(coo("jax"))


def test_recorded_functions_take_and_give_sparse_tensors():
    doubled = torch_jax.jit(lambda x: x * 2)
    for _ in range(3):
        assert_same(parts(doubled(coo("jax"))), parts(coo("cpu") * 2))


@pytest.mark.parametrize("kind", ["SparseAdam", "SGD", "Adagrad"])
def test_embeddings_are_trained_with_sparse_gradients(kind):
    def train(device: str) -> Any:
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=True).to(device)
        optimizer = getattr(torch.optim, kind)(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):  # gradients of two passes are added up
                table(torch.tensor([1, 1, 3], device=device)).pow(2).sum().backward()
            optimizer.step()
        return table.weight.detach(), *parts(table.weight.grad)

    assert_same(train("jax"), train("cpu"))


BAGS = {
    "sum": {},
    "mean": {"mode": "mean"},
    "weights": {"weighted": True},
    "padding": {"mode": "mean", "padding_idx": 4},
    "last offset": {"include_last_offset": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAGS)
def test_bags_have_sparse_gradients(case):
    options = {"mode": "sum"} | BAGS[case]
    weighted = options.pop("weighted", False)

    def train(device: str) -> Any:
        torch.manual_seed(0)
        table = nn.EmbeddingBag(6, 3, sparse=True, **options).to(device)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        index = torch.tensor([1, 2, 4, 5, 1, 3], device=device)
        begins = torch.tensor([0, 2, 2, 6], device=device)
        weights = torch.arange(1.0, 7.0, device=device) if weighted else None
        table(index, begins, per_sample_weights=weights).pow(2).sum().backward()
        optimizer.step()
        grad = table.weight.grad
        return table.weight.detach(), grad._indices(), grad._values(), *parts(grad)

    assert_same(train("jax"), train("cpu"))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_recorded_and_pure_functions_refuse_them(kind):
    table, index = kind(5, 2, sparse=True).to("jax"), torch.tensor([[1, 3]], device="jax")

    def step(index):
        table.zero_grad()
        table(index).sum().backward()
        return table.weight.grad._values()

    assert_same(torch_jax.jit(step)(index), step(index).cpu())
    with pytest.raises(NotImplementedError, match="sparse=False"):
        torch_jax.jit(step, pure=True)(index)


@pytest.mark.slow
def test_products_have_gradients():
    def gradients(device: str) -> Any:
        values = dense(device, 3).requires_grad_()
        weight = dense(device, 3, 2).requires_grad_()
        matrix = torch.sparse_coo_tensor(torch.tensor(INDICES, device=device), values, (2, 3))
        (matrix @ weight).pow(2).sum().backward()
        return values.grad, weight.grad

    assert_same(gradients("jax"), gradients("cpu"))


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


REFUSED = {
    "an operator": lambda: coo("jax").cos(),
    "csr": lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), device="jax"),
    "to csr": lambda: dense("jax").to_sparse_csr(),
    "moved csr": lambda: torch.eye(2).to_sparse_csr().to("jax"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to("jax"),
    "nested products": lambda: nested() @ dense("jax", 3, 2),
    "nested linear": lambda: nn.functional.linear(nested(), dense("jax", 2, 3)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("jax"),
    "nested of a batch": lambda: torch.nested.as_nested_tensor(dense("jax")),
    "nested with a gradient": lambda: (
        torch.nested.as_nested_tensor([dense("jax").requires_grad_()]) @ dense("jax", 3, 2)
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_served_says_what_to_do(case):
    with pytest.raises(NotImplementedError, match="device 'jax' does not do this with .* CPU"):
        REFUSED[case]()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_composed_quantization_runs(dtype):
    """Weights of eight bits with a scale for each row, as libraries compose them."""

    def linear(device: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(4, 8, generator=generator).to(device)
        x = torch.randn(2, 8, generator=generator).to(device)
        top = 127 if dtype == torch.int8 else 448
        scale = weight.abs().amax(1, keepdim=True) / top
        scaled = weight / scale
        packed = (scaled.round() if dtype == torch.int8 else scaled).to(dtype)
        assert packed.dtype == dtype
        return nn.functional.linear(x, packed.float() * scale)

    assert_same(linear("jax"), linear("cpu"))
