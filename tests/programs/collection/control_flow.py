"""What Python decides: loops, matches, short cuts, recursion, values of tensors."""

from __future__ import annotations

import contextlib
import dataclasses

import torch

from tests.programs.writing import CALLS, Bag, attempt, m, program, t


@program
def a_match_on_classes(compile):
    @dataclasses.dataclass
    class Add:
        k: float

    @dataclasses.dataclass
    class Mul:
        k: float

    s = Bag(op=Add(1.0))

    def step(x):
        match s.op:
            case Add(k=k):
                return x + k
            case Mul(k=k) if k > 2:
                return x * k
            case _:
                return x

    f = compile(step)
    for k in range(9):
        yield f(t(1))
        s.op = (Add(float(k)), Mul(float(k)), None)[k % 3]


@program
def a_match_on_match_args(compile):
    class Point:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

    p = Point(1.0, 2.0)

    def step(x):
        match p:
            case Point(0, b):
                return x + b
            case Point(a, b):
                return x * a - b

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        p.a = float(k % 3)
        if k == 5:
            Point.__match_args__ = ("b", "a")


@program
def a_match_on_mappings_and_sequences(compile):
    def step(x, what):
        match what:
            case {"op": "add", "k": k}:
                return x + k
            case {"op": str(name), **rest}:
                return x * len(name) + len(rest)
            case [first, *rest]:
                return x * first + len(rest)
            case int() | float():
                return x - what
        return x

    f = compile(step)
    for what in (
        {"op": "add", "k": 2},
        {"op": "mul"},
        [1, 2],
        [3],
        5,
        5.0,
        "a",
        {"op": "mul", "z": 1},
    ):
        yield f(t(1), what)


@program
def a_walrus_keeps_a_value(compile):
    d = {"k": 1.0}
    f = compile(lambda x: x * n if (n := d.get("k")) else x)
    for k in range(8):
        yield f(t(1))
        d["k"] = float(k % 3)


@program
def a_loop_of_a_changing_length(compile):
    s = Bag(n=1)

    def step(x):
        for i in range(s.n):
            x = x + i
        else:
            x = x * 2
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        s.n = k % 4


@program
def a_loop_that_breaks(compile):
    items = [1.0, 2.0, 0.0, 4.0]

    def step(x):
        for k in items:
            if not k:
                break
            x = x * k
        else:
            x = -x
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        items[-1], items[k % 2] = items[k % 2], items[-1]
        if k == 4:
            items[:] = [1.0, 3.0]


@program
def while_counts_down(compile):
    s = Bag(n=5)

    def step(x):
        while s.n > 2:
            s.n -= 1
            x = x + s.n
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(1)), s.n
        s.n += k % 3


@program
def every_third_call_is_another(compile):
    s = Bag(step=0)

    def step(x):
        s.step += 1
        return x * 100 if s.step % 3 == 0 else x + s.step

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s.step


@program
def a_warm_up_of_the_users_own(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        scale = min(1.0, s.n / 8)
        return x * scale

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s.n


@program
def only_the_tenth_call_is_another(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        if s.n == 10:
            s.extra = x * 5
        return x + getattr(s, "extra", 0)

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s


@program
def patience_runs_out(compile):
    s = Bag(best=1e9, bad=0, lr=1.0)

    def step(x, loss):
        if loss < s.best:
            s.best, s.bad = loss, 0
        else:
            s.bad += 1
        if s.bad >= 2:
            s.lr, s.bad = s.lr / 2, 0
        return x * s.lr

    f = compile(step)
    for loss in (5.0, 4.0, 4.5, 4.6, 3.0, 3.1, 3.2, 3.3, 2.0):
        yield f(t(1), loss), s


@program
def short_cuts(compile):
    log = []
    s = Bag(a=True, b=0)

    def note(name, value):
        log.append(name)
        return value

    def step(x):
        one = note("a", s.a) and note("b", s.b) or note("c", 3.0)
        return x * one

    f = compile(step)
    for k in range(8):
        yield f(t(1)), list(log)
        log.clear()
        s.a, s.b = bool(k % 2), float(k % 3)


@program
def chained_comparisons(compile):
    s = Bag(lo=0, hi=5, k=1)
    f = compile(lambda x: x + 1 if s.lo < s.k <= s.hi else x - 1)
    for k in range(9):
        yield f(t(1))
        s.k = (0, 5, 6, -1, 3, 5.0, 5.1, True, 0)[k]


@program
def recursion_by_a_number(compile):
    def power(x, n):
        return x if n <= 1 else x * power(x, n - 1)

    f = compile(lambda x, n: power(x, n))
    for n in (1, 3, 2, 4, 3, 1, 5):
        yield f(t(1), n)


@program
def mutual_recursion_over_a_tree(compile):
    tree = {"k": 1.0, "parts": [{"k": 2.0, "parts": []}]}

    def walk(x, node):
        x = x * node["k"]
        return sum((walk(x, part) for part in node["parts"]), x)

    f = compile(lambda x: walk(x, tree))
    for k in range(7):
        yield f(t(1))
        tree["parts"][0]["parts"].append({"k": float(k), "parts": []})


@program
def an_if_on_a_tensor(compile):
    f = compile(lambda x: x * 2 if x.sum() > 5 else x - 1)
    for k in (0, 5, 1, -3, 2, 0):
        yield f(t(k))


@program
def an_item_decides(compile):
    f = compile(lambda x: (x * 2, "big") if x.sum().item() > 5 else (x - 1, "small"))
    for k in (0, 5, 1, -3, 2, 0):
        yield f(t(k))


@program
def an_item_is_kept(compile):
    s = Bag(losses=[])

    def step(x):
        s.losses.append(x.sum().item())
        return x * s.losses[-1]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), s.losses


@program
def a_loop_until_a_value(compile):
    def step(x):
        n = 0
        while x.sum() < 20:
            x, n = x * 2, n + 1
        return x, n

    f = compile(step)
    for k in (1, 5, 30, 2, 1, 8):
        yield f(t(k))


@program
def sizes_that_hang_on_values(compile):
    f = compile(lambda x: (x[x > 1], torch.nonzero(x), x.tolist()))
    for k in (0, 1, -3, 5, 0, 2):
        yield f(t(k))


@program
def values_of_cpu_tensors_decide(compile):
    c = torch.tensor(1.0)
    f = compile(lambda x: x * 2 if c > 2 else x + c.item())
    for k in range(7):
        yield f(t(1))
        c += 1
        if k == 4:
            c.zero_()


@program
def a_cpu_counter_is_moved_on(compile):
    c = torch.zeros((), dtype=torch.int64)

    def step(x):
        c.add_(1)
        return x * c.item()

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), c.item()


