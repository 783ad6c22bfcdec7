"""Closures, globals, built-ins, names that code looks up by itself, code made while it runs."""

from __future__ import annotations

import builtins
import contextvars
import functools
import importlib
import inspect
import operator
import sys
import types

import torch

from tests.programs.writing import CALLS, Bag, program, t

SCALE = 1.0
TABLE = {"k": 1.0}
WEIGHT = None


@program
def a_global_number_changes(compile):
    global SCALE
    f = compile(lambda x: x * SCALE)
    for k in range(7):
        SCALE = float(k)
        yield f(t(1))


@program
def a_global_is_counted_inside(compile):
    global SCALE
    SCALE = 0.0

    def step(x):
        global SCALE
        SCALE += 1
        return x * SCALE

    f = compile(step)
    for k in range(8):
        yield f(t(1)), SCALE
        if k == 4:
            SCALE = -1.0


@program
def a_global_tensor_is_replaced(compile):
    global WEIGHT
    WEIGHT = t(1)

    def step(x):
        global WEIGHT
        y = x + WEIGHT
        WEIGHT = y * 1
        return y

    f = compile(step)
    for k in range(7):
        yield f(t(k)), WEIGHT
        if k == 3:
            WEIGHT = t(0)


@program
def globals_by_name(compile):
    global SCALE
    f = compile(lambda x: x * globals()["SCALE"])
    for k in range(7):
        SCALE = float(k)
        yield f(t(1))


@program
def globals_are_set_by_name(compile):
    global SCALE
    SCALE = 1.0

    def step(x):
        globals()["SCALE"] += 1
        return x * SCALE

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), SCALE


@program
def a_global_appears(compile):
    def step(x):
        try:
            return x * APPEARS
        except NameError:
            return x - 1

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        if k == 3:
            globals()["APPEARS"] = 5.0
        if k == 5:
            del globals()["APPEARS"]


@program
def a_global_hides_a_builtin(compile):
    f = compile(lambda x: x * max(1, 2))
    try:
        for k in range(8):
            yield f(t(1))
            if k == 3:
                globals()["max"] = lambda a, b: 7
            if k == 5:
                del globals()["max"]
    finally:
        globals().pop("max", None)


@program
def a_builtin_is_replaced(compile):
    old = builtins.abs
    f = compile(lambda x: x * abs(-2))
    try:
        for k in range(8):
            yield f(t(1))
            if k == 3:
                builtins.abs = lambda v: 9
    finally:
        builtins.abs = old


@program
def a_module_attribute_changes(compile):
    module = types.ModuleType("made")
    module.k = 1.0
    f = compile(lambda x: x * module.k)
    for k in range(8):
        yield f(t(1))
        module.k += 1
        if k == 5:
            del module.k
            module.__getattr__ = lambda name: 0.5


@program
def an_import_inside(compile):
    module = types.ModuleType("made_for_an_import")
    module.k = 1.0
    sys.modules["made_for_an_import"] = module

    def step(x):
        from made_for_an_import import k

        return x * k

    f = compile(step)
    try:
        for _ in range(8):
            yield f(t(1))
            module.k += 1
    finally:
        del sys.modules["made_for_an_import"]


@program
def an_imported_module_is_exchanged(compile):
    one, other = types.ModuleType("exchanged"), types.ModuleType("exchanged")
    one.k, other.k = 2.0, 3.0
    sys.modules["exchanged"] = one

    def step(x):
        import exchanged

        return x * exchanged.k

    f = compile(step)
    try:
        for k in range(8):
            yield f(t(1))
            sys.modules["exchanged"] = (one, other)[k % 2]
    finally:
        del sys.modules["exchanged"]


@program
def importlib_inside(compile):
    module = types.ModuleType("by_importlib")
    module.k = 1.0
    sys.modules["by_importlib"] = module
    f = compile(lambda x: x * importlib.import_module("by_importlib").k)
    try:
        for _ in range(7):
            yield f(t(1))
            module.k += 1
    finally:
        del sys.modules["by_importlib"]


