"""The life of tensors and models: moved, freed, loaded, copied."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.compare import assert_same
from tests.support.models import Tied, is_tied, tied
from tests.support.steps import step_of
from tests.support.values import DEVICES
from torch_jax.memory import shared

TOKENS = torch.tensor([0, 3, 6, 3])


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 2) -> list[float]:
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        device = model.head.weight.device
        loss = F.cross_entropy(model(TOKENS.to(device)), TOKENS.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_alike(model: nn.Module, expected: nn.Module) -> None:
    """The same names, values, kinds and flags; ``model`` on jax and ``expected`` on the CPU."""
    theirs = dict(expected.named_parameters()) | dict(expected.named_buffers())
    ours = dict(model.named_parameters()) | dict(model.named_buffers())
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
        assert ours[name].requires_grad == value.requires_grad, name
        assert_same(ours[name], value, scale=5)


# --- moving ---------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
}
MOVES: dict[str, Callable[[nn.Module], Any]] = {
    "jax": lambda m: m.to("jax"),
    "cpu": lambda m: m.cpu(),
    "jax again": lambda m: m.jax(),
    "cpu by a tensor": lambda m: m.to(torch.ones(1)),
}


def _move_state(optimizer: torch.optim.Optimizer) -> None:
    """What users write after moving a model: the state goes where its parameter is."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and key != "step":
                state[key] = value.to(parameter.device)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_wherever_the_model_is_moved(name):
    plain, moved = tied(), tied()
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (plain, moved)]
    expected = [steps(plain, optimizers[0]) for _ in range(5)]
    parameters = list(moved.parameters())
    losses = [steps(moved, optimizers[1])]
    for move in MOVES.values():
        gradients = [p.grad for p in parameters]
        assert move(moved) is moved and is_tied(moved)
        assert all(a is b for a, b in zip(moved.parameters(), parameters, strict=True))
        assert all(p.grad is g for p, g in zip(parameters, gradients, strict=True))
        assert {g.device for g in gradients} == {p.device for p in parameters}
        assert set(optimizers[1].state) <= set(parameters)
        _move_state(optimizers[1])
        losses.append(steps(moved, optimizers[1]))
    for ours, theirs in zip(losses, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_state_dicts_of_optimizers_cross_devices():
    model, twin = tied(), tied().to("jax")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin)]
    steps(model, optimizers[0])
    twin.load_state_dict(model.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for state in optimizers[1].state.values():
        assert state["exp_avg"].is_jax and state["step"].device.type == "cpu"
    twin_losses = steps(twin, optimizers[1])
    assert twin_losses == pytest.approx(steps(model, optimizers[0]), rel=1e-4)
    back = torch.optim.AdamW(tied().parameters(), lr=0.01)
    back.load_state_dict(optimizers[1].state_dict())
    assert all(s["exp_avg"].device.type == "cpu" for s in back.state.values())


def _on_threads(work: Callable[[int], Any], count: int, at_once: bool = True) -> list[Any]:
    results: list[Any] = [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException as error:  # shown by the caller's comparison
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    for thread in threads:
        thread.join()
    return results


def test_one_model_is_moved_by_threads_in_turn():
    plain, moved = tied(), tied()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    expected = [steps(plain, optimizer)[0] for _ in range(4)]
    optimizer = torch.optim.SGD(moved.parameters(), lr=0.1, momentum=0.9)
    weight = moved.head.weight

    def work(index: int) -> float:
        moved.to(DEVICES[index % 2])
        _move_state(optimizer)
        assert moved.head.weight is weight is moved.embed.weight
        return steps(moved, optimizer)[0]

    assert _on_threads(work, 4, at_once=False) == pytest.approx(expected, rel=1e-4)


def test_models_are_moved_by_threads_at_once():
    models = [tied(i) for i in range(6)]
    weights = [m.head.weight for m in models]
    values = [w.detach().clone() for w in weights]

    def work(index: int) -> bool:
        model = models[index]
        for device in ("jax", "cpu", "jax", "cpu", "jax"):
            model.to(device)
            y = model(TOKENS.to(device)).sum()
            y.backward()
            if not (model.head.weight is weights[index] and is_tied(model)):
                return False
            if weights[index].grad.device != weights[index].device:
                return False
        return True

    assert _on_threads(work, 6) == [True] * 6
    for model, value in zip(models, values, strict=True):
        assert_same(model.head.weight.detach(), value)
        assert {p.device.type for p in model.parameters()} == {"jax"}


def test_a_move_that_fails_half_way_leaves_a_model_that_can_be_moved():
    model = tied().to("jax")
    count = 0

    def convert(tensor):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyError("in the middle")
        return tensor.cpu()

    weight = model.head.weight
    with pytest.raises(KeyError):
        model._apply(convert)
    model.to("jax")
    assert model.head.weight is weight and is_tied(model)
    assert {p.device.type for p in model.parameters()} == {"jax"}
    assert_alike(model, tied())


# --- freeing --------------------------------------------------------------------------------------


class _Memory:
    """Arrays on the device that were not there when this was made."""

    def __init__(self) -> None:
        gc.collect()
        torch.jax.synchronize()
        self.before = {id(a) for a in self._arrays()}
        self.kept = self._arrays()  # so that no id is used again

    @staticmethod
    def _arrays() -> list[Any]:
        return [*(a for a in jax.live_arrays() if not a.is_deleted()), *shared.held()]

    def new(self) -> list[tuple]:
        """Shapes of the new ones, but for scalars and for numbers that programs keep."""
        new = [a for a in self._arrays() if id(a) not in self.before and a.ndim]
        return sorted(tuple(a.shape) for a in new if not _is_number(a))


def _is_number(array: Any) -> bool:
    """Return whether a program keeps an array of numbers, beside its bits, for later calls."""
    holders = gc.get_referrers(array) if array.ndim == 1 else ()
    return any(type(one) is tuple and one and type(one[0]) is bytes for one in holders)


@pytest.fixture
def memory():
    """Counts live arrays while reference counting alone frees them."""
    warm = tied().to("jax")  # what the first use of an operator makes stays
    warm(TOKENS.to("jax")).sum().backward()
    del warm
    counted = _Memory()
    gc.disable()
    try:
        yield counted
    finally:
        gc.enable()


@pytest.mark.slow
def test_tensors_are_freed_when_they_go(memory):
    used = torch.jax.memory_allocated()
    x = torch.ones(1 << 16, device="jax")
    view = x[3:].view(1, -1)
    assert memory.new() == [(1 << 16,)]
    assert torch.jax.memory_allocated() >= used + (1 << 18)
    del x
    assert memory.new() == [(1 << 16,)]  # the view has it
    del view
    assert memory.new() == [] and torch.jax.memory_allocated() <= used


@pytest.mark.slow
def test_a_write_frees_what_was_there(memory):
    x = torch.ones(1000, device="jax")
    copied = x.clone()
    assert memory.new() == [(1000,)] * 2
    x.add_(1)
    assert memory.new() == [(1000,)] * 2
    del copied
    assert memory.new() == [(1000,)]
    x.data = torch.zeros(2, device="jax")
    assert memory.new() == [(2,)]
    x.set_()
    assert memory.new() in ([], [(0,)])


@pytest.mark.slow
def test_models_and_optimizers_are_freed(memory):
    model = tied().to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    steps(model, optimizer)
    assert len(memory.new()) > 10
    del model, optimizer
    gc.collect()  # modules with hooks and optimizers are cycles on every device
    assert memory.new() == []


@pytest.mark.slow
def test_graphs_are_freed_by_backward_and_when_they_go(memory):
    weight = torch.ones(50, 50, device="jax", requires_grad=True)
    loss = ((weight * 2).sin() @ weight).relu().sum()
    saved = len(memory.new())
    assert saved > 3
    loss.backward()
    assert memory.new() == [(50, 50), (50, 50)]  # the weight and its gradient
    weight.grad = None
    loss = ((weight * 2).sin() @ weight).relu().sum()
    del loss
    assert memory.new() == [(50, 50)]


@pytest.mark.slow
def test_moving_frees_the_other_side(memory):
    x = torch.ones(1000, device="jax")
    x = x.to("cpu")
    assert memory.new() == []
    model = tied()
    model.to("jax")
    assert len(memory.new()) > 4
    model.to("cpu")
    assert memory.new() == []


@pytest.mark.slow
def test_nothing_stays_of_a_forward_pass_that_raises(memory):
    def broken(_module, _args, _output):
        raise KeyError("in the middle")

    model = tied().to("jax")
    before = memory.new()
    handle = model.head.register_forward_hook(broken)
    for _ in range(3):
        try:
            model(TOKENS.to("jax"))
        except KeyError:
            pass
    assert memory.new() == before
    compiled = torch_jax.jit(lambda x: model(x))
    for _ in range(2):
        try:
            compiled(TOKENS.to("jax"))
        except KeyError:
            pass
    gc.collect()
    assert memory.new() == before
    try:
        torch.ones(2000, device="jax") @ torch.ones(3000, device="jax")
    except RuntimeError:
        pass
    assert memory.new() == before
    handle.remove()
    model(TOKENS.to("jax")).sum().backward()


def _train_compiled(memory: _Memory) -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 30)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())

    step = torch_jax.jit(step_of(model, optimizer))
    x = torch.ones(5, 30, device="jax")
    for _ in range(2):
        step(x)
    gc.collect()
    after_two = memory.new()
    assert after_two.count((30, 30)) == 2 * 4  # weights, gradients and two averages
    for _ in range(4):
        step(x)
        assert memory.new() == after_two  # what was written went at once


