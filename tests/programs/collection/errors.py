"""Exceptions: raised, caught, chained, after writes; what they leave of state and tensors."""

from __future__ import annotations

import contextlib

import torch

from tests.programs.writing import Bag, attempt, linear, program, t


@program
def a_number_that_raises(compile):
    s = Bag(k=1)

    def step(x):
        if s.k == 3:
            raise ValueError("three")
        return x * s.k

    f = compile(step)
    for k in range(9):
        s.k = k % 5
        yield attempt(f, t(1)), s


@program
def a_write_before_it_raises(compile):
    s = Bag(w=t(1), n=0, bad=False)

    def step(x):
        s.w.add_(x)
        s.n += 1
        if s.bad:
            raise ValueError
        return s.w * s.n

    f = compile(step)
    for k in range(9):
        s.bad = k % 3 == 2
        yield attempt(f, t(k)), s


@program
def a_replacement_before_it_raises(compile):
    s = Bag(w=t(1), log=[], bad=False)

    def step(x):
        s.w = s.w + x
        s.log.append(len(s.log))
        if s.bad:
            raise KeyError("bad")
        return s.w

    f = compile(step)
    for k in range(9):
        s.bad = k in (0, 4, 7)
        yield attempt(f, t(k)), s


@program
def gradients_before_it_raises(compile):
    w, s = t(1, grad=True), Bag(bad=False)

    def step(x):
        (w * x).sum().backward()
        if s.bad:
            raise ValueError
        return x + 1

    f = compile(step)
    for k in range(8):
        s.bad = k % 3 == 1
        yield attempt(f, t(k)), w


@program
def an_optimizer_before_it_raises(compile):
    net, s = linear(), Bag(bad=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x):
        opt.zero_grad()
        net(x).square().sum().backward()
        opt.step()
        if s.bad:
            raise ValueError

    f = compile(step)
    for k in range(8):
        s.bad = k in (0, 3, 6)
        yield attempt(f, t(0.1 * k + 0.1, 0.2, 0.3)), net, opt


@program
def an_operator_raises(compile):
    f = compile(lambda x, y: x + y)
    for k in range(7):
        yield attempt(f, t(1), t(1, 2) if k % 3 == 1 else t(k))


@program
def an_operator_raises_after_a_write(compile):
    w = t(1)

    def step(x, y):
        w.add_(x)
        return x + y

    f = compile(step)
    for k in range(7):
        yield attempt(f, t(1), t(1, 2) if k % 3 == 1 else t(k)), w


@program
def an_operator_raises_and_is_caught(compile):
    def step(x, y):
        try:
            return x + y
        except RuntimeError:
            return x * 2

    f = compile(step)
    for k in range(7):
        yield f(t(1), t(1, 2) if k % 3 == 1 else t(k))


@program
def an_index_out_of_range(compile):
    f = compile(lambda x, i: x[i])
    for k in range(7):
        yield attempt(f, t(1), (0, 1, 5, 2, -1, -4, 0)[k])


@program
def an_index_tensor_out_of_range(compile):
    w = t(1)

    def step(i):
        w.add_(1)
        return w[i]

    f = compile(step)
    for k in range(7):
        i = torch.tensor([(0, 1, 5, 2, 2, 7, 0)[k]]).to("jax")
        out = attempt(f, i)
        yield out if isinstance(out, type) else out * 1


@program
def a_missing_attribute(compile):
    s = Bag()
    f = compile(lambda x: x * s.k)
    for k in range(8):
        yield attempt(f, t(1))
        if k == 2:
            s.k = 2.0
        if k == 5:
            del s.k


@program
def a_missing_key(compile):
    d = {}
    f = compile(lambda x: x * d["k"])
    for k in range(8):
        yield attempt(f, t(1))
        if k == 2:
            d["k"] = 2.0
        if k == 5:
            d.clear()


