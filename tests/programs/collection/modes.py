"""Modes: grad mode, dtypes, autocast, determinism, train and eval, patched functions of PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.writing import Bag, attempt, linear, program, t


@program
def grad_mode_outside(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(8):
        with torch.set_grad_enabled(k % 3 != 1):
            y = f(t(k))
        yield y
        if y.requires_grad:
            y.sum().backward()
            yield w


@program
def grad_mode_inside_by_a_flag(compile):
    w, s = t(1, grad=True), Bag(on=True)

    def step(x):
        with torch.set_grad_enabled(s.on):
            y = x * w
        return y, torch.is_grad_enabled()

    f = compile(step)
    for k in range(7):
        yield f(t(k))
        s.on = k % 2 == 1


@program
def no_grad_as_a_decorator(compile):
    w = t(1, grad=True)
    f = compile(torch.no_grad()(lambda x: (x * w, torch.is_grad_enabled())))
    g = torch.no_grad()(compile(lambda x: (x * w, torch.is_grad_enabled())))
    for k in range(6):
        yield f(t(k)), g(t(k))


@program
def the_default_dtype_changes(compile):
    f = compile(lambda x: (torch.ones(3, device="jax") * 2, x * 2.5, torch.get_default_dtype()))
    for k in range(7):
        torch.set_default_dtype((torch.float32, torch.float64, torch.bfloat16)[k % 3])
        yield f(t(1)), f(t(1, dtype=torch.int64))
    torch.set_default_dtype(torch.float32)


@program
def the_default_device_changes(compile):
    f = compile(lambda x: (torch.ones(3).device.type, x + torch.ones(3).to("jax")))
    for k in range(6):
        with torch.device("jax" if k % 2 else "cpu"):
            yield f(t(k))


@program
def autocast_outside(compile):
    layer = linear()
    f = compile(lambda x: layer(x).detach())
    x = t(1, 2, 3)
    for k in range(7):
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=k % 2 == 1):
            yield f(x)


@program
def autocast_inside_by_a_flag(compile):
    layer, s = linear(), Bag(on=False)

    def step(x):
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=s.on):
            return layer(x).detach(), torch.is_autocast_enabled("jax")

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        s.on = k % 2 == 0


@program
def determinism_is_asked_for(compile):
    f = compile(lambda x: x * 2 if torch.are_deterministic_algorithms_enabled() else x + 1)
    for k in range(7):
        torch.use_deterministic_algorithms(k % 2 == 1)
        yield f(t(k))
    torch.use_deterministic_algorithms(False)


@program
def anomaly_mode_is_asked_for(compile):
    f = compile(lambda x: x * 2 if torch.is_anomaly_enabled() else x + 1)
    for k in range(7):
        with torch.autograd.set_detect_anomaly(k % 2 == 1):
            yield f(t(k))


@program
def train_and_eval_of_dropout(compile):
    model = nn.Sequential(linear(), nn.Dropout(0.5))
    f = compile(lambda x: model(x).detach())
    for k in range(8):
        model.train(k % 3 == 1)
        torch.manual_seed(k)
        yield f(t(k)), model.training


@program
def train_and_eval_of_batch_norm(compile):
    model = nn.BatchNorm1d(3).to("jax")
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        model.train(k % 3 != 1)
        yield f(torch.stack([t(k), t(1.0, 5.0, k)])), model


@program
def training_of_one_part_only(compile):
    model = nn.Sequential(nn.Dropout(1.0), linear(), nn.Dropout(1.0))
    f = compile(lambda x: model(x).detach())
    for k in range(8):
        model.train()
        model[k % 3].eval()
        yield f(t(k))


@program
def the_probability_of_dropout_changes(compile):
    drop = nn.Dropout(0.0)
    f = compile(lambda x: drop(x))
    for k in range(8):
        drop.p = (0.0, 1.0, 0.0, 0.5)[k % 4]
        torch.manual_seed(k)
        yield f(t(k))


@program
def a_function_of_torch_is_patched(compile):
    old = torch.sin
    f = compile(lambda x: torch.sin(x))
    try:
        for k in range(8):
            yield f(t(k))
            torch.sin = (lambda x: x * 100) if k in (2, 3, 5) else old
    finally:
        torch.sin = old


@program
def a_method_of_tensor_is_patched(compile):
    old = torch.Tensor.relu
    f = compile(lambda x: x.relu())
    try:
        for k in range(8):
            yield f(t(k - 2))
            torch.Tensor.relu = (lambda x: x * 100) if k in (2, 3, 5) else old
    finally:
        torch.Tensor.relu = old


@program
def a_method_of_tensor_appears(compile):
    f = compile(lambda x: x.doubled() if hasattr(x, "doubled") else x)
    try:
        for k in range(8):
            yield f(t(k))
            if k == 3:
                torch.Tensor.doubled = lambda x: x * 2
    finally:
        if hasattr(torch.Tensor, "doubled"):
            del torch.Tensor.doubled


@program
def functional_is_patched(compile):
    layer, old = linear(), nn.functional.linear
    f = compile(lambda x: layer(x).detach())
    try:
        for k in range(8):
            yield f(t(k))
            nn.functional.linear = (lambda x, w, b: x * 3) if k in (2, 3, 5) else old
    finally:
        nn.functional.linear = old


@program
def the_forward_of_a_class_is_patched(compile):
    class Net(nn.Linear):
        pass

    net = Net(3, 3).to("jax")
    f = compile(lambda x: net(x).detach())
    for k in range(8):
        yield f(t(k))
        if k == 2:
            Net.forward = lambda self, x: x * 2
        if k == 5:
            del Net.forward


@program
def the_forward_of_an_instance_is_patched(compile):
    net = linear()
    f = compile(lambda x: net(x).detach())
    for k in range(8):
        yield f(t(k))
        if k == 2:
            net.forward = lambda x: x * 2
        if k == 5:
            del net.forward


@program
def a_dispatch_mode_after_the_first_call(compile):
    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__.partition(".")[0])
            return func(*args, **(kwargs or {}))

    f = compile(lambda x: x * 2 + 1)
    for k in range(7):
        if k % 3 == 2:
            with Counts():
                yield f(t(k)), len(seen) > 0
        else:
            yield f(t(k)), len(seen) > 0
        seen.clear()


@program
def a_subclass_with_torch_function(compile):
    class Logged(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Logged.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    f = compile(lambda x: x * 2 + 1)
    for k in range(6):
        y = f(t(k).as_subclass(Logged))
        yield type(y).__name__, y.as_subclass(torch.Tensor), Logged.calls > 0


@program
def a_subclass_with_attributes(compile):
    class Scaled(torch.Tensor):
        pass

    w = t(1).as_subclass(Scaled)
    w.k = 1.0
    f = compile(lambda x: (x * w.k + w.as_subclass(torch.Tensor), type(w).__name__))
    for _ in range(7):
        yield f(t(1))
        w.k += 1


@program
def printing_options_and_threads(compile):
    f = compile(lambda x: x * torch.get_num_threads())
    before = torch.get_num_threads()
    try:
        for k in range(6):
            torch.set_num_threads(1 + k % 2)
            yield f(t(1))
    finally:
        torch.set_num_threads(before)


@program
def the_precision_of_products_changes(compile):
    before = torch.get_float32_matmul_precision()
    f = compile(lambda x: (x @ x, torch.get_float32_matmul_precision()))
    try:
        for k in range(6):
            torch.set_float32_matmul_precision(("highest", "high")[k % 2])
            yield f(t(k))
    finally:
        torch.set_float32_matmul_precision(before)


@program
def a_mode_is_entered_and_left_apart(compile):
    w, s = t(1, grad=True), Bag(guard=None)

    def enter(x):
        s.guard = torch.no_grad()
        s.guard.__enter__()
        return x * w

    def leave(x):
        s.guard.__exit__(None, None, None)
        return x * w

    f, g = compile(enter), compile(leave)
    for k in range(6):
        yield f(t(k)), torch.is_grad_enabled()
        yield g(t(k)), torch.is_grad_enabled()


@program
def inference_mode_inside(compile):
    w = t(1, grad=True)

    def step(x):
        with torch.inference_mode():
            return x * w

    f = compile(step)
    for k in range(6):
        y = f(t(k))
        yield y, y.is_inference(), attempt(lambda y=y: y * w)


@program
def scaled_dot_product_backends(compile):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.arange(12.0).view(1, 1, 4, 3).to("jax") / 10
    f = compile(lambda q: nn.functional.scaled_dot_product_attention(q, q, q))
    for k in range(6):
        if k % 2:
            with sdpa_kernel(SDPBackend.MATH):
                yield f(q + k)
        else:
            yield f(q + k)


@program
def the_type_of_numbers_promotes(compile):
    s = Bag(k=2)
    x = t(1, dtype=torch.int64)
    f = compile(lambda x: x * s.k)
    for k in (2, 2.0, True, 3, torch.tensor(2.5), torch.tensor(2), 2.5):
        s.k = k
        yield f(x)