@program
def an_import_fails_at_first(compile):
    def step(x):
        try:
            import comes_later

            return x * comes_later.k
        except ImportError:
            return x

    f = compile(step)
    try:
        for k in range(7):
            yield f(t(1))
            if k == 3:
                sys.modules["comes_later"] = types.SimpleNamespace(k=4.0)
    finally:
        sys.modules.pop("comes_later", None)


@program
def a_closure_number_changes(compile):
    k = 1.0
    f = compile(lambda x: x * k)
    for _ in range(7):
        yield f(t(1))
        k += 1


@program
def a_nonlocal_is_counted(compile):
    n = 0

    def step(x):
        nonlocal n
        n += 1
        return x * n

    f = compile(step)
    for k in range(8):
        yield f(t(1)), n
        if k == 4:
            n = 100


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
def two_nonlocals_swap(compile):
    a, b = t(1), t(9)

    def step(x):
        nonlocal a, b
        a, b = b, a
        return x + a

    f = compile(step)
    for k in range(7):
        yield f(t(k)), a, b


@program
def a_cell_is_empty_at_first(compile):
    def step(x):
        try:
            return x * later
        except NameError:
            return x

    f = compile(step)
    for _ in range(3):
        yield f(t(1))
    later = 3.0
    for _ in range(4):
        yield f(t(1))
        later += 1


@program
def a_cell_is_written_from_outside(compile):
    k = 1.0

    def step(x):
        return x * k

    f = compile(step)
    for n in range(7):
        yield f(t(1))
        step.__closure__[0].cell_contents = float(n)


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
def late_binding_of_a_loop(compile):
    functions = [lambda x: x * k for k in range(3)]
    f = compile(lambda x: sum(g(x) for g in functions))
    for k in range(7):
        yield f(t(1))
        if k == 4:
            functions.pop()


@program
def a_function_attribute_counts(compile):
    def step(x):
        step.calls += 1
        return x * step.calls

    step.calls = 0
    f = compile(step)
    for k in range(8):
        yield f(t(1)), step.calls
        if k == 4:
            step.calls = 50


@program
def an_inner_function_is_replaced(compile):
    s = Bag(act=lambda x: x + 1)
    f = compile(lambda x: s.act(x))
    for k in range(8):
        yield f(t(1))
        s.act = (torch.sin, lambda x: x * 2, torch.exp, lambda x: x * 3)[k % 4]


@program
def what_a_function_gives_is_changed_inside(compile):
    s, table = Bag(n=0), {"n": 0}
    get = [lambda: (s, table)][0]

    def step(x):
        held, numbers = get()
        held.n += 1
        numbers["n"] = numbers["n"] + 2
        return x * held.n + numbers["n"]

    f = compile(step)
    for k in range(8):
        yield f(t(1)), s, table
        if k == 4:
            s.n, table["n"] = 50, 70


@program
def eval_reads_names(compile):
    s = Bag(text="x * 2")
    f = compile(lambda x: eval(s.text))
    for k in range(7):
        yield f(t(1))
        s.text = ("x * 2", "x + 1", "x - SCALE")[k % 3]


@program
def exec_makes_names(compile):
    space = {}

    def step(x):
        exec("n = globals().get('n', 0) + 1", space)
        return x * space["n"]

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), space["n"]


@program
def locals_are_read(compile):
    def step(x, k):
        y = x + 1
        return sum(v for v in locals().values() if isinstance(v, torch.Tensor)) * k, sorted(
            locals()
        )

    f = compile(step)
    for k in range(7):
        yield f(t(1), k)


@program
def a_frame_is_read(compile):
    def caller_scale():
        return sys._getframe(1).f_locals["k"]

    def step(x, k):
        return x * caller_scale()

    f = compile(step)
    for k in range(7):
        yield f(t(1), k)