@pytest.mark.slow
def test_a_compiled_step_keeps_no_more_than_its_model(memory):
    _train_compiled(memory)
    gc.collect()
    assert memory.new() == []


@pytest.mark.slow
def test_checkpoints_and_saved_tensor_hooks_free_what_they_kept(memory):
    weight = torch.ones(40, 40, device="jax", requires_grad=True)

    def block(x):
        for _ in range(4):
            x = (x @ weight).sin()
        return x

    y = checkpoint(block, torch.ones(40, 40, device="jax", requires_grad=True), use_reentrant=False)
    assert len(memory.new()) == 3  # weight, input, output
    y.sum().backward()
    del y
    assert memory.new() == [(40, 40)] * 2
    weight.grad = None
    with torch.autograd.graph.save_on_cpu():
        y = block(weight)
    assert len(memory.new()) == 2
    y.sum().backward()
    del y
    assert len(memory.new()) == 2


# --- loading --------------------------------------------------------------------------------------


def _assert_works(model: Any, expected: nn.Module) -> None:
    assert_alike(model, expected)
    assert is_tied(model)
    assert_same(model.eval()(TOKENS.to("jax")), expected.eval()(TOKENS), scale=10)
    optimizers = [torch.optim.SGD(m.train().parameters(), lr=0.1) for m in (model, expected)]
    ours, theirs = steps(model, optimizers[0]), steps(expected, optimizers[1])
    assert ours == pytest.approx(theirs, rel=1e-4)


