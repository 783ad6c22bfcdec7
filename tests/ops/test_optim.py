"""Operators of optimizers and gradient scaling: _foreach_, _fused_ and _amp_."""

import pytest
import torch

import torch_jax
from tests.support.compare import assert_same, check, check_raises, to_jax
from torch_jax._private import pytorch
from torch_jax.dispatch import ladder

aten = torch.ops.aten
SHAPES = [(3, 2), (4,), (), (0, 2)]
# PyTorch's own loops over the list serve as well
NOT_DERIVED = {"_foreach_clone", "_foreach_powsum"}
# CPU kernels that lack integers, where the formula has them
NO_INTEGERS = {"_foreach_frac", "_foreach_lerp", "_foreach_norm", "_foreach_powsum"}


def _foreach_overloads():
    for full in sorted(pytorch.all_op_names()):
        packet, _, overload = full.removeprefix("aten::").partition(".")
        if packet.startswith("_foreach_"):
            op = getattr(getattr(aten, packet), overload or "default")
            if not any(a.kwarg_only and a.alias_info for a in op._schema.arguments):
                yield op


def stem(op):
    return op._schema.name.removeprefix("aten::").removesuffix("_")


def tensors(dtype, seed=0):
    """In the domains of acos and log."""
    generator = torch.Generator().manual_seed(seed)
    made = [0.1 + 0.8 * torch.rand(s, generator=generator) for s in SHAPES]
    return [t.to(dtype) if dtype.is_floating_point else (t * 9).to(dtype) + 1 for t in made]


def argument(schema_argument, position, dtype):
    kind, name = str(schema_argument.real_type), schema_argument.name
    number = 0.5 if dtype.is_floating_point else 2
    if kind == "List[Tensor]":
        return tensors(dtype, seed=position)
    if kind == "List[number]":
        return [number + i for i in range(len(SHAPES))]
    if kind == "number":
        return 2 if name == "ord" else number
    if kind == "Tensor":
        values = torch.arange(1, 1 + len(SHAPES)).to(dtype)
        return values if name == "scalars" else values[1]
    return False if kind == "bool" else None


def arguments(op, dtype):
    positional = [a for a in op._schema.arguments if not a.kwarg_only]
    made = [argument(a, i, dtype) for i, a in enumerate(positional)]
    if stem(op) == "_foreach_max":  # there is no largest of no elements
        made = [[t for t in made[0] if t.numel()]]
    if stem(op) == "_foreach_mm":
        made = [[torch.ones(2, 3).to(dtype)], [torch.ones(3, 4).to(dtype)]]
    while made[-1] is None:
        made.pop()
    return made


def _raises_on_cpu(op, made):
    def copied(value):
        return [t.clone() for t in value] if isinstance(value[0], torch.Tensor) else value

    try:
        op(*[copied(m) if isinstance(m, list) else m for m in made])
    except (RuntimeError, NotImplementedError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("op", list(_foreach_overloads()), ids=lambda op: str(op)[5:])
def test_foreach(op):
    """One kernel call for the whole list, and the CPU's results."""
    assert ladder.rung(op) in ("variant", "table") or stem(op) in NOT_DERIVED
    names = [a.name for a in op._schema.arguments]

    def call(*args):  # the numbers of a list may be in a tensor, on the CPU
        return op(*[a.cpu() if n == "scalars" and isinstance(a, torch.Tensor) else a
                    for n, a in zip(names, args, strict=False)])  # fmt: skip

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        made = arguments(op, dtype)
        if not _raises_on_cpu(op, made):
            check(call, *made)
        elif stem(op) not in NO_INTEGERS:
            check_raises(call, *made)


def test_foreach_of_views():
    def step(base):
        views = [base[0], base[1:, 2], base[2:, 3:]]
        torch._foreach_mul_(views, 2.0)
        torch._foreach_add_(views, [v * 1 for v in views], alpha=0.5)

    check(step, torch.arange(20.0).reshape(4, 5))


def test_foreach_of_one_tensor_twice():
    check(lambda x: torch._foreach_add([x, x], 1.0), torch.ones(3))


def _of_windows(op):
    """Return a call of an in-place overload with windows of one array as its lists of tensors."""

    def call(base):
        windows = [base[:4], base[4:], base[:4], base[4:]]
        given = arguments(op, base.dtype)
        for at, one in enumerate(given):
            if isinstance(one, list) and isinstance(one[0], torch.Tensor):
                given[at] = windows[at % 2 :] + windows[: at % 2]
        if str(op._schema.arguments[-1].type) == "Tensor":
            given[-1] = given[-1].to("cpu" if given[-1].ndim else base.device)
        op(*given)

    return call


@pytest.mark.parametrize("executor", ["eager", "lazy"])
def test_foreach_of_tensors_that_share_memory(executor):
    """Each reads what those before it have written, as PyTorch's CPU kernels do."""
    wide = {"_foreach_mm", "_foreach_max"}  # matrices; a new result
    for op in _foreach_overloads():
        if op._schema.is_mutable and stem(op) not in wide | NOT_DERIVED:
            check(_of_windows(op), 0.1 + torch.rand(8) / 9, executor=executor)


def test_foreach_gradient():
    a, b = [torch.rand(3, requires_grad=True) for _ in range(2)]
    check(lambda a, b: torch._foreach_mul([a, b], [b, a]), a, b)
    check(lambda a, b: torch._foreach_norm([a, b]), a, b)


def fused_lists(dtype, count):
    return [[t + 0.1 * i for t in tensors(dtype, i)] for i in range(count)]


@pytest.mark.parametrize("skip", [0.0, 1.0])
@pytest.mark.parametrize(
    "name", ["_fused_adam_", "_fused_adamw_", "_fused_adagrad_", "_fused_sgd_"]
)
def test_fused_steps_unscale_gradients_and_skip_overflows(name, skip):
    op = getattr(torch, name)
    steps = [torch.tensor(3.0) for _ in SHAPES]
    rates = {"lr": 0.1, "weight_decay": 0.2, "maximize": True}
    if "adagrad" in name:
        made = [*fused_lists(torch.float32, 3), steps]
        rates |= {"lr_decay": 0.1, "eps": 1e-8}
    elif "adam" in name:
        made = [*fused_lists(torch.float32, 5), steps]
        rates |= {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": True}
    else:
        made = fused_lists(torch.float32, 3)
        rates |= {"momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": False}

    def step(*lists, **scaling):
        op(*lists, **rates, **scaling)

    check(step, *made, grad_scale=torch.tensor(8.0), found_inf=torch.tensor(skip))


def test_a_late_step_has_no_bias_left():
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}

    def step(*lists):
        torch._fused_adam_(*lists, **rates, amsgrad=False, maximize=False)

    for count in (1.0, 1e3, 1e6):
        check(step, *[[torch.full((3,), 0.5)] for _ in range(4)], [], [torch.tensor(count)])


ADAM = [
    {},
    {"weight_decay": 0.3, "amsgrad": True},
    {"weight_decay": 0.0, "maximize": True},
    {"lr": 1, "betas": (0.0, 0.5), "maximize": True, "weight_decay": 1},
]


@pytest.mark.parametrize("settings", ADAM, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW], ids=lambda k: k.__name__)
def test_adam_is_one_operator_and_equal(kind, dtype, settings):
    host = [torch.nn.Parameter(one) for one in tensors(dtype)]
    device = [torch.nn.Parameter(to_jax(one.detach())) for one in host]
    optimizers = [kind(some, foreach=True, **settings) for some in (host, device)]
    for step in range(3):
        for here, there, gradient in zip(host, device, tensors(dtype, step), strict=True):
            here.grad, there.grad = gradient.clone(), to_jax(gradient)
        optimizers[0].step()
        with torch_jax.trace_ops() as trace:
            optimizers[1].step()
    assert "_foreach_lerp_" not in str(trace)
    assert_same([p.detach() for p in device], [p.detach() for p in host])
    for here, there in zip(host, device, strict=True):
        on_host, on_device = (o.state[p] for o, p in zip(optimizers, (here, there), strict=True))
        assert on_device.pop("step") == on_host.pop("step") == 3
        assert_same(list(on_device.values()), list(on_host.values()))


