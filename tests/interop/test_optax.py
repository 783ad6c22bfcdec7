"""``torch_jax.optim.Optax``: against optax alone, bit for bit, and against PyTorch on the CPU."""

from __future__ import annotations

import copy
import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import torch_jax
from torch_jax.eager import kernel
from torch_jax.interop.optax_optimizer import Optax


def model(device: str = "jax", dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device, dtype)


def set_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = drawn.to(parameter.device, parameter.dtype)


def values(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().cpu() for parameter in module.parameters()]


def same(module: nn.Module, other: nn.Module, **close) -> None:
    for one, two in zip(values(module), values(other), strict=True):
        torch.testing.assert_close(one, two, **close or {"rtol": 0, "atol": 0})


def decayed(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


TRANSFORMATIONS = {
    "adamw": lambda: optax.adamw(1e-2, mask=decayed),
    "schedule": lambda: optax.adam(optax.cosine_decay_schedule(1e-2, 5)),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)),
    "masked": lambda: optax.masked(optax.adam(1e-2), decayed),
    "several": lambda: optax.MultiSteps(optax.lion(1e-2), every_k_schedule=2),
    "parts": lambda: optax.multi_transform(
        {"a": optax.adam(1e-2), "b": optax.set_to_zero()},
        lambda params: {name: "a" if "weight" in name else "b" for name in params},
    ),
    "average": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)),
    "factored": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "noisy": lambda: optax.noisy_sgd(1e-2, seed=3),
    "lbfgs": lambda: optax.lbfgs(0.1, linesearch=None),
    "free": lambda: optax.contrib.schedule_free_sgd(0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_steps_are_those_of_optax_alone(name):
    tx = TRANSFORMATIONS[name]()
    module = model()
    optimizer = Optax(module.named_parameters(), tx)
    params = {n: jnp.asarray(p.detach().cpu().numpy()) for n, p in module.named_parameters()}
    state = jax.jit(tx.init)(params)

    @jax.jit
    def update(params, grads, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for seed in range(4):
        set_gradients(module, seed)
        optimizer.step()
        grads = {n: jnp.asarray(p.grad.cpu().numpy()) for n, p in module.named_parameters()}
        params, state = update(params, grads, state)
    for n, parameter in module.named_parameters():
        np.testing.assert_array_equal(parameter.detach().cpu().numpy(), params[n])
    kept = [t for entry in optimizer.state.values() for t in entry.values()]
    assert len(kept) == len(jax.tree.leaves(state))


@pytest.mark.parametrize(
    "tx, settings, twin",
    [
        (optax.adamw, {"lr": 1e-2, "weight_decay": 0.1}, torch.optim.AdamW),
        (optax.sgd, {"lr": 1e-2, "momentum": 0.9}, torch.optim.SGD),
    ],
)
def test_steps_are_those_of_pytorch(tx, settings, twin):
    module, plain = model(), model("cpu")
    ours, theirs = Optax(module.parameters(), tx, **settings), twin(plain.parameters(), **settings)
    schedulers = [
        torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=8, cycle_momentum=False)
        for o in (ours, theirs)
    ]
    for seed in range(6):
        for one in (module, plain):
            set_gradients(one, seed)
        ours.step()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    same(module, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_float64_and_bfloat16_keep_their_dtypes():
    plain = model("cpu", torch.float64)
    for dtype, close in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        module, twin = model("jax", dtype), copy.deepcopy(plain)
        ours = Optax(module.parameters(), optax.adamw(1e-2, weight_decay=0.01))
        theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.01)
        for seed in range(3):
            for one, optimizer in ((module, ours), (twin, theirs)):
                set_gradients(one, seed)
                optimizer.step()
        assert {p.dtype for p in module.parameters()} == {dtype}
        assert {t.dtype for t in ours.state[module[0].bias].values()} == {dtype}
        same(module.double(), twin, rtol=close, atol=close)


def train(how, steps=6, scheduled=True, **settings):
    """Losses of a training by an executor, the module, and the compiled function if any."""
    module = model()
    optimizer = Optax(module.named_parameters(), optax.adamw, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        if scheduled:
            scheduler.step()
        return loss.detach()

    call = torch_jax.jit(step, **settings) if how == "jit" else step
    losses = []
    for seed in range(steps):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)).to("jax")
        if how == "lazy":
            with torch_jax.lazy():
                losses.append(call(x))
        else:
            losses.append(call(x))
    return [loss.item() for loss in losses], module, call