def _file(value: Any, path: Any) -> Any:
    torch.save(value, path)
    return path


def _assigned(state: Any) -> Any:
    with torch.device("meta"):
        model = Tied()
    model.scratch = torch.ones(2, device="jax")
    model.load_state_dict(state, assign=True)
    model.head.weight = model.embed.weight  # assignment unties on every device
    return model


def _from_meta(state: Any) -> Any:
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device="jax")
    assert is_tied(model)
    model.load_state_dict(state)
    model.scratch.fill_(1.0)
    return model


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "state dict": lambda m, path: _loaded(torch.load(_file(m.state_dict(), path))),
    "mmap": lambda m, path: _loaded(torch.load(_file(m.state_dict(), path), mmap=True)),
    "map_location": lambda m, path: _assigned(
        torch.load(_file(m.state_dict(), path), map_location="jax", weights_only=True)
    ),
    "mmap, map_location": lambda m, path: _assigned(
        torch.load(_file(m.state_dict(), path), map_location="jax", mmap=True, weights_only=True)
    ),
    "map_location a device": lambda m, path: _assigned(
        torch.load(_file(m.state_dict(), path), map_location=torch.device("jax", 0))
    ),
    "map_location a dict": lambda m, path: _assigned(
        torch.load(_file(copy.deepcopy(m).jax().state_dict(), path), map_location={"jax:0": "jax"})
    ),
    "saved on jax": lambda m, path: _assigned(
        torch.load(_file(copy.deepcopy(m).to("jax").state_dict(), path))
    ),
    "saved on jax, loaded on the CPU": lambda m, path: _loaded(
        torch.load(_file(copy.deepcopy(m).to("jax").state_dict(), path), map_location="cpu")
    ),
    "meta": lambda m, path: _from_meta(torch.load(_file(m.state_dict(), path))),
    "meta, mmap": lambda m, path: _from_meta(torch.load(_file(m.state_dict(), path), mmap=True)),
    "meta, map_location": lambda m, path: _from_meta(
        torch.load(_file(m.state_dict(), path), map_location="jax")
    ),
    "the model": lambda m, path: torch.load(
        _file(copy.deepcopy(m).to("jax"), path), weights_only=False
    ),
    "the model, map_location": lambda m, path: torch.load(
        _file(m, path), weights_only=False, map_location="jax"
    ),
    "deepcopy": lambda m, path: copy.deepcopy(copy.deepcopy(m).to("jax")),
    "pickle": lambda m, path: pickle.loads(pickle.dumps(copy.deepcopy(m).to("jax"))),
    "module on meta moved": lambda m, path: _from_meta(m.to("jax").state_dict()),
}


