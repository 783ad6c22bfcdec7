"""Every optimizer of ``torch.optim`` takes the steps that it takes on the CPU."""

import copy

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import executors
from torch_jax.dispatch import ladder

STEPS = 5
O = torch.optim  # noqa: E741

CASES = {
    "sgd": (O.SGD, {"lr": 0.1}),
    "sgd_momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd_nesterov": (O.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (O.Adam, {"lr": 0.01}),
    "adam_amsgrad": (O.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adamw": (O.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw_amsgrad": (O.AdamW, {"lr": 0.01, "amsgrad": True}),
    "nadam": (O.NAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam_decoupled": (
        O.NAdam,
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "radam": (O.RAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamax": (O.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "adadelta": (O.Adadelta, {"lr": 1.0, "weight_decay": 0.1}),
    "adagrad": (O.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
    "rmsprop": (O.RMSprop, {"lr": 0.01}),
    "rmsprop_centered": (
        O.RMSprop,
        {"lr": 0.01, "centered": True, "momentum": 0.9, "weight_decay": 0.1},
    ),
    "rprop": (O.Rprop, {"lr": 0.01}),
    "asgd": (O.ASGD, {"lr": 0.01, "t0": 2, "weight_decay": 0.1}),
    "adafactor": (O.Adafactor, {"lr": 0.01}),
    "muon": (O.Muon, {"lr": 0.01}),
    "lbfgs": (O.LBFGS, {"lr": 0.5}),
    "lbfgs_wolfe": (O.LBFGS, {"lr": 1.0, "line_search_fn": "strong_wolfe"}),
}
FUSED = ["sgd", "sgd_momentum", "sgd_nesterov", "adam", "adam_amsgrad", "adamw", "adamw_amsgrad"]
FUSED += ["adagrad"]
CAPTURABLE = ["adam", "adam_amsgrad", "adamw", "nadam", "nadam_decoupled", "radam", "adamax"]
CAPTURABLE += ["adadelta", "rmsprop", "rmsprop_centered", "rprop", "asgd"]
NO_FOREACH = (O.LBFGS, O.Muon)


def model(device="cpu", matrices_only=False):
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 6), (6, 3)] if matrices_only else [(4, 6), (6,), (6, 3), (3,), ()]
    params = [torch.randn(s, generator=generator) for s in shapes]
    return [p.to(device).requires_grad_() for p in params]


def forward(params, x):
    if len(params) == 2:
        return ((x @ params[0]).tanh() @ params[1]).square().mean()
    w1, b1, w2, b2, scale = params
    return (((x @ w1 + b1).tanh() @ w2 + b2) * scale).square().mean()


def batch(device):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).to(device)


def train(optimizer, params, steps=STEPS, schedule=None, executor="eager"):
    x = batch(params[0].device)

    def closure():
        optimizer.zero_grad()
        loss = forward(params, x)
        loss.backward()
        return loss

    step = executors.by(executor, lambda: optimizer.step(closure))
    losses = []
    for _ in range(steps):
        losses.append(step().item())
        if schedule is not None:
            schedule.step()
    return losses


def assert_equal(actual, expected, tolerance=2e-5):
    """Nested states are the same, wherever their tensors live."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            actual.detach().cpu(), expected.detach().cpu(), rtol=tolerance, atol=tolerance
        )
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_equal(actual[key], expected[key], tolerance)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_equal(a, e, tolerance)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert actual == expected


def run(name, device, executor="eager", **variant):
    kind, options = CASES[name]
    params = model(device, matrices_only=kind is O.Muon)
    optimizer = kind(params, **options, **variant)
    losses = train(optimizer, params, executor=executor)
    return params, losses, optimizer.state_dict()["state"]


def compare(name, jax_variant, cpu_variant):
    actual, expected = run(name, "jax", **jax_variant), run(name, "cpu", **cpu_variant)
    assert actual[0][0].device.type == "jax"
    assert_equal(actual, expected)


@executors.each
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_default(name, executor):
    with executors.outcome(executor, name):
        compare(name, {"executor": executor}, {})


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][0] not in NO_FOREACH])
def test_foreach(name, foreach):
    compare(name, {"foreach": foreach}, {"foreach": foreach})


@pytest.mark.parametrize("name", FUSED)
def test_fused(name):
    compare(name, {"fused": True}, {"fused": True})


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CAPTURABLE)
@pytest.mark.slow
def test_capturable(name, foreach):
    # the CPU has no capturable optimizers: what counts is that the steps are the same
    kind, options = CASES[name]
    actual = run(name, "jax", capturable=True, foreach=foreach)
    expected = run(name, "cpu", foreach=False)
    assert_equal(actual[:2], expected[:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("variant", [{"foreach": False}, {"fused": True}, {"capturable": True}])
def test_learning_rate_in_a_tensor(name, variant):
    if name == "sgd" and "capturable" in variant:
        variant = {"foreach": False}
    kind, options = CASES[name]
    results = []
    for device in ("jax", "cpu"):
        params = model(device)
        rate = torch.tensor(options["lr"], device=device)
        here = {"fused": True} if device == "cpu" else variant
        train(kind(params, lr=rate, **here), params)
        results.append(params)
    assert_equal(*results)


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "warm_up": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)],
        [2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_and_parameter_groups(name):
    results = []
    for device in ("jax", "cpu"):
        params = model(device)
        groups = [
            {"params": params[:2], "lr": 0.05},
            {"params": params[2:], "weight_decay": 0.1, "betas": (0.8, 0.9)},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        train(optimizer, params, schedule=SCHEDULES[name](optimizer))
        results.append((params, [g["lr"] for g in optimizer.param_groups]))
    assert_equal(*results)


@pytest.mark.parametrize("target", ["jax", "cpu"])
@pytest.mark.parametrize("name", ["sgd_momentum", "adam_amsgrad", "rmsprop_centered", "adagrad"])
def test_state_moves_between_devices(name, target):
    """A run that is saved on one device goes on, on the other, as if nothing had happened."""
    kind, options = CASES[name]
    source = "cpu" if target == "jax" else "jax"
    params = model(source)
    optimizer = kind(params, **options)
    train(optimizer, params)
    moved = [p.detach().to(target).requires_grad_() for p in params]
    other = kind(moved, **options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for state in other.state.values():
        assert all(v.device.type == target for k, v in state.items() if k != "step")
    assert_equal(other.state_dict()["state"], optimizer.state_dict()["state"])
    train(other, moved)
    train(optimizer, params)
    assert_equal(moved, params)


@pytest.mark.slow
def test_gradients_are_clipped_alike():
    results = []
    for device in ("jax", "cpu"):
        params = model(device)
        forward(params, batch(device)).backward()
        norms = [torch.nn.utils.clip_grad_norm_(params, 0.1, foreach=f) for f in (False, True)]
        torch.nn.utils.clip_grad_value_(params, 0.01)
        results.append((norms, [p.grad for p in params]))
    assert_equal(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sgd_momentum", "adam", "adamw"])
@pytest.mark.slow
def test_dtypes(name, dtype):
    kind, options = CASES[name]
    for variant in ({"fused": True}, {"foreach": True}):
        results = []
        for device in ("jax", "cpu"):
            params = [p.detach().to(dtype).requires_grad_() for p in model(device)]
            # the CPU's fused SGD leaves most bfloat16 parameters as they were
            optimizer = kind(params, **options, **(variant if device == "jax" else {}))
            for p in params:
                p.grad = p.detach() / 2
            optimizer.step()
            optimizer.step()
            state = optimizer.state_dict()["state"]
            assert all(
                v.dtype == dtype for s in state.values() for k, v in s.items() if k != "step"
            )
            results.append(params)
        assert_equal(*results, 2e-2 if dtype == torch.bfloat16 else 1e-10)


class Calls(TorchDispatchMode):
    """Counts the operators on the device; each is one call of a compiled function."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        lists = [a if isinstance(a, list | tuple) else [a] for a in args]
        flat = [t for items in lists for t in items if isinstance(t, torch.Tensor)]
        self.count += any(t.device.type == "jax" for t in flat)
        return op(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, variant, most",
    [
        ("sgd_momentum", "foreach", 4),
        ("adam", "foreach", 7),
        ("adamw", "foreach", 8),
        ("sgd_momentum", "fused", 1),
        ("adam", "fused", 2),
        ("adamw", "fused", 2),
    ],
)
def test_a_step_is_a_few_calls_and_compiles_once(name, variant, most):
    kind, options = CASES[name]
    params = [p for _ in range(5) for p in model("jax")]
    optimizer = kind(params, **options, **{variant: True})
    for p in params:
        p.grad = p.detach().clone()
    optimizer.step()
    optimizer.step()
    kernels = list(ladder.KERNELS_BY_OP.values())
    compiled = sum(len(kernel.cache) for kernel in kernels)
    for rate in (0.3, 0.2, 0.7):
        optimizer.param_groups[0]["lr"] = rate
        with Calls() as calls:
            optimizer.step()
        assert calls.count <= most
    assert sum(len(kernel.cache) for kernel in kernels) == compiled


def test_versions_of_what_lists_of_tensors_write():
    """Autograd finds by them that a saved tensor was written."""

    def versions(device):
        tensors = [torch.ones(2, device=device) for _ in range(3)]
        torch._foreach_add_(tensors[:2], 1)
        torch._foreach_addcdiv_(tensors[1:], tensors[1:], tensors[1:], 0.5)
        return [tensor._version for tensor in tensors]

    assert versions("jax") == versions("cpu")