@pytest.mark.slow
def test_every_executor_gives_the_same():
    losses, module, _ = train("eager")
    for how, settings in (("lazy", {}), ("jit", {}), ("jit", {"pure": True})):
        others, other, call = train(how, **settings)
        assert others == pytest.approx(losses, rel=1e-5)
        same(other, module, rtol=1e-5, atol=1e-6)
    explained = call.explain()
    assert explained.observed == 1, explained
    assert explained.donated == 4 + 4 * 2 + 2  # parameters, moments, and two counts


def test_a_new_learning_rate_compiles_nothing(monkeypatch):
    module = model()
    optimizer = Optax(module.parameters(), optax.adamw, lr=1e-2)
    set_gradients(module, 0)
    optimizer.step()
    programs = []
    monkeypatch.setattr(kernel, "compile_listeners", [programs.append])
    for lr in (1e-3, 5e-4, 0.0):
        optimizer.param_groups[0]["lr"] = lr
        before = values(module)
        optimizer.step()
        moved = any(not torch.equal(a, b) for a, b in zip(before, values(module), strict=True))
        assert moved == (lr > 0)
    assert not programs and len(optimizer._programs) == 1


@pytest.mark.slow
def test_parameters_without_gradients_are_skipped():
    module, plain = model(), model("cpu")
    ours = Optax(module.named_parameters(), optax.sgd, lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for seed, skipped in enumerate(("0.", "2.", "none", "0.bias")):
        for one, optimizer in ((module, ours), (plain, theirs)):
            set_gradients(one, seed)
            for name, parameter in one.named_parameters():
                if name.startswith(skipped):
                    parameter.grad = None
            optimizer.step()
    same(module, plain, rtol=1e-6, atol=1e-6)


def test_a_frozen_parameter_has_no_state():
    module = model()
    module[0].requires_grad_(False)
    optimizer = Optax(module.parameters(), optax.adam(1e-2))
    module(torch.ones(1, 3, device="jax")).sum().backward()
    optimizer.step()
    assert list(optimizer.state[module[0].weight]) == ["0.count"]  # what the group shares
    assert module[0].bias not in optimizer.state
    assert sorted(optimizer.state[module[2].bias]) == ["0.mu", "0.nu"]


def test_a_step_without_gradients_does_nothing():
    optimizer = Optax(model().parameters(), optax.adam(1e-2))
    optimizer.step()
    assert not optimizer.state


def test_groups():
    module, plain = model(), model("cpu")

    def groups(of):
        return [{"params": of[0].parameters(), "lr": 0.01}, {"params": of[2].parameters()}]

    ours = Optax(groups(module), optax.sgd, lr=0.1)
    theirs = torch.optim.SGD(groups(plain), lr=0.1)
    for one, optimizer in ((module, ours), (plain, theirs)):
        set_gradients(one, 0)
        optimizer.step()
    assert len(ours._programs) == 1  # for both groups
    same(module, plain, rtol=1e-6, atol=1e-7)


def test_a_transformation_for_each_group():
    module, plain = model(), model("cpu")
    ours = Optax(module[0].parameters(), optax.sgd(0.1))
    ours.add_param_group({"params": module[2].parameters(), "tx": optax.adamw, "lr": 0.01})
    theirs = [
        torch.optim.SGD(plain[0].parameters(), lr=0.1),
        torch.optim.AdamW(plain[2].parameters(), lr=0.01, weight_decay=1e-4),
    ]
    for one in (module, plain):
        set_gradients(one, 0)
    for optimizer in (ours, *theirs):
        optimizer.step()
    same(module, plain, rtol=1e-5, atol=1e-6)
    assert "tx" not in ours.state_dict()["param_groups"][1]


# --- what would have no effect --------------------------------------------------------------------


def test_a_scheduler_without_effect_is_refused():
    optimizer = Optax(model().parameters(), optax.adam(1e-2))
    with pytest.raises(KeyError, match=r"fixed.*Optax\(params, optax.adamw, lr=1e-3\)"):
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    by_count = Optax(model().parameters(), optax.adam, lr=optax.linear_schedule(0.1, 0.0, 3))
    with pytest.raises(KeyError, match="schedule"):
        torch.optim.lr_scheduler.StepLR(by_count, 1)


def test_a_number_without_effect_is_refused():
    module = model()
    for optimizer, key in (
        (Optax(module.parameters(), optax.adam(1e-2)), "lr"),
        (Optax(module.parameters(), optax.adamw, lr=1e-2), "weight_decay"),
    ):
        set_gradients(module, 0)
        optimizer.step()
        optimizer.param_groups[0][key] = 0.5
        with pytest.raises(ValueError, match=f"{key} of parameter group 0 has no effect"):
            optimizer.step()


def test_injected_numbers_stand_in_the_group():
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    )
    module = model()
    optimizer = Optax(module.parameters(), tx)
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.param_groups[0]["lr"] = 0.0
    set_gradients(module, 0)
    optimizer.step()
    same(module, model())


