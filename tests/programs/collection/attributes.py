"""Attributes of objects: replaced, swapped, removed, missing at first, found by name."""

from __future__ import annotations

import copy
import types

import torch

from tests.programs.writing import CALLS, Bag, linear, program, t


@program
def an_attribute_takes_the_place_of_another(compile):
    s = Bag(a=t(1), b=t(5))

    def step(x):
        y = x + s.b
        s.b = s.a
        s.a = x * 1
        return y

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), s


@program
def two_attributes_swap(compile):
    s = Bag(a=t(1), b=t(5))

    def step(x):
        s.a, s.b = s.b, s.a
        return x + s.a

    f, first = compile(step), s.a
    for k in range(CALLS):
        yield f(t(k)), s, s.a is first, s.b is first


@program
def two_attributes_swap_outside(compile):
    s = Bag(a=t(1), b=t(5))
    f = compile(lambda x: x + s.a * 2 - s.b)
    for k in range(CALLS):
        yield f(t(k)), s
        s.a, s.b = s.b, s.a


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
def an_attribute_is_returned_and_replaced(compile):
    s = Bag(t=t(1))
    f = compile(lambda: s.t)
    for k in range(CALLS):
        yield f(), f() is s.t
        s.t = t(k * 10)


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
def three_attributes_rotate(compile):
    s = Bag(a=t(1), b=t(2), c=t(3))

    def step(x):
        s.a, s.b, s.c = s.b, s.c, s.a
        s.a.add_(x)
        return s.a - s.b

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s


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
def an_attribute_is_kept_under_another_name(compile):
    s = Bag(w=t(1))

    def step(x):
        s.kept = s.w
        return x + s.w

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), s, s.kept is s.w
        s.w = t(k)


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
def an_attribute_is_missing_at_first_by_hasattr(compile):
    s = Bag(w=t(2))
    f = compile(lambda x: x * s.w if hasattr(s, "scale") else x + s.w)
    for k in range(8):
        yield f(t(k))
        if k == 2:
            s.scale = 1
        if k == 5:
            del s.scale


@program
def an_attribute_is_missing_at_first_by_getattr(compile):
    s = Bag()
    f = compile(lambda x: x * getattr(s, "k", 1.0))
    for k in range(8):
        yield f(t(k))
        if k == 3:
            s.k = 3.0
        if k == 5:
            del s.k


@program
def a_class_attribute_appears(compile):
    class C:
        pass

    c = C()
    f = compile(lambda x: x * getattr(c, "k", 1.0))
    for k in range(8):
        yield f(t(k))
        if k == 3:
            C.k = 4.0
        if k == 5:
            c.k = 5.0


@program
def a_base_class_gets_an_attribute(compile):
    class A:
        pass

    class B(A):
        pass

    b = B()
    f = compile(lambda x: x + (2 if hasattr(b, "flag") else 1))
    for k in range(8):
        yield f(t(k))
        if k == 2:
            A.flag = None
        if k == 5:
            del A.flag


@program
def an_attribute_is_missing_at_first_by_exception(compile):
    s = Bag()

    def step(x):
        try:
            return x * s.k
        except AttributeError:
            return x - 1

    f = compile(step)
    for k in range(8):
        yield f(t(k))
        if k == 3:
            s.k = 3.0
        if k == 5:
            del s.k


@program
def a_module_gets_a_head_later(compile):
    class Net(torch.nn.Module):
        def forward(self, x):
            head = getattr(self, "head", None)
            return x * 2 if head is None else head(x)

    net = Net()
    f = compile(lambda x: net(x))
    for k in range(7):
        yield f(t(k)).detach()
        if k == 2:
            net.head = linear()
        if k == 4:
            del net.head


@program
def a_buffer_is_registered_later(compile):
    net = linear()

    def step(x):
        if hasattr(net, "shift"):
            return net(x) + net.shift
        return net(x)

    f = compile(step)
    for k in range(7):
        yield f(t(k)).detach()
        if k == 3:
            net.register_buffer("shift", t(7))


