"""Views and writes: of arguments, attributes and results; aliases, strides, versions, resizing."""

from __future__ import annotations

import torch

from tests.programs.writing import CALLS, Bag, attempt, m, program, t


@program
def an_argument_is_written_and_returned(compile):
    f = compile(lambda x: x.add_(1))
    for k in range(CALLS):
        x = t(k)
        y = f(x)
        yield y is x, x


@program
def a_part_is_given_and_written(compile):
    base = torch.zeros(6).to("jax")

    def step(part):
        part.add_(1)
        return part * 2

    f = compile(step)
    for k in range(8):
        yield f(base[k % 3 : k % 3 + 3]), base


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
def a_view_from_before_sees_the_write(compile):
    w = t(1)
    part = w[1:]

    def step(x):
        w.add_(x)
        return part * 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w, part


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

    def step(n):
        for _ in range(n):
            w.add_(1)
        return w._version

    f = compile(step)
    for k in range(8):
        yield f(k % 3), w._version, w


@program
def set_data_to_an_argument(compile):
    w = t(1)

    def step(x):
        w.data = x
        w.add_(1)
        return w * 1

    f = compile(step)
    for k in range(7):
        x = t(k)
        yield f(x), w, x


@program
def swap_data_of_two(compile):
    a, b = t(1), t(9)

    def step(x):
        a.data, b.data = b.data, a.data
        return a + x

    f = compile(step)
    for k in range(7):
        yield f(t(k)), a, b


@program
def set_to_another_storage(compile):
    w, other = t(1), t(5)

    def step(x):
        w.set_(other)
        return w + x

    f = compile(step)
    for k in range(6):
        yield f(t(k)), w, other
        if k == 3:
            other.add_(1)


@program
def memory_becomes_shared(compile):
    a, b = t(1), t(2)

    def step(x):
        a.add_(1)
        b.mul_(2)
        return x * a + b

    f = compile(step)
    for k in range(8):
        yield f(t(1)), a, b
        if k == 3:
            b.set_(a)


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
def a_cache_that_grows_by_cat(compile):
    s = Bag(cache=None)

    def step(x):
        x = x.unsqueeze(0)
        s.cache = x if s.cache is None else torch.cat([s.cache, x])[-3:]
        return s.cache.sum(0)

    f = compile(step)
    for k in range(7):
        yield f(t(k)), s.cache


@program
def an_expanded_argument_is_written(compile):
    f = compile(lambda x: x.add_(1))
    for k in range(6):
        x = torch.ones(1).to("jax").expand(3) if k % 2 else t(k)
        yield attempt(f, x), x


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
def metadata_of_results(compile):
    f = compile(lambda x: (x.t(), x[:, 1:], x.flip(0), x.permute(1, 0).contiguous(), x + 0))
    for k in range(CALLS):
        yield f(m(k) if k % 2 else m(k).t().contiguous().t())


@program
def an_augmented_assignment_of_an_element(compile):
    items = [t(1), 2.0]
    first = items[0]

    def step(x):
        items[0] += x
        items[1] += 1
        return items[0] * items[1]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), items, items[0] is first


@program
def an_attribute_becomes_an_alias_of_another(compile):
    s = Bag(a=t(1), b=t(2))

    def step(x):
        s.a.add_(x)
        return s.b * 1

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s
        if k == 3:
            s.b = s.a
        if k == 5:
            s.b = s.a[:]


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