def test_two_numbers_of_one_name_are_named_by_their_paths():
    injected = optax.inject_hyperparams(optax.sgd)
    tx = optax.chain(injected(learning_rate=0.1), injected(learning_rate=0.2))
    group = Optax(model().parameters(), tx).param_groups[0]
    assert group["0.hyperparams.learning_rate"] == 0.1
    assert group["1.hyperparams.learning_rate"] == 0.2


def test_parameters_on_the_cpu():
    module = model("cpu")
    optimizer = Optax(module.named_parameters(), optax.adam(1e-2))
    set_gradients(module, 0)
    with pytest.raises(RuntimeError, match=r"'0.weight'.*is on 'cpu'.*model.to\(\"jax\"\)"):
        optimizer.step()
    module.to("jax")
    set_gradients(module, 0)
    optimizer.step()


def test_without_optax(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=r'pip install "torch_jax\[optax\]"'):
        Optax(model().parameters(), None)


def test_wrong_transformations():
    parameters = list(model().parameters())
    with pytest.raises(TypeError, match="no transformation of optax"):
        Optax(parameters, 3)
    with pytest.raises(TypeError, match="lr: a transformation that is made has its numbers"):
        Optax(parameters, optax.adam(1e-3), lr=0.1)
    with pytest.raises(TypeError, match="momentun"):
        Optax(parameters, optax.sgd, lr=0.1, momentun=0.9)


# --- what a step takes besides gradients ----------------------------------------------------------


def test_a_value():
    module = model()
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(0.5, patience=1))
    optimizer = Optax(module.parameters(), tx)
    for value in (1.0, torch.tensor(1.0), torch.tensor(1.0, device="jax"), 1.0):
        set_gradients(module, 0)
        optimizer.step(value=value)
    scale = optimizer.state[module[0].weight]["1.scale"]
    assert scale.item() < 1 and len(optimizer._programs) == 1


@pytest.mark.slow
def test_a_line_search():
    target = jnp.array([1.0, -2.0, 3.0])

    def loss_of(params):
        return jnp.sum((params["0"] - target) ** 2 * jnp.arange(1.0, 4.0))

    x = nn.Parameter(torch.zeros(3, device="jax"))
    optimizer = Optax([x], optax.lbfgs())

    def closure():
        optimizer.zero_grad()
        weights = torch.arange(1.0, 4.0, device="jax")
        loss = ((x - torch.tensor([1.0, -2.0, 3.0], device="jax")) ** 2 * weights).sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"optimizer.step\(closure, value_fn=function\)"):
        optimizer.step(closure)
    losses = [optimizer.step(closure, value_fn=loss_of).item() for _ in range(10)]
    assert losses[-1] < 1e-9 < losses[0]


# --- saving ---------------------------------------------------------------------------------------


