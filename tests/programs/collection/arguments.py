"""Arguments: numbers, strings, containers, tensors of other forms, and what they carry along."""

from __future__ import annotations

import numpy as np
import torch

from tests.programs.writing import attempt, m, program, t


@program
def numbers_of_all_types(compile):
    f = compile(lambda x, k: x * k)
    for k in (1, True, 1.0, 2, 0.5, False, -0.0, 0.0, 3, float("nan"), float("inf"), 2**40):
        yield f(t(1), k)


@program
def a_number_decides(compile):
    f = compile(lambda x, k: x + 1 if k > 2 else x - k)
    for k in (1, 2, 3, 1, 4, 2.5, 2.0, 0):
        yield f(t(1), k)


@program
def a_number_is_returned(compile):
    f = compile(lambda x, k: (x + k, k, k * 2, type(k).__name__))
    for k in (1, 1, True, 1.0, 2, 3.5, -0.0, 0.0):
        yield f(t(1), k)


@program
def numpy_numbers(compile):
    f = compile(lambda x, k: (x * k, type(k).__name__))
    for k in (
        np.float32(2),
        np.float64(2),
        np.float64(3),
        np.int64(2),
        np.int64(3),
        np.bool_(True),
    ):
        yield f(t(1), k)


@program
def a_numpy_number_that_changes(compile):
    rates = np.linspace(0.1, 1.0, 8)
    f = compile(lambda x, k: x * float(k))
    for k in range(8):
        yield f(t(1), rates[k])


@program
def complex_numbers(compile):
    f = compile(lambda x, k: x * k)
    for k in (1j, 2j, 1 + 0j, 1.0, 1j, complex(0.0, -0.0)):
        yield f(t(1), k)


@program
def whole_numbers_as_sizes(compile):
    f = compile(lambda x, n: x[:n].sum() + n)
    for n in (1, 2, 3, 1, 2, 0, True, -1):
        yield f(t(1), n)


@program
def very_large_whole_numbers(compile):
    f = compile(lambda x, n: x + n % 7)
    for n in (10**30, 10**30 + 1, 2**64, 2**64, 3, 10**30):
        yield f(t(1), n)


@program
def strings_choose(compile):
    f = compile(lambda x, how: getattr(x, how)())
    for how in ("sum", "mean", "sum", "max", "mean", "min"):
        yield f(t(1), how)


@program
def none_or_a_tensor(compile):
    f = compile(lambda x, mask=None: x if mask is None else x * mask)
    for k in range(8):
        yield f(t(k)) if k % 3 == 0 else f(t(k), t(k)) if k % 3 == 1 else f(t(k), mask=t(2))


@program
def a_tensor_or_a_number(compile):
    f = compile(lambda x, k: (x * k, isinstance(k, torch.Tensor)))
    for k in (2, t(2), 3.0, torch.tensor(4.0), t(1), 2, torch.tensor(5.0)):
        yield f(t(1), k)


@program
def keyword_arguments_in_any_order(compile):
    def step(**kw):
        y = 0
        for name, v in kw.items():
            y = y * 2 + v
        return y, list(kw)

    f = compile(step)
    for k in range(8):
        yield f(a=t(k), b=t(1)) if k % 2 else f(b=t(1), a=t(k))


@program
def keyword_numbers_in_any_order(compile):
    f = compile(lambda x, **kw: [x * v for v in kw.values()])
    for k in range(8):
        yield f(t(k), a=2.0, b=3.0) if k % 3 else f(t(k), b=3.0, a=2.0)


@program
def starred_arguments(compile):
    f = compile(lambda *xs, **kw: (sum(xs), len(xs), len(kw)))
    for k in range(8):
        yield f(*[t(j) for j in range(1 + k % 3)], **{f"k{j}": j for j in range(k % 2)})


@program
def positional_or_by_name(compile):
    f = compile(lambda x, k=2.0, *, bias=0: x * k + bias)
    yield f(t(1))
    yield f(t(1), 2.0)
    yield f(t(1), k=2.0)
    yield f(x=t(1), bias=1)
    yield f(k=3.0, x=t(1))
    yield f(t(1), 4.0, bias=True)
    yield attempt(f, t(1), 1, 2)
    yield attempt(f)


@program
def a_default_that_is_changed(compile):
    def step(x, scale=[1.0]):  # noqa: B006
        return x * scale[0]

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        step.__defaults__[0][0] += 1
        if k == 4:
            step.__defaults__ = ([9.0],)