@program
def an_attribute_is_read_through_vars(compile):
    s = Bag(k=2.0)
    f = compile(lambda x: x * vars(s)["k"] + len(vars(s)))
    for k in range(7):
        yield f(t(k))
        s.k += 1
        if k == 3:
            s.more = 1


@program
def an_attribute_is_read_through_dunder_dict(compile):
    s = Bag(k=2.0, n="k")
    f = compile(lambda x: x * s.__dict__[s.n])
    for k in range(7):
        yield f(t(k))
        s.__dict__["k"] = k * 1.5


@program
def an_attribute_is_named_by_a_string_that_changes(compile):
    s = Bag(a=t(1), b=t(9), name="a")
    f = compile(lambda x: x + getattr(s, s.name))
    for k in range(7):
        yield f(t(k))
        s.name = "ab"[k % 2]


@program
def attributes_with_computed_names(compile):
    s = Bag(w0=2.0, w1=3.0)

    def step(x):
        for i in range(2):
            x = x * getattr(s, f"w{i}")
        return x

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        setattr(s, f"w{k % 2}", float(k))


@program
def dir_of_an_object_counts(compile):
    s = Bag(a=1)
    f = compile(lambda x: x + sum(1 for n in dir(s) if not n.startswith("_")))
    for k in range(7):
        yield f(t(k))
        setattr(s, f"more{k}", k)


@program
def setattr_with_a_computed_name(compile):
    s = Bag(n=0)

    def step(x):
        setattr(s, f"seen{s.n}", x * 2)
        s.n += 1
        return x + s.n

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), s


@program
def an_attribute_is_deleted_inside(compile):
    s = Bag(cache=t(1))

    def step(x):
        y = x + s.cache if hasattr(s, "cache") else x
        if hasattr(s, "cache"):
            del s.cache
        return y

    f = compile(step)
    for k in range(7):
        yield f(t(k)), s
        if k % 2:
            s.cache = t(k)


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
def nested_objects_are_replaced(compile):
    s = Bag(inner=Bag(k=2.0, w=t(1)))
    f = compile(lambda x: x * s.inner.k + s.inner.w)
    for k in range(7):
        yield f(t(k))
        if k == 2:
            s.inner = Bag(k=5.0, w=t(3))
        if k == 4:
            s.inner = copy.copy(s.inner)
            s.inner.k = 7.0


@program
def an_object_is_copied_inside(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n, copy.copy(s), dict(vars(s))

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), s


@program
def two_names_of_one_object_part(compile):
    s = Bag(a=Bag(k=1.0))
    s.b = s.a

    def step(x):
        s.a.k += 1
        return x * s.b.k

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s
        if k == 4:
            s.b = Bag(k=0.5)


@program
def the_data_of_an_attribute_is_swapped(compile):
    s = Bag(w=t(1), v=t(5))

    def step(x):
        s.w.data, s.v.data = s.v.data, s.w.data
        return x * s.w

    f = compile(step)
    for k in range(7):
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
def an_attribute_of_a_tensor_changes(compile):
    w = t(1)
    w.scale = 2.0
    f = compile(lambda x: x * w.scale + w)
    for k in range(7):
        yield f(t(k))
        w.scale += 1


@program
def an_attribute_of_an_argument_changes(compile):
    f = compile(lambda x: x * getattr(x, "scale", 1.0))
    for k in range(8):
        x = t(k)
        if k % 3:
            x.scale = float(k)
        yield f(x)


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
def simple_namespace_and_its_order(compile):
    s = types.SimpleNamespace(a=2.0, b=3.0)
    f = compile(lambda x: [x * v for v in vars(s).values()])
    for k in range(7):
        yield f(t(k))
        s.a = vars(s).pop("a") + 1
