"""Ctrl-C while operators are recorded and run: only the interrupted operator is lost."""

from __future__ import annotations

import _thread
import signal

import jax
import pytest
import torch

import torch_jax
from tests.support import processes

# Each line of the loop does one thing, and says so first: after an interrupt every tensor is what
# the lines that were reached have made of it, the last one done or not.
PROGRAM = """
import _thread, random, signal, sys, threading, time
import torch, torch_jax

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
count, arrived, asked = int(sys.argv[1]), 0, threading.Event()

def send():
    chance = random.Random(0)
    while True:
        asked.wait()
        asked.clear()
        time.sleep(chance.random() * 2e-3)
        _thread.interrupt_main()

sys.unraisablehook = lambda what: asked.set()  # what Python's garbage collector drops comes again
threading.Thread(target=send, daemon=True).start()
x = torch.zeros(8).to("jax")
rows = torch.zeros(4, 8).to("jax")
with torch_jax.lazy():  # imports what it needs, some of which swallow interrupts (mpmath does)
    kept = torch.zeros(3).to("jax").mul_(2)  # what nobody has is not computed
torch_jax.sync()
done = begun = n = 0
deadline = time.monotonic() + 200
while arrived < count:
    try:
        asked.set()
        with torch_jax.lazy():
            while True:
                begun += 1
                x.add_(1)
                done += 1
                rows[n % 4].copy_(x)
                if n % 5 == 0:
                    torch_jax.sync()
                n += 1
                if time.monotonic() > deadline:
                    sys.exit("an interrupt was lost")
    except KeyboardInterrupt:
        arrived += 1
        value = x[0].item()
        assert done <= value <= begun, (done, value, begun)
        assert (x == value).all() and rows.max() <= value
        done = begun = int(value)
print(arrived)
"""


@pytest.mark.slow
def test_nothing_is_lost():
    assert processes.output("-c", PROGRAM, "1000", new=True) == "1000"


def test_an_except_of_jax_swallows_none(monkeypatch):
    make_jaxpr = jax.make_jaxpr

    def interrupted(function):
        try:
            _thread.interrupt_main()
            sum(range(1000))
        except:  # noqa: E722 - as JAX has several
            pass
        return make_jaxpr(function)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        x = torch.arange(7.0).to("jax")
        monkeypatch.setattr(jax, "make_jaxpr", interrupted)
        with pytest.raises(KeyboardInterrupt), torch_jax.lazy():
            x.xlogy_(2.5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.equal(x.cpu(), torch.arange(7.0))  # the operator itself was interrupted
