"""The host: text, files, NumPy, CPU tensors; results and effects of a call."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import tempfile
import warnings

import numpy as np
import torch

from tests.programs.writing import Bag, program, t


@program
def a_tensor_is_printed(compile):
    def step(x):
        print(x * 2)
        return x + 1

    f = compile(step)
    for k in range(6):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            y = f(t(k))
        yield y, out.getvalue()


@program
def a_numpy_array_gets_a_tensor(compile):
    a = np.zeros((8, 3), dtype=np.float32)
    s = Bag(n=0)

    def step(x):
        a[s.n] = (x * 2).cpu().numpy()
        s.n += 1
        return x + 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), a


@program
def tensors_go_through_a_queue(compile):
    q = queue.SimpleQueue()
    q.put(t(1))

    def step(x):
        y = q.get() + x
        q.put(y * 1)
        return y

    f = compile(step)
    for k in range(7):
        yield f(t(k)), q.qsize()


@program
def a_warning_is_given(compile):
    s = Bag(k=1)

    def step(x):
        warnings.warn(f"call of {s.k}", stacklevel=1)
        return x * s.k

    f = compile(step)
    for k in range(7):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = f(t(1))
        yield y, [str(w.message) for w in found if "call of" in str(w.message)]
        s.k = k % 2


@program
def a_tensor_is_saved(compile):
    w = t(1)
    out = Bag(files=[])

    def step(x):
        w.add_(x)
        file = io.BytesIO()
        torch.save(w, file)
        out.files.append(file.getvalue())
        return w * 1

    f = compile(step)
    for k in range(6):
        yield f(t(k)), torch.load(io.BytesIO(out.files[-1])), len(out.files)


@program
def cpu_tensors_are_copied_and_saved(compile):
    import copy

    c = torch.ones(3)
    s = Bag(kept=None)

    def step(x):
        s.kept = copy.deepcopy(c)
        return x * 2

    f = compile(step)
    for _ in range(6):
        yield f(t(1)), s.kept
        c += 1


@program
def a_dict_of_results_by_call(compile):
    kept = {}

    def step(x, name):
        kept[name] = x * 2
        return sum(kept.values())

    f = compile(step)
    for k in range(8):
        yield f(t(k), "abc"[k % 3]), kept
        if k == 5:
            del kept["a"]


@program
def new_containers_are_returned(compile):
    def step(x):
        inner = [x * 2]
        return {"a": inner, "b": inner, "c": (inner, {"d": x + 1})}

    f = compile(step)
    outs = []
    for k in range(7):
        out = f(t(k))
        out["a"].append(k)
        outs.append(out)
        yield out, len({id(o["a"]) for o in outs})


@program
def functions_are_returned(compile):
    f = compile(lambda x, k: lambda y: x * y + k)
    for k in range(6):
        yield f(t(k), k % 3)(t(2))


@program
def a_variable_of_the_environment(compile):
    f = compile(lambda x: x * float(os.environ.get("PROGRAM_SCALE", "1")))
    for k in range(7):
        yield f(t(1))
        os.environ["PROGRAM_SCALE"] = str(k)


@program
def a_checkpoint_is_loaded_inside(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "w.pt")
        f = compile(lambda x: x + torch.load(path).to("jax"))
        for k in range(6):
            torch.save(torch.ones(3) * k, path)
            yield f(t(1))


@program
def numpy_computes_a_number(compile):
    a = np.arange(4.0)
    f = compile(lambda x: x * float(np.linalg.norm(a)) + int(a.argmax()))
    for k in range(7):
        yield f(t(1))
        a[k % 4] = 10 + k


@program
def an_array_shares_memory_with_a_cpu_tensor(compile):
    a = np.arange(3, dtype=np.float32)
    c = torch.from_numpy(a)
    f = compile(lambda x: x + c.to("jax"))
    for k in range(7):
        yield f(t(1))
        a += k


@program
def cpu_tensors_are_written(compile):
    scale, mask = torch.tensor(2.0), torch.ones(3)
    f = compile(lambda x: x * scale + mask.to("jax"))
    for k in range(7):
        yield f(t(1))
        (mask if k % 2 else scale).fill_(k)


@program
def a_log_of_the_memory(compile):
    w, log = t(1), []

    def step(x):
        w.add_(x)
        log.append((float(w.sum()), torch.jax.memory_allocated() > 0))
        return w * 2

    f = compile(step)
    for k in range(6):
        yield f(t(k)), log
