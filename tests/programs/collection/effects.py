"""The host: text, NumPy, CPU tensors, counts of memory."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import torch

from tests.programs.writing import Bag, program, t


@program
def a_tensor_is_printed(compile):
    w, log = t(1), []

    def step(x):
        print(w.add_(x) * 2)
        log.append((float(w.sum()), torch.jax.memory_allocated() > 0))
        return x + 1

    f = compile(step)
    for k in range(6):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            y = f(t(k))
        yield y, out.getvalue(), log


@program
def a_numpy_array_gets_a_tensor(compile):
    a = np.zeros((8, 3), dtype=np.float32)
    s = Bag(n=0)

    def step(x):
        a[s.n] = (x * 2).cpu().numpy()
        s.n += 1
        return x + int(a.argmax())

    f = compile(step)
    for k in range(7):
        yield f(t(k)), a


@program
def cpu_tensors_and_arrays_are_written(compile):
    a = np.arange(3, dtype=np.float32)
    shift, scale, count = torch.from_numpy(a), torch.tensor(2.0), torch.zeros((), dtype=torch.int64)

    def step(x):
        count.add_(1)
        return x * scale + shift.to("jax") * count.item()

    f = compile(step)
    for k in range(7):
        yield f(t(1)), count.item()
        if k % 2:
            a += k
        else:
            scale.fill_(k)