@program
def shapes_decide(compile):
    f = compile(lambda x: x.sum(0) if x.dim() == 2 and x.shape[0] > 1 else x * 2)
    for x in (t(1), m(), t(1), m()[:1], m(), t(1)):
        yield f(x)


@program
def dtypes_decide(compile):
    f = compile(lambda x: x * 2 if x.is_floating_point() else x + 1)
    for k in range(7):
        yield f(t(k, dtype=(torch.float32, torch.int64, torch.float16)[k % 3]))


@program
def try_and_finally(compile):
    s = Bag(n=0, k=1.0)

    def step(x):
        try:
            if s.k > 3:
                return x
            return x * s.k
        finally:
            s.n += 1

    f = compile(step)
    for k in range(8):
        yield f(t(1)), s.n
        s.k = float(k)


@program
def finally_wins(compile):
    s = Bag(k=1.0)

    def step(x):
        for _ in range(2):
            try:
                return x * s.k
            finally:
                if s.k > 2:
                    continue
        return x - 1

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        s.k = float(k)


@program
def a_context_manager_that_swallows(compile):
    s = Bag(k=1)

    def step(x):
        with contextlib.suppress(ZeroDivisionError):
            x = x * (10 // s.k)
            x = x + 1
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        s.k = k % 3


@program
def a_context_manager_of_its_own(compile):
    s = Bag(depth=0, log=[])

    @contextlib.contextmanager
    def scope(name):
        s.depth += 1
        s.log.append(name)
        try:
            yield s.depth
        finally:
            s.depth -= 1

    def step(x):
        with scope("a") as one, scope("b") as two:
            return x * one + two

    f = compile(step)
    for k in range(7):
        yield f(t(1)), s
        s.depth = k % 2


@program
def an_exit_stack(compile):
    s = Bag(left=0)

    def leave():
        s.left += 1

    def step(x, n):
        with contextlib.ExitStack() as stack:
            for _ in range(n):
                stack.callback(leave)
            return x * s.left

    f = compile(step)
    for k in range(7):
        yield f(t(1), k % 3), s.left


@program
def sorted_by_a_key_that_changes(compile):
    parts = [Bag(k=1.0, w=t(1)), Bag(k=2.0, w=t(5)), Bag(k=3.0, w=t(9))]

    def step(x):
        for i, part in enumerate(sorted(parts, key=lambda p: p.k)):
            x = x * 2 + part.w * i
        return x

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        parts[k % 3].k = float(10 - k)


@program
def the_largest_by_a_key(compile):
    d = {"a": 1.0, "b": 2.0}
    f = compile(lambda x: (x * d[max(d, key=d.get)], min(d.items(), key=lambda p: p[1])))
    for k in range(7):
        yield f(t(1))
        d["ab"[k % 2]] += 2


@program
def an_assertion_decides(compile):
    s = Bag(k=1)

    def step(x):
        assert s.k < 3, "too large"
        return x * s.k

    f = compile(step)
    for k in (1, 2, 3, 1, 4, 2):
        s.k = k
        yield attempt(f, t(1))


@program
def nothing_is_done_on_some_calls(compile):
    s = Bag(on=True, out=None)

    def step(x):
        if not s.on:
            return None
        s.out = x * 2
        return s.out

    f = compile(step)
    for k in range(CALLS + 2):
        yield f(t(k)), s.out
        s.on = k % 3 != 0