@program
def a_division_by_zero(compile):
    s = Bag(k=1)
    f = compile(lambda x: x * (6 / s.k) + 6 // s.k)
    for k in range(8):
        s.k = k % 3
        yield attempt(f, t(1))


@program
def an_assertion(compile):
    def step(x, k):
        assert k < 3
        return x * k

    f = compile(step)
    for k in range(7):
        yield attempt(f, t(1), k % 5)


@program
def an_error_of_its_own_with_facts(compile):
    class Bad(Exception):
        def __init__(self, k):
            super().__init__(f"bad {k}")
            self.k = k

    def step(x, k):
        if k % 2:
            raise Bad(k)
        return x * k

    f = compile(step)
    for k in range(7):
        try:
            yield f(t(1), k)
        except Bad as error:
            yield error.k, str(error), error.__cause__, error.__context__


@program
def an_error_with_a_cause(compile):
    s = Bag(k=0)

    def step(x):
        try:
            return x * (1 // s.k)
        except ZeroDivisionError as error:
            raise ValueError("no") from error

    f = compile(step)
    for k in range(6):
        try:
            yield f(t(1))
        except ValueError as error:
            yield str(error), type(error.__cause__).__name__
        s.k = k % 2


@program
def an_error_that_is_kept(compile):
    s = Bag(last=None, k=0)

    def step(x):
        try:
            x = x * (1 // s.k)
        except ZeroDivisionError as error:
            s.last = str(error)
        else:
            s.last = None
        return x

    f = compile(step)
    for k in range(7):
        yield f(t(1)), s
        s.k = k % 2


@program
def finally_after_an_error(compile):
    s = Bag(entered=0, left=0, bad=False)

    def step(x):
        s.entered += 1
        try:
            if s.bad:
                raise ValueError
            return x * s.entered
        finally:
            s.left += 1

    f = compile(step)
    for k in range(8):
        s.bad = k % 3 == 2
        yield attempt(f, t(1)), s


@program
def with_after_an_error(compile):
    s = Bag(bad=False, log=[])

    @contextlib.contextmanager
    def scope():
        s.log.append("in")
        try:
            yield
        except ValueError:
            s.log.append("caught")
        finally:
            s.log.append("out")

    def step(x):
        with scope():
            if s.bad:
                raise ValueError
            return x + 1
        return x - 1

    f = compile(step)
    for k in range(8):
        s.bad = k % 3 == 2
        yield f(t(1)), list(s.log)
        s.log.clear()


@program
def a_group_of_errors(compile):
    def step(x, k):
        try:
            if k % 2:
                raise ExceptionGroup("both", [ValueError(k), KeyError(k)])
            return x * k
        except* ValueError:
            x = x + 100
        except* KeyError:
            x = x * 2
        return x

    f = compile(step)
    for k in range(7):
        yield f(t(1), k)


@program
def stop_iteration_and_friends(compile):
    kinds = (StopIteration, GeneratorExit, KeyError, LookupError, NotImplementedError, OSError)

    def step(x, kind):
        if kind is not None:
            raise kind("bad")
        return x + 1

    f = compile(step)
    for kind in (None, *kinds, None):
        try:
            yield f(t(1), kind)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not error.args:
                raise
            yield type(error).__name__


@program
def a_keyboard_interrupt(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        if s.n % 3 == 0:
            raise KeyboardInterrupt
        return x * s.n

    f = compile(step)
    for _ in range(8):
        try:
            yield f(t(1)), s.n
        except KeyboardInterrupt:
            yield "interrupted", s.n


@program
def too_deep_a_recursion(compile):
    def down(x, n):
        return x if n == 0 else down(x, n - 1)

    f = compile(lambda x, n: down(x, n) + 1)
    for n in (1, 2, 10**6, 1, 3, 2):
        yield attempt(f, t(1), n)


@program
def errors_in_backward(compile):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if s.bad:
                raise ValueError("bad gradient")
            return g

    s = Bag(bad=False)

    def step(w):
        Bad.apply(w).sum().backward()

    f = compile(step)
    for k in range(7):
        s.bad = k % 3 == 1
        w = t(k, grad=True)
        yield attempt(f, w), w


@program
def wrong_arguments(compile):
    f = compile(lambda x, k=1.0: x * k)
    yield f(t(1))
    yield attempt(f)
    yield attempt(f, t(1), 2, 3)
    yield attempt(f, t(1), z=3)
    yield attempt(f, t(1), x=3)
    yield f(t(1), 2.0)
    yield f(t(1), k=3.0)


@program
def a_retry_after_an_error(compile):
    s = Bag(tries=0, w=t(1))

    def risky(x):
        s.tries += 1
        s.w.add_(x)
        if s.tries % 4 == 0:
            raise RuntimeError("again")
        return s.w * 1

    f = compile(risky)
    for k in range(9):
        out = attempt(f, t(k))
        yield f(t(k)) if isinstance(out, type) else out, s


@program
def an_error_in_a_property(compile):
    class P:
        n = 0

        @property
        def k(self):
            self.n += 1
            if self.n % 3 == 0:
                raise AttributeError("none")
            return float(self.n)

    p = P()
    f = compile(lambda x: x * getattr(p, "k", -1.0))
    for _ in range(8):
        yield f(t(1)), p.n


@program
def a_loop_that_tries_several(compile):
    d = {"a": "1.5", "b": "bad", "c": "2"}

    def step(x):
        bad = []
        for name, text in d.items():
            try:
                x = x * float(text)
            except ValueError:
                bad.append(name)
        return x, bad

    f = compile(step)
    for k in range(7):
        yield f(t(1))
        d["abc"[k % 3]] = ("2", "x", "0.5")[k % 2]