@program
def the_caller_is_read(compile):
    def step(x):
        return x * len(inspect.stack()[0].function)

    f = compile(step)
    for k in range(6):
        yield f(t(k))


@program
def a_signature_is_read(compile):
    def helper(a, b=2.0):
        return a

    f = compile(lambda x: x * inspect.signature(helper).parameters["b"].default)
    for k in range(7):
        yield f(t(1))
        helper.__defaults__ = (float(k),)


@program
def a_context_variable_changes(compile):
    scale = contextvars.ContextVar("scale", default=1.0)
    f = compile(lambda x: x * scale.get())
    for k in range(7):
        yield f(t(1))
        scale.set(float(k))


@program
def a_context_variable_is_set_inside(compile):
    count = contextvars.ContextVar("count", default=0)

    def step(x):
        count.set(count.get() + 1)
        return x * count.get()

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), count.get()


@program
def another_context_runs(compile):
    scale = contextvars.ContextVar("scale", default=1.0)
    f = compile(lambda x: x * scale.get())
    for k in range(7):
        context = contextvars.copy_context()
        context.run(scale.set, float(k))
        yield context.run(f, t(1)), f(t(1))


@program
def operators_by_name(compile):
    s = Bag(get=operator.itemgetter("k"), call=operator.methodcaller("sum"))
    d = {"k": 1.0, "n": 5.0}
    f = compile(lambda x: s.call(x * s.get(d)))
    for k in range(7):
        yield f(t(1))
        d["k"] += 1
        s.get = operator.itemgetter("kn"[k % 2])


@program
def an_attribute_getter_reads_deep(compile):
    get = operator.attrgetter("a.k")
    s = Bag(a=Bag(k=1.0))
    f = compile(lambda x: x * get(s))
    for k in range(7):
        yield f(t(1))
        s.a.k += 1
        if k == 4:
            s.a = Bag(k=-1.0)


@program
def reduce_over_a_changing_list(compile):
    items = [1.0, 2.0]
    f = compile(lambda x: functools.reduce(lambda a, b: a * b + 1, items, x))
    for k in range(7):
        yield f(t(1))
        items[k % 2] += 1
        if k == 4:
            items.append(3.0)


@program
def id_and_hash_of_objects(compile):
    s = Bag(a=Bag(), b=Bag())
    f = compile(lambda x: x * 2 if id(s.a) == id(s.b) else x + 1 if hash(s.a) != hash(s.b) else x)
    for k in range(7):
        yield f(t(1))
        s.b = s.a if k % 2 else Bag()


@program
def reference_counts(compile):
    thing, kept = Bag(), []
    s = Bag(base=sys.getrefcount(thing))
    f = compile(lambda x: x * (1 + sys.getrefcount(thing) - s.base))
    first = [f(t(1)) for _ in range(3)]
    yield [v.shape for v in first]
    before = f(t(1))
    kept.append(thing)
    yield f(t(1)) - before


@program
def a_name_is_deleted_inside(compile):
    def step(x, flag):
        y = x * 2
        if flag:
            del y
        try:
            return y
        except UnboundLocalError:
            return x

    f = compile(step)
    for k in range(CALLS):
        yield f(t(1), k % 3 == 0)


@program
def annotations_are_read(compile):
    def helper(a: 2.0): ...

    helper.__annotations__ = {"a": 2.0}
    f = compile(lambda x: x * helper.__annotations__["a"])
    for k in range(7):
        yield f(t(1))
        helper.__annotations__["a"] = float(k)


@program
def docstrings_and_names_are_read(compile):
    def helper():
        """Two."""

    f = compile(lambda x: x * len(helper.__doc__) + len(helper.__name__))
    for k in range(7):
        yield f(t(1))
        helper.__doc__ = "x" * k
        helper.__name__ = "n" * (k // 2 + 1)
