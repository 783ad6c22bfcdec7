"""Arguments: numbers, containers, objects, tensors of other forms, and their attributes."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from tests.programs.writing import CALLS, attempt, m, program, t


@program
def numbers_of_all_types(compile):
    f = compile(lambda x, k: x * k)
    for k in (1, True, 1.0, 2, 0.5, False, -0.0, 0.0, 3, float("nan"), float("inf"), 2**40):
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
def a_list_argument_is_returned(compile):
    f = compile(lambda xs: xs)
    for k in range(7):
        xs = [t(k), t(1)]
        out = f(xs)
        yield out, out is xs, out[0] is xs[0]


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


@program
def a_dataclass_is_changed_inside(compile):
    @dataclasses.dataclass
    class State:
        w: torch.Tensor
        n: int = 0

    def step(s, x):
        s.n += 1
        s.w = s.w + x
        return s.w * s.n

    f, s = compile(step), State(t(1))
    for k in range(8):
        yield f(s, t(k)), s
        if k == 4:
            s = State(t(0), 10)


@program
def functions_as_arguments(compile):
    f = compile(lambda x, g: g(x))
    double = lambda x: x * 2
    for g in (torch.sin, torch.cos, double, torch.sin, lambda x: x - 1, double, lambda x: x + 5):
        yield f(t(1), g)


@program
def types_as_arguments(compile):
    f = compile(lambda x, dtype, kind: (x.to(dtype), kind(3)))
    for dtype in (
        torch.float32,
        torch.int64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.bool,
    ):
        yield f(t(1), dtype, float if dtype.is_floating_point else int)


@program
def tuples_of_numbers_and_tensors(compile):
    def step(pair):
        (a, k), rest = pair
        return a * k + rest["b"], pair

    f = compile(step)
    for k in range(7):
        yield f(((t(k), float(k % 3)), {"b": t(1)}))


@program
def an_array_argument_is_written(compile):
    def step(x, a):
        a += 1
        return x * float(a[0])

    f, a = compile(step), np.zeros(2)
    for _ in range(7):
        yield f(t(1), a), a


@program
def a_generator_as_argument(compile):
    f = compile(lambda xs: sum(xs))
    for k in range(6):
        yield f(t(j) for j in range(1 + k % 3))


@program
def cpu_tensors_as_arguments(compile):
    f = compile(lambda x, c: (x * c, c + 1))
    for k in range(7):
        yield f(t(1), torch.tensor(float(k)))[0]


@program
def an_empty_tensor_as_argument(compile):
    f = compile(lambda x: (x.sum(), x * 2, x.numel()))
    for k in (3, 0, 2, 0, 3, 1, 0):
        yield f(torch.arange(float(k)).to("jax"))


@program
def seventeen_shapes_in_a_cycle(compile):
    f = compile(lambda x: x * 2)
    for k in list(range(1, 18)) + [1, 2, 17]:
        yield f(torch.arange(float(k)).to("jax"))


@program
def a_list_argument_is_appended_to(compile):
    def step(x, log):
        log.append(x * 2)
        return x + len(log)

    f, log = compile(step), []
    for k in range(CALLS):
        yield f(t(k), log), log