def test_states_are_saved_and_loaded():
    module = model()
    optimizer = Optax(module.named_parameters(), optax.adamw, lr=1e-2)
    for seed in range(3):
        set_gradients(module, seed)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 5e-3
    file = io.BytesIO()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    flat = {
        f"{at}.{key}": t for at, e in saved["optimizer"]["state"].items() for key, t in e.items()
    }
    assert flat["1.inner_state.0.mu"].shape == (4,) and flat["0.count"].item() == 3
    other = model()
    loaded = Optax(other.named_parameters(), optax.adamw, lr=1.0)
    other.load_state_dict(saved["model"])
    loaded.load_state_dict(saved["optimizer"])
    assert loaded.param_groups[0]["lr"] == 5e-3
    assert loaded.state[other[0].weight]["count"].dtype == torch.int32
    for one, by in ((module, optimizer), (other, loaded)):
        set_gradients(one, 7)
        by.step()
    same(module, other)


def test_states_keep_their_dtypes():
    module = model(dtype=torch.bfloat16)
    optimizer = Optax(
        module.parameters(), optax.sgd(0.1, momentum=0.9, accumulator_dtype="float32")
    )
    set_gradients(module, 0)
    optimizer.step()
    other = Optax(module.parameters(), optax.sgd(0.1, momentum=0.9, accumulator_dtype="float32"))
    other.load_state_dict(optimizer.state_dict())
    for parameter in module.parameters():
        one, two = (o.state[parameter]["0.trace"] for o in (optimizer, other))
        assert one.dtype == two.dtype == torch.float32 and torch.equal(one, two)
        assert one.untyped_storage()._cdata != two.untyped_storage()._cdata


def test_states_of_others_are_refused():
    module = model()
    set_gradients(module, 0)
    adam, sgd = (
        Optax(module.parameters(), optax.adam(1e-2)),
        Optax(module.parameters(), optax.sgd(1)),
    )
    adam.step()
    with pytest.raises(ValueError, match="transformation of optax keeps"):
        sgd.load_state_dict(adam.state_dict())
    injected = Optax(module.parameters(), optax.adam, lr=1e-2)
    with pytest.raises(ValueError, match="no lr in parameter group 0"):
        injected.load_state_dict(adam.state_dict())
    wrong = adam.state_dict()
    wrong["state"][0]["0.mu"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"0.mu of '0' has shape \[7\]"):
        adam.load_state_dict(wrong)


def test_copies():
    module = model()
    optimizer = Optax(module.parameters(), optax.adam, lr=1e-2)
    set_gradients(module, 0)
    optimizer.step()
    other, twin = copy.deepcopy((module, optimizer))
    for one, by in ((module, optimizer), (other, twin)):
        set_gradients(one, 1)
        by.step()
    same(module, other)


# --- with the rest of PyTorch ---------------------------------------------------------------------


@pytest.mark.slow
def test_hooks_and_scalers():
    module = model()
    optimizer = Optax(module.parameters(), optax.adam(1e-2))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    scaler = torch.amp.GradScaler("jax", init_scale=8.0)
    for scale in (1.0, float("inf")):
        optimizer.zero_grad()
        with torch.autocast("jax", torch.float16):
            loss = module(torch.ones(2, 3, device="jax")).sum() * scale
        scaler.scale(loss).backward()
        before = values(module)
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(a, b) for a, b in zip(before, values(module), strict=True))
        assert moved == (scale == 1.0)
    assert seen == ["before", "after"]


def test_gradients_of_views_and_shared_arrays():
    """A parameter that is a part of a larger tensor is written there; nothing else changes."""
    flat = torch.zeros(6, device="jax")
    part = nn.Parameter(flat[2:4])
    kept = part.detach().clone()
    optimizer = Optax([part], optax.contrib.schedule_free_sgd(0.1))  # its state is the parameter
    part.grad = torch.ones(2, device="jax")
    optimizer.step()
    z = optimizer.state[part]["z"].clone()
    assert flat.tolist() == [0.0, 0.0, *part.tolist(), 0.0, 0.0] and not torch.equal(part, kept)
    with torch.no_grad():
        part.zero_()
    assert torch.equal(optimizer.state[part]["z"], z)


def test_the_array_of_a_parameter_is_not_changed_under_another_owner():
    module = model()
    array = jnp.asarray(module[0].weight.detach().cpu().numpy())
    held = module[0].weight.detach().clone()
    optimizer = Optax(module.parameters(), optax.sgd(0.1))
    set_gradients(module, 0)
    optimizer.step()
    np.testing.assert_array_equal(held.cpu().numpy(), array)
    assert not torch.equal(held, module[0].weight)
