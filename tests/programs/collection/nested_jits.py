"""Functions compiled within functions, several of one kind, methods; their life and death."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import torch

from tests.programs.writing import Bag, attempt, linear, program, t


@program
def one_calls_another(compile):
    s = Bag(k=1.0)
    inner = compile(lambda x: x * s.k)
    outer = compile(lambda x: inner(x) + inner(x + 1))
    for k in range(8):
        yield outer(t(k)), inner(t(k))
        s.k += 1


@program
def the_inner_one_counts(compile):
    s = Bag(n=0)

    def inner(x):
        s.n += 1
        return x * s.n

    inner = compile(inner)
    outer = compile(lambda x: inner(x) + inner(x))
    for k in range(8):
        yield outer(t(1)) if k % 3 else inner(t(1)), s.n


@program
def the_inner_one_is_replaced(compile):
    s = Bag(f=compile(lambda x: x + 1))
    outer = compile(lambda x: s.f(x) * 2)
    for k in range(8):
        yield outer(t(k))
        if k % 3 == 2:
            s.f = compile(lambda x, k=k: x * k)


@program
def one_writes_what_another_reads(compile):
    s = Bag(w=t(0), k=0.0)

    def write(x):
        s.w = s.w + x
        s.k += 1

    write, read = compile(write), compile(lambda x: x * s.w + s.k)
    for k in range(8):
        yield (write if k % 2 else read)(t(k)), s


@program
def one_function_compiled_twice(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n

    f, g = compile(step), compile(step)
    for k in range(9):
        yield (f, g, step)[k % 3](t(1)), s.n


@program
def compiled_twice_over(compile):
    s = Bag(k=1.0)
    f = compile(compile(lambda x: x * s.k))
    for _ in range(7):
        yield f(t(1))
        s.k += 1


@program
def compiled_inside(compile):
    s = Bag(k=1.0)

    def step(x):
        return compile(lambda y: y * s.k)(x) + 1

    f = compile(step)
    for _ in range(7):
        yield f(t(1))
        s.k += 1


@program
def a_factory_of_compiled_functions(compile):
    def scaled(k):
        return compile(lambda x: x * k)

    for k in range(8):
        f = scaled(float(k))
        yield f(t(1)), f(t(k))


@program
def a_recursive_one(compile):
    def power(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    f = compile(power)
    for k in range(7):
        yield f(t(1), k % 4)


@program
def forward_and_backward_apart(compile):
    w = t(1, grad=True)
    s = Bag(scale=1.0)
    forward = compile(lambda x: (x * w).sum() * s.scale)

    def update():
        with torch.no_grad():
            w.sub_(w.grad * 0.1)
        w.grad = None

    update = compile(update)
    for k in range(8):
        forward(t(k)).backward()
        update()
        yield w
        s.scale += 1


@program
def a_step_of_parts(compile):
    net = linear()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loss_of = compile(lambda x: net(x).square().sum())
    step = compile(lambda: opt.step())
    for k in range(7):
        opt.zero_grad()
        loss = loss_of(t(0.1 * k, 0.2, 0.3))
        loss.backward()
        step()
        yield loss, net
        opt.param_groups[0]["lr"] = 0.01 * (k % 3)


@program
def methods_of_many_objects(compile):
    class C:
        def __init__(self, k):
            self.k = k

        @compile
        def go(self, x):
            self.k += 1
            return x * self.k

    made = [C(float(k)) for k in range(3)]
    for k in range(9):
        yield made[k % 3].go(t(1)), [c.k for c in made]


@program
def methods_that_call_methods(compile):
    class C:
        n = 0

        @compile
        def inner(self, x):
            self.n += 1
            return x * self.n

        @compile
        def outer(self, x):
            return self.inner(x) + self.n

    c = C()
    for k in range(8):
        yield c.outer(t(1)) if k % 3 else c.inner(t(1)), c.n


@program
def objects_with_methods_die(compile):
    class C:
        @compile
        def go(self, x):
            return x * 2

    refs = []
    for k in range(6):
        c = C()
        y = c.go(t(k))
        refs.append(weakref.ref(c))
        del c
        yield y, len(refs)
    gc.collect()
    yield [r() is None for r in refs]


@program
def arguments_die(compile):
    f = compile(lambda x: x * 2)
    refs = []
    for k in range(6):
        x = t(k)
        refs.append(weakref.ref(x))
        y = f(x)
        del x
        yield y, len(refs)
    gc.collect()
    yield [r() is None for r in refs]


@program
def results_die(compile):
    f = compile(lambda x: (x * 2, x + 1))
    refs = []
    for k in range(6):
        y, z = f(t(k))
        refs.append(weakref.ref(y))
        del y, z
        yield len(refs)
    gc.collect()
    yield [r() is None for r in refs]


@program
def attributes_that_were_replaced_die(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w = s.w + x

    f = compile(step)
    refs = []
    for k in range(6):
        refs.append(weakref.ref(s.w))
        f(t(k))
        yield len(refs), s
    gc.collect()
    yield [r() is None for r in refs]


@program
def captured_objects_die(compile):
    class Thing(Bag):
        pass

    thing = Thing(k=2.0)
    f = compile(lambda x, o: x * o.k)
    for k in range(5):
        yield f(t(k), thing)
    ref = weakref.ref(thing)
    del thing
    gc.collect()
    yield ref() is None


@program
def a_copy_of_a_compiled_function(compile):
    s = Bag(k=1.0)
    f = compile(lambda x: x * s.k)
    g = copy.copy(f)
    for k in range(7):
        yield f(t(1)), g(t(1))
        s.k += 1


@program
def a_compiled_module_function_by_pickle(compile):
    f = compile(_double)
    for k in range(4):
        yield f(t(k))
    try:
        g = pickle.loads(pickle.dumps(_double))
    except pickle.PicklingError:
        return
    g = compile(g)
    for k in range(3):
        yield g(t(k))


def _double(x):
    return x * 2


@program
def the_looks_of_a_compiled_function(compile):
    def step(x, k=2.0):
        """Doubles."""
        return x * k

    step.note = 5
    f = compile(step)
    for k in range(5):
        yield f(t(k)), f.__name__, f.__doc__, f.note, callable(f)


@program
def compiled_as_key_and_callback(compile):
    f = compile(lambda x: x * 2)
    table = {f: 3.0}
    g = compile(lambda x: f(x) * table[f])
    for k in range(7):
        yield g(t(k)), list(map(f, [t(1), t(2)]))
        table[f] += 1


@program
def an_exception_goes_through_two(compile):
    s = Bag(k=1)

    def inner(x):
        if s.k > 2:
            raise ValueError(s.k)
        return x * s.k

    inner = compile(inner)

    def outer(x):
        try:
            return inner(x)
        except ValueError:
            return x - 1

    outer = compile(outer)
    for k in range(8):
        yield outer(t(k)), attempt(inner, t(k))
        s.k = k % 4


@program
def eager_calls_between(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w.add_(x)
        return s.w * 2

    f = compile(step)
    for k in range(9):
        yield (f if k % 3 else step)(t(k)), s
        s.w.mul_(0.5)


@program
def many_functions_in_turn(compile):
    s = Bag(w=t(1))
    functions = [compile(lambda x, j=j: s.w.add_(x * j).sum()) for j in range(5)]
    for k in range(15):
        yield functions[k % 5](t(k)), s


@program
def a_compiled_backward_hook(compile):
    s = Bag(k=1.0)
    double = compile(lambda g: g * s.k)
    for k in range(7):
        w = t(k, grad=True)
        y = w * 2
        y.register_hook(double)
        y.sum().backward()
        yield w
        s.k += 1
