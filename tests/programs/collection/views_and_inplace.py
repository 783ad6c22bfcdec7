"""Views and writes: of arguments, attributes and results; aliases, strides, versions, resizing."""

from __future__ import annotations

import torch

from tests.programs.writing import CALLS, Bag, attempt, calls, m, program, t


def _parts():
    base = torch.zeros(6).to("jax")
    for k in range(8):
        yield base[k % 3 : k % 3 + 3], base


def _written():
    """Yield tensors, some of which are one number in memory and cannot be written."""
    return ((torch.ones(1).to("jax").expand(3) if k % 3 == 1 else t(k),) for k in range(7))


def _forms():
    return ((m(k) if k % 2 else m(k).t().contiguous().t(),) for k in range(CALLS))


calls("an_argument_is_written_and_returned", lambda x: x.add_(1), _written)
calls("a_part_is_given_and_written", lambda part, whole: part.add_(1) * 2, _parts)
calls("metadata_of_results", lambda x: (x.t(), x[:, 1:], x.flip(0), x.t().contiguous()), _forms)


@program
def a_view_of_an_attribute_is_returned(compile):
    s = Bag(w=m())
    f = compile(lambda i: s.w[i])
    for k in range(7):
        row = f(k % 2)
        row.add_(1)
        yield row, s.w, row._base is s.w
        if k == 4:
            s.w = m(5)


@program
def an_old_alias_keeps_the_old_memory(compile):
    s = Bag(w=t(1))
    kept = []

    def step(x):
        s.w = s.w + x
        return s.w

    f = compile(step)
    for k in range(7):
        f(t(k))
        kept.append(s.w)
        yield kept, kept[-1] is s.w


@program
def a_result_from_before_is_written(compile):
    s = Bag(last=None)

    def step(x):
        if s.last is not None:
            s.last.add_(100)
        s.last = x * 2
        return s.last

    f = compile(step)
    outs = []
    for k in range(7):
        outs.append(f(t(k)))
        yield outs


@program
def writes_by_number_of_versions(compile):
    w = t(1)
    part = w[1:]  # a view from before sees the writes

    def step(n):
        for _ in range(n):
            w.add_(1)
        return w._version, part * 1

    f = compile(step)
    for k in range(8):
        yield f(k % 3), w._version, w, part


@program
def the_data_of_tensors_is_set_inside(compile):
    a, b, c, other = t(1), t(9), t(5), t(7)

    def step(x):
        a.data, b.data = b.data, a.data
        c.set_(other)
        other.data = x
        other.add_(1)
        return a + x, c * 1

    f = compile(step)
    for k in range(7):
        x = t(k)
        yield f(x), a, b, c, other, x
        if k == 3:
            c.add_(1)


@program
def a_tensor_shows_other_parts_of_its_memory(compile):
    for device, stride in (("jax", 1), ("jax", 2), ("cpu", 1)):
        memory = torch.arange(8.0).to(device)
        part = memory[: 4 * stride : stride]
        f = compile(lambda x: x * part.to("jax"))
        one = torch.ones(4).to("jax")
        for offset in (0, 0, 1, 1, 0):
            part.data = memory.as_strided((4,), (stride,), offset)
            yield f(one), part
        for offset in (1, 1, 0):
            part.set_(memory.untyped_storage(), offset, (4,), (stride,))
            yield f(one), part


@program
def a_ring_of_slots(compile):
    s = Bag(buffer=torch.zeros(3, 3).to("jax"), at=0)

    def step(x):
        s.buffer[s.at % 3] = x
        s.at += 1
        return s.buffer.sum(0)

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s


@program
def a_mask_is_written(compile):
    w = t(1)

    def step(x):
        w[w > x] = 0
        w.masked_fill_(w < 2, 5.0)
        return w + x

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w


@program
def out_arguments(compile):
    s = Bag(out=t(0))

    def step(x):
        torch.add(x, 1, out=s.out)
        return s.out

    f = compile(step)
    for k in range(7):
        y = f(t(k))
        yield y is s.out, y
        if k % 3 == 2:
            s.out = t(0)


@program
def a_tensor_is_resized_inside(compile):
    w = t(1)

    def step(n):
        w.resize_(n)
        w.fill_(n)
        return w.sum()

    f = compile(step)
    for k in range(7):
        yield attempt(f, 2 + k % 3), w.shape


@program
def an_attribute_becomes_an_alias_of_another(compile):
    s = Bag(a=t(1), b=t(2))
    changes = (lambda: s.b.set_(s.a), lambda: t(2), lambda: s.a, lambda: s.a[:])

    def step(x):
        s.a.add_(x)
        s.b.mul_(2)
        return s.b * 1

    f = compile(step)
    for k in range(12):
        if k % 2 and k < 9:
            s.b = changes[k // 2]()
        yield f(t(k)), s


@program
def the_data_of_an_attribute_is_set_outside(compile):
    s = Bag(w=t(1, grad=True))
    f = compile(lambda x: (x * s.w).sum())
    for k in range(7):
        y = f(t(k))
        y.backward()
        yield y, s
        s.w.data = t(k * 2)


@program
def a_strided_tensor_moves_in(compile):
    base = torch.arange(6.0).to("jax")
    s = Bag(w=t(1))
    f = compile(lambda: s.w * 1 if s.w.is_contiguous() else s.w)
    for k in range(8):
        yield f(), f().stride()
        s.w = (base[::2], base[:3], base[3:], t(k))[k % 4]
