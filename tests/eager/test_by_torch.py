"""PyTorch's own kernels on the memory of JAX's arrays: shared memory, copies, and XLA's share."""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.support import ledger
from tests.support.compare import assert_same
from torch_jax import config
from torch_jax.memory import shared


@pytest.fixture(autouse=True)
def _by_torch(_as_on_accelerators: None) -> Any:
    with config.temporarily("eager_on_cpu", "torch"):
        yield


def holds(tensor: torch.Tensor) -> str:
    """Return what the storage of a tensor holds."""
    (held,) = {"array", "host"} & set(vars(tensor.untyped_storage()))
    return held


def address(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor begins."""
    return shared.seen(tensor).untyped_storage().data_ptr()


def test_an_array_is_the_memory_that_a_kernel_has_filled():
    x = torch.arange(6.0, device="jax") + 1
    where = address(x)
    assert holds(x) == "host"
    array = torch_jax.to_jax(x)
    assert array.unsafe_buffer_pointer() == where and holds(x) == "array"
    assert address(x) == where and not array.committed
    assert (x * 2).tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_an_array_never_changes():
    x = torch.zeros(3, device="jax")
    array = torch_jax.to_jax(x)
    view = x[1:]
    view.add_(1)
    assert array.tolist() == [0.0, 0.0, 0.0] and x.tolist() == [0.0, 1.0, 1.0]
    given = jnp.ones(3)
    y = torch_jax.from_jax(given)
    y[0] = 5
    assert given.tolist() == [1.0, 1.0, 1.0] and y.tolist() == [5.0, 1.0, 1.0]


def test_writes_copy_once():
    x = torch_jax.from_jax(jnp.zeros(1000))
    x[3] = 1
    where = address(x)
    for n in range(10):
        x[n] = n
    assert address(x) == where
    x.resize_(2000)
    assert x[9] == 9 and x[1999] == 0


def test_views_of_one_storage_are_one_memory():
    x = torch.arange(12, device="jax").view(3, 4)
    column, flipped = x[:, 1], x.t()
    column += 10
    x.view(torch.int32)[0, 0] = 7
    flipped[2].mul_(2)
    expected = torch.arange(12).view(3, 4)
    expected[:, 1] += 10
    expected[0, 0] = 7
    expected.t()[2].mul_(2)
    assert_same(x, expected)
    assert_same(flipped, expected.t())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.uint16, torch.int64, torch.bfloat16, torch.float16,
        torch.float64, torch.complex64, torch.float8_e4m3fn,
    ],
)  # fmt: skip
def test_all_dtypes_cross_uncopied(dtype):
    x = torch.tensor([[0, 1], [2, 3]]).to(dtype).to("jax")
    where = address(x)
    assert torch_jax.to_jax(x).unsafe_buffer_pointer() == where
    assert torch.equal(x.cpu().view(torch.uint8), shared.seen(x).view(torch.uint8))


def test_conjugated_and_negated_views():
    x = torch.tensor([1 + 2j, 3 - 1j])
    y = x.to("jax")
    assert_same(y.conj() * y, x.conj() * x)
    assert_same(y.conj().imag + 1, x.conj().imag + 1)
    y.conj().add_(1j)
    x.conj().add_(1j)
    assert_same(y, x)


def test_what_is_random_is_the_same_whatever_runs_eager_operators():
    def draws() -> list[Any]:
        torch.manual_seed(3)
        x = torch.ones(5, device="jax")
        return [torch.rand(4, device="jax"), F.dropout(x), torch.randperm(6, device="jax")]

    mine = draws()
    with config.temporarily("eager_on_cpu", "xla"):
        assert all(torch.equal(a, b) for a, b in zip(mine, draws(), strict=True))


def test_nothing_is_compiled_for_a_model_that_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(model, nn.LazyLinear(8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    images, labels = torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    model(images)

    def train(device: str) -> list[float]:
        net = nn.Sequential(*model)
        net.load_state_dict({k: v.clone() for k, v in state.items()})
        net.to(device)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        x, y = images.to(device), labels.to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    state = {k: v.clone() for k, v in model.state_dict().items()}
    expected = train("cpu")
    before = ledger.programs()
    assert train("jax") == expected
    assert ledger.programs() == before


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32])
def test_attention_is_the_cpus(is_causal, masked):
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, h, 5, 8).to(device).requires_grad_() for h in (4, 2, 2))
        mask = None if masked is None else torch.eye(5).to(masked).to(device)
        out = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal and mask is None, enable_gqa=True
        )
        out.sin().sum().backward()
        return [out, q.grad, k.grad, v.grad]

    before = ledger.programs()
    actual = run("jax")
    assert ledger.programs() == before
    assert_same(actual, run("cpu"))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RMSNorm])
def test_what_the_cpu_composes_has_a_stand_in(cell):
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = (cell(4) if cell is nn.RMSNorm else cell(4, 3)).to(device)
        x = torch.randn(2, 4).to(device).requires_grad_()
        found = module(x)
        outputs = list(found) if isinstance(found, tuple) else [found]
        sum(o.sin().sum() for o in outputs).backward()
        return [*outputs, x.grad, *(p.grad for p in module.parameters())]

    before = ledger.programs()
    actual = run("jax")
    assert ledger.programs() == before
    assert_same(actual, run("cpu"))


ERRORS = {
    "shapes": lambda x: x + x[:2].new_ones(5),
    "an index": lambda x: x[torch.tensor([7], device=x.device)],
    "a cast": lambda x: x.long().add_(1.5),
    "memory that overlaps": lambda x: x[:1].expand(3).add_(1),
    "a dtype": lambda x: torch.softmax(x.long(), 0),
    "a label": lambda x: F.cross_entropy(x[None], torch.tensor([9], device=x.device)),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_the_cpus_and_name_the_call(case):
    with pytest.raises(Exception) as expected:
        ERRORS[case](torch.ones(3))
    with pytest.raises(expected.type) as actual:
        ERRORS[case](torch.ones(3, device="jax"))
    assert type(actual.value) is expected.type
    assert str(actual.value).startswith(str(expected.value).split("\n")[0].rstrip())
    assert "(in aten." in str(actual.value)


def test_autocast_of_the_cpu_is_not_the_devices():
    x = torch.ones(2, 2, device="jax")
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.float32


def test_a_compiled_step_and_eager_code_take_turns():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(4, 3, device="jax")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    expected = nn.Linear(3, 2)
    expected.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    compiled = torch_jax.jit(step)
    for run in (step, compiled, compiled, step, compiled, step):
        loss = expected(torch.ones(4, 3)).pow(2).sum()
        assert run().item() == pytest.approx(loss.item(), rel=1e-5)
        expected.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in expected.parameters():
                p.sub_(p.grad, alpha=0.1)


def test_rows_that_see_nothing_have_no_gradient_where_a_program_ran_forward():
    mask, generator = torch.ones(5, 5, dtype=torch.bool).tril(-1), torch.Generator().manual_seed(0)
    given = [torch.randn(2, 2, 5, 4, generator=generator) for _ in range(3)]
    ours = [x.to("jax").requires_grad_() for x in given]
    theirs = [x.requires_grad_() for x in given]
    with torch_jax.lazy():
        out = F.scaled_dot_product_attention(*ours, attn_mask=mask.to("jax"))
    out.square().sum().backward()  # by PyTorch's kernels
    F.scaled_dot_product_attention(*theirs, attn_mask=mask).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one.grad, other.grad)


def test_an_array_in_the_hands_of_others_keeps_its_values_while_threads_write():
    x = torch.zeros(1 << 16, device="jax")
    seen: list[np.ndarray] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            array = np.asarray(torch_jax.to_jax(x))
            seen.append(array.copy() - array)
            assert array.min() == array.max()

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(300):
        x.add_(1)
    done.set()
    thread.join()
    assert x.cpu().eq(300).all() and not any(difference.any() for difference in seen)


READ = {
    "printed": repr,
    "saved": lambda x: torch.save(x, io.BytesIO()),
    "pickled": pickle.dumps,
    "asked for": lambda x: (x.tolist(), x[0].item(), bool(x[1] == 0)),
}


@pytest.mark.parametrize("how", READ)
def test_what_reads_a_memory_leaves_it_to_be_written_without_a_copy(how):
    x = torch.zeros(3, device="jax")
    held = x.untyped_storage().host
    READ[how](x)
    x.add_(1)
    assert x.untyped_storage().host is held and held.tolist() == [1, 1, 1]