def _loaded(state: Any) -> Any:
    model = tied(1).to("jax")
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_model_comes_back_with_its_ties_buffers_and_hooks(way, tmp_path):
    model = tied()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.zero_grad()
    _assert_works(WAYS[way](copy.deepcopy(model), tmp_path / "model.pt"), model)


def test_safetensors_there_and_back(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    expected = tied()
    model = copy.deepcopy(expected).to("jax")
    with pytest.raises(RuntimeError, match="share memory"):  # as on every device
        save_file(model.state_dict(), tmp_path / "shared.safetensors")
    save_model(model, str(tmp_path / "model.safetensors"))
    other = tied(1).to("jax")
    assert load_model(other, tmp_path / "model.safetensors", device="jax") == (set(), [])
    _assert_works(other, copy.deepcopy(expected))
    third = tied(1)
    load_model(third, tmp_path / "model.safetensors")
    _assert_works(third.to("jax"), copy.deepcopy(expected))
    plain = {k: v.detach().clone() for k, v in expected.state_dict().items()}
    save_file({k: v.to("jax") for k, v in plain.items()}, tmp_path / "plain.safetensors")
    loaded = load_file(tmp_path / "plain.safetensors", device="jax")
    assert_same(dict(sorted(loaded.items())).values(), [plain[k] for k in sorted(plain)])
    with safe_open(tmp_path / "plain.safetensors", "pt", device="jax:0") as file:
        assert set(file.keys()) == set(plain)
        assert_same(file.get_tensor("head.bias"), plain["head.bias"])
        assert_same(file.get_slice("embed.weight")[1:3], plain["embed.weight"][1:3])
    assert_alike(_assigned(loaded), expected)


@pytest.mark.slow
def test_optimizers_are_saved_copied_and_loaded_with_their_models(tmp_path):
    expected = tied()
    reference = torch.optim.AdamW(expected.parameters(), lr=0.01)
    steps(expected, reference)
    model = copy.deepcopy(expected).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    pairs = [
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
        torch.load(_file((model, optimizer), tmp_path / "pair.pt"), weights_only=False),
    ]
    path = _file(optimizer.state_dict(), tmp_path / "optimizer.pt")
    told = torch.load(path, weights_only=True)
    fresh = copy.deepcopy(model)
    pairs.append((fresh, torch.optim.AdamW(fresh.parameters(), lr=0.01)))
    pairs[-1][1].load_state_dict(told)
    losses = steps(expected, reference)
    for copied, its in pairs:
        own = set(map(id, copied.parameters()))
        assert {id(p) for group in its.param_groups for p in group["params"]} == own
        assert steps(copied, its) == pytest.approx(losses, rel=1e-4)
    assert steps(model, optimizer) == pytest.approx(losses, rel=1e-4)  # the copies did not touch it


@pytest.mark.slow
def test_modules_of_torchscript_move_train_and_are_saved(tmp_path):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 5)).eval()
    scripted, x = torch.jit.script(copy.deepcopy(module)), torch.randn(2, 3)
    scripted.to("jax")
    tensors = (*scripted.parameters(), *scripted.buffers())
    assert {t.device.type for t in tensors} == {"jax"}
    assert_same(scripted(x.to("jax"))[0], module(x)[0])
    scripted(x.to("jax"))[0].sum().backward()
    module(x)[0].sum().backward()
    for moved, parameter in zip(scripted.parameters(), module.parameters(), strict=True):
        assert_same(moved.grad, parameter.grad)
    scripted.save(tmp_path / "scripted.pt")
    for device in DEVICES:
        loaded = torch.jit.load(tmp_path / "scripted.pt", map_location="cpu").to(device)
        torch.testing.assert_close(loaded(x.to(device))[0].cpu(), module(x)[0])