@program
def a_keyword_default_that_is_changed(compile):
    def step(x, *, k=1.0):
        return x * k

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        if k == 3:
            step.__kwdefaults__ = {"k": 5.0}


@program
def defaults_of_a_helper_are_changed(compile):
    table = [1.0]

    def helper(x, k=2.0, table=table, *, bias=1.0):
        return x * k * table[0] + bias

    f = compile(lambda x: helper(x))
    for k in range(8):
        yield f(t(1))
        if k == 2:
            helper.__defaults__ = (3.0, table)
        if k == 3:
            table[0] = 5.0
        if k == 5:
            helper.__kwdefaults__ = {"bias": 7.0}


@program
def a_list_of_tensors_of_any_length(compile):
    f = compile(lambda xs: sum(xs))
    for k in range(8):
        yield f([t(j) for j in range(1 + k % 4)])


@program
def a_list_or_a_tuple(compile):
    f = compile(lambda xs: (type(xs).__name__, xs[0] + xs[1]))
    for k in range(7):
        xs = [t(k), t(1)]
        yield f(xs if k % 2 else tuple(xs))


@program
def a_list_argument_is_returned(compile):
    f = compile(lambda xs: xs)
    for k in range(7):
        xs = [t(k), t(1)]
        out = f(xs)
        yield out, out is xs, out[0] is xs[0]


@program
def an_argument_is_returned(compile):
    f = compile(lambda x, y: (y, x, x))
    for k in range(7):
        x, y = t(k), t(1)
        out = f(x, y)
        yield out, out[0] is y, out[1] is x, out[2] is out[1]


@program
def an_argument_twice(compile):
    def step(x, y):
        x.add_(1)
        return x * y, x is y

    f = compile(step)
    for k in range(8):
        x = t(k)
        yield f(x, x if k % 3 == 0 else t(1)), x


@program
def arguments_that_overlap(compile):
    def step(x, y):
        x.add_(1)
        return x * y

    f = compile(step)
    for k in range(8):
        base = torch.arange(4.0).to("jax")
        y = base[1:] if k % 2 else base[:3]
        yield f(base[:3], y), base, y


@program
def an_argument_on_a_captured_tensor(compile):
    w = t(1)

    def step(x):
        w.mul_(2)
        return x + w

    f = compile(step)
    for k in range(8):
        yield f(w if k % 3 == 2 else w[:] if k % 3 == 1 else t(k)), w


@program
def forms_of_tensors(compile):
    f = compile(lambda x: (x + x, x.sum(), x.shape, x.stride(), x.is_contiguous()))
    for x in (t(1), t(1, 2), m(), m().t(), m()[:, ::2], t(1, dtype=torch.int64), m()[0], t(1)):
        yield f(x)


@program
def the_offset_of_an_argument(compile):
    f = compile(lambda x: (x * 2, x.storage_offset()))
    base = torch.arange(9.0).to("jax")
    for k in (0, 0, 3, 6, 3, 1, 0):
        yield f(base[k : k + 3])


@program
def whether_an_argument_is_a_leaf(compile):
    f = compile(lambda x: (x * 2, x.is_leaf, x.requires_grad, x.grad_fn is None))
    w = t(1, grad=True)
    for k in range(8):
        yield f((t(k), w, w * 1, w.detach())[k % 4])


@program
def whether_gradients_are_wanted(compile):
    def step(x):
        y = (x * x).sum()
        if y.requires_grad:
            y.backward()
        return y.detach()

    f = compile(step)
    for k in range(8):
        x = t(k, grad=k % 2 == 1)
        yield f(x), x.grad


@program
def shapes_that_are_returned(compile):
    f = compile(lambda x: (x.shape, x.size(), x.shape[0], type(x.shape).__name__, x.numel()))
    for x in (t(1), m(), t(1), m(), t(1, 2), m().t()):
        yield f(x)


@program
def a_size_as_argument(compile):
    f = compile(lambda x, size: (x.view(size), type(size).__name__))
    for size in (torch.Size([2, 3]), (2, 3), [2, 3], torch.Size([3, 2]), (6,), torch.Size([2, 3])):
        yield f(torch.arange(6.0).to("jax"), size)


@program
def the_class_of_a_tensor_argument(compile):
    class Marked(torch.Tensor):
        pass

    f = compile(lambda x: (x + 1, type(x).__name__))
    for k in range(7):
        x = t(k)
        yield f(x.as_subclass(Marked) if k % 2 else torch.nn.Parameter(x) if k % 3 == 2 else x)
