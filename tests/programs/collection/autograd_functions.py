"""Functions and operators of the user's own, transforms, gradients given and asked for."""

from __future__ import annotations

import torch

from tests.programs.writing import Bag, m, program, t


@program
def a_function_of_the_users_own(compile):
    s = Bag(scale=1.0, forward=0, backward=0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            s.forward += 1
            ctx.save_for_backward(x)
            return x * s.forward

        @staticmethod
        def backward(ctx, g):
            s.backward += 1
            return g * s.scale * s.backward * ctx.saved_tensors[0]

    f = compile(lambda x: Scaled.apply(x))
    for k in range(7):
        w = t(k, grad=True)
        y = f(w)
        s.scale += 1  # read in the backward pass, which runs outside
        y.sum().backward()
        yield y, w, s


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
def saved_tensor_hooks(compile):
    packed = []

    def step(w):
        hooks = lambda x: packed.append(1) or x, lambda x: x * 2
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
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

    def step(x, k, g):
        y = shifted(x * 2, k)
        y.backward(g)
        return y.detach()

    f = compile(step)
    for k in range(6):
        w = t(k, grad=True)
        yield f(w, float(k % 3), t(k % 2)), w, len(CALLS_OF_SHIFTED) - before
