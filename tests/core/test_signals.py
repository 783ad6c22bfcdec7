"""Ctrl-C at any time: each arrives as ``KeyboardInterrupt``, and tensors are as they should be."""

import asyncio
import signal

import pytest

from tests.support import processes

# Interrupts the main thread at random moments; after each, waits for it to arrive. Prints how many.
# Python itself drops what a callback of its garbage collector raises, and says so; JAX has one.
PROGRAM = """
import _thread, random, signal, sys, threading, time
import torch, torch_jax

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

def send():
    chance = random.Random(int(sys.argv[2]))
    for n in range(count):
        asked.wait()
        asked.clear()
        time.sleep(chance.random() * 1e-3)
        (_thread.interrupt_main if n % 2 else lambda: signal.raise_signal(signal.SIGINT))()

w = torch.ones(4, 4, device="jax", requires_grad=True)
with torch.no_grad():
    x, rows = torch.ones(4, 4, device="jax"), torch.zeros(8, 4, device="jax")
    kept = [torch.zeros(64, device="jax") for _ in range(3)]

@torch_jax.jit(pure=True)
@torch.no_grad()
def step():
    torch._foreach_add_(kept, 1)  # one operator, also in a call that is audited

def back():
    w.grad = None
    (w * 2).sum().backward()

def hooked():
    y = w * 2
    y.register_hook(lambda gradient: gradient * 1)
    y.sum().backward()

calls = [
    lambda: w * 2,
    lambda: w.t(),
    back,
    hooked,
    lambda: rows[3].copy_(x[0]),
    lambda: x.mul_(1.0),
    lambda: (x @ x).sum().item(),
    step,
]
for call in calls * 8:
    call()
assert step.explain().observed == 1
count, arrived, n = int(sys.argv[1]), 0, 0
asked = threading.Event()
dropped = []

def say_what_python_drops(what):
    if what.exc_type is not KeyboardInterrupt or what.object.__name__ != "_xla_gc_callback":
        sys.__unraisablehook__(what)
    dropped.append(what.object)
    asked.set()

sys.unraisablehook = say_what_python_drops
threading.Thread(target=send, daemon=True).start()
while arrived + len(dropped) < count:
    try:
        asked.set()
        deadline = time.monotonic() + 60
        while arrived + len(dropped) < count:
            calls[n % len(calls)]()
            n += 1
            if time.monotonic() > deadline + len(dropped):
                sys.exit("an interrupt was lost")
    except KeyboardInterrupt:
        arrived += 1
assert (x == 1).all() and (w == 1).all() and rows.sum() == 4
steps = {value for tensor in kept for value in tensor.tolist()}
assert len(steps) == 1, steps
back()
assert w.grad.tolist() == [[2] * 4] * 4
print(arrived + len(dropped))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_interrupt_arrives(count):
    assert processes.output("-c", PROGRAM, str(count), "0", new=True) == str(count)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timers")
def test_a_blocking_call_is_interrupted():
    program = """
import signal, time
import torch
torch.ones(1, device="jax", requires_grad=True) * 2
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
start = time.monotonic()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print(time.monotonic() - start < 30)
"""
    assert processes.output("-c", program, new=True) == "True"


def test_handlers_are_what_they_were_given_as():
    def handler(signum, frame):
        seen.append((signum, frame is not None))

    seen = []
    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert signal.getsignal(signal.SIGTERM) is handler
        signal.raise_signal(signal.SIGTERM)
        assert seen == [(signal.SIGTERM, True)]
    finally:
        assert signal.signal(signal.SIGTERM, before) is handler
    assert signal.getsignal(signal.SIGTERM) == before


def test_asyncio_cancels_its_task():
    async def main():
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    seen = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["cancelled"]
