"""State that a function reads and keeps: attributes, elements, classes, closures, globals."""

from __future__ import annotations

import collections
import functools
from collections import OrderedDict, deque

import torch

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
def a_number_and_a_tensor_change_at_once(compile):
    early, late = Bag(on=True, w=t(1)), Bag(on=True, w=t(2))  # also in the order of their names
    f = compile(lambda x: x * (2 if early.on else 3) + late.w)
    g = compile(lambda x: x * (2 if late.on else 3) + early.w)
    for k in range(8):
        yield f(t(k)), g(t(k))
        early.on = late.on = k % 2 == 1
        if k % 2 == 0:
            early.w, late.w = t(k), t(k + 1)


@program
def a_cache_is_filled_once(compile):
    s = Bag(cache=None)

    def step(x):
        if s.cache is None:
            s.cache = x * 3
        return x + s.cache

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s
        if k == 4:
            s.cache = None


@program
def an_attribute_is_left_on_an_argument(compile):
    def step(x):
        x.seen = getattr(x, "seen", 0) + 1
        return x * x.seen

    f, x = compile(step), t(1)
    for k in range(7):
        yield f(x), x
        if k == 3:
            x = t(2)


@program
def an_attribute_is_left_on_a_result(compile):
    def step(x, k):
        y = x * 2
        y.tag = f"call {k}"
        return y

    f = compile(step)
    for k in range(7):
        yield f(t(k), k)


@program
def an_attribute_changes_its_type(compile):
    s = Bag(k=1)
    f = compile(lambda x: x * s.k)
    for value in (1, 1.0, True, t(2), torch.tensor(3.0), 2, False, -0.0):
        s.k = value
        yield f(t(1)), s


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
            s.n = torch.zeros(()).to("jax")


@program
def a_method_is_replaced_in_its_class(compile):
    class C:
        def go(self, x):
            return x + 1

    c = C()
    f = compile(lambda x: c.go(x))
    for k in range(8):
        yield f(t(1))
        if k == 2:
            C.go = lambda self, x: x * 5
        if k == 5:
            C.go = torch.nn.functional.relu.__get__  # a bound wrapper that is no function
            C.go = staticmethod(lambda x: x - 1)


@program
def a_cached_property_of_a_tensor(compile):
    class C:
        def __init__(self):
            self.w = t(1)

        @functools.cached_property
        def double(self):
            return self.w * 2

    c = C()
    f = compile(lambda x: x + c.double)
    for k in range(8):
        yield f(t(k)), vars(c)
        c.w = t(k)
        if k % 3 == 2:
            del c.double


@program
def a_nonlocal_tensor_is_replaced(compile):
    w = t(1)

    def step(x):
        nonlocal w
        y = x + w
        w = y.detach() * 0.5
        return y

    f = compile(step)
    for k in range(8):
        yield f(t(k)), w
        if k == 4:
            w = t(7)


@program
def closures_share_a_cell(compile):
    def make():
        n = 0.0

        def up(x):
            nonlocal n
            n += 1
            return x + n

        def down(x):
            nonlocal n
            n -= 2
            return x * n

        return up, down, lambda: n

    up, down, read = make()
    f, g = compile(up), compile(down)
    for k in range(8):
        yield (f if k % 3 else g)(t(1)), read()


@program
def a_list_is_replaced_element_by_element(compile):
    items = [t(1), t(2)]

    def step(x):
        y = x + items[1]
        items[1] = items[0]
        items[0] = x * 1
        return y

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), items


@program
def a_queue_of_tensors_of_a_bound(compile):
    items = deque(maxlen=2)

    def step(x):
        items.append(x + 1)
        return sum(items)

    f = compile(step)
    for k in range(8):
        yield f(t(k)), list(items)


@program
def an_ordered_dict_as_lru(compile):
    cache = OrderedDict()

    def step(x, key):
        if key in cache:
            cache.move_to_end(key)
        else:
            cache[key] = x * 2
            if len(cache) > 2:
                cache.popitem(last=False)
        return cache[key] + x

    f = compile(step)
    for key in "aabcabdda":
        yield f(t(len(cache)), key), cache


@program
def kept_named_tuples(compile):
    Pair = collections.namedtuple("Pair", "a b")
    s = Bag(pair=Pair(t(1), 2.0))

    def step(x):
        s.pair = s.pair._replace(a=x + s.pair.a, b=s.pair.b + 1)
        return s.pair.a * s.pair.b

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s.pair


@program
def a_method_compiled_for_each_object(compile):
    class C:
        def __init__(self, k):
            self.k, self.n = k, 0

        @compile
        def go(self, x):
            self.n += 1
            return x * self.k + self.n

    one, other = C(1.0), C(10.0)
    for k in range(10):
        c = (one, other)[k % 2]
        yield c.go(t(1)), c.n
        c.k += 1
        if k == 7:
            one = C(100.0)


@program
def a_partial_is_compiled(compile):
    f = compile(functools.partial(lambda k, x, b=0.0: x * k + b, 2.0, b=1.0))
    for k in range(8):
        yield f(t(k)) if k % 2 else f(t(k), b=float(k))