@pytest.mark.parametrize("settings", ADAM[:3], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("way", ["eager", "recorded"])
def test_adam_that_counts_on_the_device_is_one_operator_and_equal(way, dtype, settings):
    host = [torch.nn.Parameter(one) for one in tensors(dtype)]
    device = [torch.nn.Parameter(to_jax(one.detach())) for one in host]
    on_host = torch.optim.AdamW(host, **settings)
    on_device = torch.optim.AdamW(device, capturable=True, **settings)
    step_on_device = torch_jax.jit(on_device.step) if way == "recorded" else on_device.step
    for step in range(3):
        for here, there, gradient in zip(host, device, tensors(dtype, step), strict=True):
            here.grad, there.grad = gradient.clone(), to_jax(gradient)
        on_host.step()
        with torch_jax.trace_ops() as trace:
            step_on_device()
    assert "_foreach_lerp_" not in str(trace)
    # ``1 - 0.999 ** 1`` of float32 has four digits: it is PyTorch's way on CUDA, too
    rtol = 2e-4 if dtype == torch.float32 else 1e-12
    for here, there in zip(host, device, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=rtol, atol=rtol / 10)
        assert on_device.state[there]["step"].item() == 3


@pytest.mark.parametrize("bad", [None, torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_are_unscaled_and_checked(dtype, bad):
    grads = tensors(dtype)
    if bad is not None:
        grads[1][2] = bad
    for found in (0.0, 1.0):
        check(
            torch._amp_foreach_non_finite_check_and_unscale_,
            grads,
            torch.tensor(found),
            torch.tensor(0.25),
        )


@pytest.mark.parametrize("tracker", [0, 1, 2])
@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("scale", [2.0**16, 3e38])
def test_the_scale_grows_and_backs_off(scale, found, tracker):
    # scale, count of steps in a row, overflow, growth, backoff, interval
    args = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)
    check(torch._amp_update_scale_, *args, 2.0, 0.5, 3)


def test_functional_overloads_leave_their_arguments():
    scale = torch.tensor(4.0)
    tracker = torch.tensor(0, dtype=torch.int32)
    expected = aten._amp_update_scale(scale, tracker, torch.tensor(1.0), 2.0, 0.5, 3)
    on_jax = to_jax([scale, tracker, torch.tensor(1.0)])
    assert_same(aten._amp_update_scale(*on_jax, 2.0, 0.5, 3), expected)
    assert_same(on_jax[0], scale)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_weights_that_a_step_has_written_are_found_by_a_later_backward_pass(kind):
    for device in ("cpu", "jax"):
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        optimizer = kind([weight], lr=0.1)
        first, second = (weight * weight).sum(), (weight**3).sum()
        first.backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()
