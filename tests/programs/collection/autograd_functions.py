"""Functions and hooks of autograd, checkpoints, transforms, gradients given and asked for."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from tests.programs.writing import Bag, linear, m, program, t


@program
def a_function_of_the_users_own(compile):
    s = Bag(scale=1.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * s.scale * ctx.saved_tensors[0]

    f = compile(lambda x: Scaled.apply(x))
    for k in range(7):
        w = t(k, grad=True)
        y = f(w)
        s.scale += 1  # read in the backward pass, which runs outside
        y.sum().backward()
        yield y, w


@program
def a_function_counts_its_backward_passes(compile):
    s = Bag(forward=0, backward=0)

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            s.forward += 1
            return x * s.forward

        @staticmethod
        def backward(ctx, g):
            s.backward += 1
            return g * s.backward

    f = compile(lambda x: Counted.apply(x))
    for k in range(7):
        w = t(k, grad=True)
        f(w).sum().backward()
        yield w, vars(s)


@program
def a_hook_of_a_tensor_reads_a_number(compile):
    s = Bag(k=1.0)

    def step(w):
        y = w * 2
        y.register_hook(lambda g: g * s.k)
        return y.sum()

    f = compile(step)
    for k in range(7):
        w = t(k, grad=True)
        y = f(w)
        s.k += 1
        y.backward()
        yield w


@program
def a_hook_of_a_leaf_comes_and_goes(compile):
    w = t(1, grad=True)

    def step(x):
        (w * x).sum().backward()
        return w.grad * 1

    f, handle = compile(step), None
    for k in range(8):
        yield f(t(k))
        w.grad = None
        if k % 3 == 1:
            handle = w.register_hook(lambda g: g * 10)
        if k % 3 == 2 and handle:
            handle.remove()


@program
def retain_grad_outside(compile):
    f = compile(lambda w: w * w)
    for k in range(6):
        w = t(k, grad=True)
        y = f(w)
        y.retain_grad()
        y.sum().backward()
        yield y.grad, w


@program
def views_that_are_returned_are_views_of_autograd(compile):
    f = compile(lambda x: x[1:])
    for k in range(6):
        w = t(k, grad=True)
        x = w * 1
        y = f(x)
        y.mul_(3)
        x.sum().backward()
        yield x, y, w


@program
def a_view_is_written_after_the_call(compile):
    f = compile(lambda x: (x.view(2, 3), x.t()))
    for k in range(6):
        x = m(k)
        a, b = f(x)
        a.add_(1)
        b[0].zero_()
        yield x, a, b, a._base is x, b._base is x


@program
def a_checkpoint_inside(compile):
    s = Bag(calls=0)
    layer = linear()

    def block(x):
        s.calls += 1
        return torch.tanh(layer(x))

    def step(x):
        y = checkpoint(block, x, use_reentrant=False)
        y.sum().backward()
        return y.detach()

    f = compile(step)
    for k in range(6):
        yield f(t(k, grad=True)), s.calls, layer


@program
def saved_tensor_hooks(compile):
    packed = []

    def pack(x):
        packed.append(1)
        return x

    def step(w):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x * 2):
            y = (w * w).sum()
        y.backward()
        return y.detach()

    f = compile(step)
    for k in range(6):
        w = t(k, grad=True)
        yield f(w), w, len(packed)


@program
def backward_through_time(compile):
    w = t(0.5, grad=True)
    s = Bag(h=t(1))

    def step(x):
        s.h = torch.tanh(s.h * w + x)
        return s.h

    f = compile(step)
    for k in range(6):
        f(t(k / 4))
        if k % 3 == 2:
            s.h.sum().backward()
            s.h = s.h.detach()
        yield s.h, w


@program
def functional_transforms_of_a_call(compile):
    f = compile(lambda x: (x * x).sum())
    for k in range(6):
        x = t(k)
        yield torch.func.grad(f)(x), torch.func.vmap(f)(m(k)), f(x)


@program
def backward_with_a_gradient_given(compile):
    f = compile(lambda w, g: (w * w).backward(g))
    for k in range(6):
        w = t(k, grad=True)
        yield f(w, t(k % 3)), w


@program
def inference_mode_outside(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(7):
        with torch.inference_mode(k % 2 == 1):
            y = f(t(k))
        yield y, y.is_inference()


CALLS_OF_SHIFTED: list[float] = []  # by which numbers the operator below has been called


@torch.library.custom_op("tests_programs::shifted", mutates_args=())
def shifted(x: torch.Tensor, k: float) -> torch.Tensor:
    """A kernel of Python that computes on the host, and counts."""
    CALLS_OF_SHIFTED.append(k)
    return torch.from_numpy(x.detach().cpu().numpy() + k).to(x.device)


shifted.register_autograd(lambda ctx, g: (g * 3, None))


@program
def an_operator_of_the_users_own(compile):
    before = len(CALLS_OF_SHIFTED)

    def step(x, k):
        y = shifted(x * 2, k)
        y.sum().backward()
        return y.detach()

    f = compile(step)
    for k in range(6):
        w = t(k, grad=True)
        yield f(w, float(k % 3)), w, len(CALLS_OF_SHIFTED) - before
