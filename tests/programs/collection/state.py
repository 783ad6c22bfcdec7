"""State that a function reads and keeps: tensors in attributes and lists, and their identity.

Python runs at each call, so numbers and closures of any kind are read alike.
"""

from __future__ import annotations

from tests.programs.writing import CALLS, Bag, program, t


@program
def two_attributes_swap_inside_and_one_is_replaced_outside(compile):
    s = Bag(a=t(1), b=t(5))

    def step(x):
        s.a, s.b = s.b, s.a
        return x + s.a - 2 * s.b

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), s
        s.a = s.a * k


@program
def an_attribute_is_returned_in_a_list_and_replaced(compile):
    s = Bag(t=t(1), u=t(2))
    f = compile(lambda x: [s.t, x, {"u": s.u}])
    for k in range(CALLS):
        x = t(k)
        out = f(x)
        yield out, out[0] is s.t, out[1] is x, out[2]["u"] is s.u
        s.t, s.u = (s.u, s.t) if k % 2 else (t(k), s.u)


@program
def attributes_are_left_on_an_argument_and_a_result(compile):
    def step(x):
        x.seen = getattr(x, "seen", 0) + 1
        y = x * x.seen
        y.tag = f"call {x.seen}"
        return y

    f, x = compile(step), t(1)
    for k in range(7):
        yield f(x), x
        if k == 3:
            x = t(2)


@program
def a_counter_becomes_a_tensor(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n

    f = compile(step)
    for k in range(8):
        before = s.n
        yield f(t(1)), s, s.n is before
        if k == 3:
            s.n = t(0, 0, 0)


@program
def a_list_is_replaced_element_by_element(compile):
    items = [t(1), t(2), 2.0]

    def step(x):
        y = x + items[1]
        items[1] = items[0]
        items[0] = x * 1
        items[0] += y
        items[2] += 1
        return items[0] * items[2]

    f = compile(step)
    for k in range(CALLS):
        first = items[0]
        yield f(t(k)), items, items[1] is first
