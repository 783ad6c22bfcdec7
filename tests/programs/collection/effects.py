"""What a call leaves behind besides its result: text, queues, arrays, warnings, modes."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import pickle
import queue
import struct
import threading
import warnings
import weakref

import numpy as np
import torch

from tests.programs.writing import CALLS, Bag, program, t


@program
def text_is_printed(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        print("call", s.n)
        return x * s.n

    f = compile(step)
    for _ in range(7):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            y = f(t(1))
        yield y, out.getvalue()


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
def text_is_written_to_a_buffer(compile):
    out = io.StringIO()

    def step(x):
        out.write("a")
        return x * len(out.getvalue())

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), out.getvalue()


@program
def bytes_are_read_from_a_buffer(compile):
    data = io.BytesIO(bytes(range(20)))
    f = compile(lambda x: x * data.read(1)[0])
    for k in range(8):
        yield f(t(1)), data.tell()
        if k == 4:
            data.seek(0)


@program
def a_numpy_array_is_written(compile):
    a = np.zeros(3)

    def step(x):
        a[0] += 1
        return x * float(a[0])

    f = compile(step)
    for k in range(8):
        yield f(t(1)), a
        if k == 4:
            a[:] = 50


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
def an_object_array_is_written(compile):
    a = np.array([None, 1.0], dtype=object)

    def step(x):
        a[0], a[1] = a[1], x * 2
        return x + a[0]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), list(a)


@program
def a_list_in_an_object_array_grows(compile):
    a = np.array([[1], None], dtype=object)
    f = compile(lambda x: x * len(a[0]))
    for k in range(7):
        yield f(t(1))
        a[0].append(k)


@program
def a_structured_array_is_read(compile):
    a = np.array([(1.0, 2)], dtype=[("k", "f8"), ("n", "i4")])
    f = compile(lambda x: x * float(a["k"][0]) + int(a[0]["n"]))
    for _ in range(7):
        yield f(t(1))
        a["k"] += 1


@program
def a_view_of_an_array_is_written(compile):
    a = np.arange(4.0)
    part = a[1:]
    f = compile(lambda x: x * float(part[0]))
    for _ in range(7):
        yield f(t(1))
        a[1] += 1


@program
def numbers_go_through_a_queue(compile):
    q = queue.Queue()

    def step(x):
        q.put(q.qsize() + 1.0)
        return x * q.qsize()

    f = compile(step)
    for k in range(8):
        yield f(t(1)), list(q.queue)
        if k == 4:
            q.get()


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
def a_heap_queue(compile):
    import heapq

    heap = [3.0, 5.0]

    def step(x, k):
        heapq.heappush(heap, k)
        return x * heapq.heappop(heap)

    f = compile(step)
    for k in (1.0, 9.0, 4.0, 4.0, 0.5, 7.0, 2.0):
        yield f(t(1), k), list(heap)


@program
def an_event_is_set(compile):
    event = threading.Event()

    def step(x):
        was = event.is_set()
        event.set()
        return x * 2 if was else x

    f = compile(step)
    for k in range(8):
        yield f(t(1)), event.is_set()
        if k % 3 == 2:
            event.clear()


@program
def a_semaphore_is_taken(compile):
    free = threading.Semaphore(4)
    f = compile(lambda x: x * 2 if free.acquire(blocking=False) else x)
    for _ in range(7):
        yield f(t(1)), free._value


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
def a_log_is_kept(compile):
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    log = logging.getLogger("tests.programs.effects")
    log.addHandler(Keep())
    log.setLevel(logging.INFO)

    def step(x):
        log.info("call %d", len(records))
        return x + 1

    f = compile(step)
    for k in range(8):
        yield f(t(k)), list(records)
        if k == 5:
            log.setLevel(logging.ERROR)


@program
def bytes_are_packed(compile):
    data = bytearray(8)

    def step(x):
        (n,) = struct.unpack_from("d", data)
        struct.pack_into("d", data, 0, n + 1.5)
        return x * n

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), bytes(data)


@program
def memory_is_written_by_ctypes(compile):
    numbers = (ctypes.c_double * 2)(1.0, 2.0)

    def step(x):
        numbers[0] += 1
        return x * numbers[0]

    f = compile(step)
    for k in range(7):
        yield f(t(1)), list(numbers)
        numbers[1] = k


@program
def a_ctypes_value_is_read(compile):
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("k", ctypes.c_double)]

    p = Pair(1, 2.0)
    f = compile(lambda x: x * p.k + p.a)
    for k in range(7):
        yield f(t(1))
        p.k, p.a = k, k * 2


@program
def an_object_is_pickled(compile):
    s = Bag(k=1.0)
    f = compile(lambda x: x * vars(pickle.loads(pickle.dumps(s)))["k"])
    for _ in range(7):
        yield f(t(1))
        s.k += 1


@program
def text_is_parsed(compile):
    s = Bag(text='{"k": 1.0}')
    f = compile(lambda x: x * json.loads(s.text)["k"])
    for k in range(7):
        yield f(t(1))
        s.text = json.dumps({"k": k})


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
def grad_mode_is_left_changed(compile):
    def step(x):
        torch.set_grad_enabled(False)
        return x * 2

    f = compile(step)
    for _ in range(6):
        torch.set_grad_enabled(True)
        yield f(t(1)), torch.is_grad_enabled()
    torch.set_grad_enabled(True)


@program
def the_default_dtype_is_left_changed(compile):
    s = Bag(dtype=torch.float64)

    def step(x):
        torch.set_default_dtype(s.dtype)
        return x * 2

    f = compile(step)
    for k in range(7):
        yield f(t(1)), torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        s.dtype = (torch.float32, torch.float64)[k % 2]
    torch.set_default_dtype(torch.float32)


@program
def a_list_of_results_is_kept(compile):
    kept = []

    def step(x):
        y = x * 2
        kept.append(y)
        return y

    f = compile(step)
    for k in range(7):
        y = f(t(k))
        yield y, kept, kept[-1] is y


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
def a_result_is_kept_in_two_places(compile):
    s, kept = Bag(), [None]

    def step(x):
        s.y = kept[0] = x * 2
        return x + 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), s.y is kept[0], s, kept


@program
def a_weak_reference_calls_back(compile):
    died = []

    class Thing:
        pass

    refs = []

    def step(x):
        thing = Thing()
        refs.append(weakref.ref(thing, lambda _: died.append(1)))
        return x * 2

    f = compile(step)
    for _ in range(6):
        yield f(t(1)), len(died), len(refs)


@program
def attributes_of_a_module_are_counted(compile):
    model = torch.nn.Linear(3, 3).to("jax")
    model.calls, model.history = 0, []

    def step(x):
        model.calls += 1
        model.history.append(model.calls)
        return model(x).detach() * model.calls

    f = compile(step)
    for _ in range(CALLS):
        yield f(t(1)), model.calls, model.history


@program
def nothing_is_returned(compile):
    w = t(0)

    def step(x):
        w.add_(x)

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w


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
def new_objects_are_returned(compile):
    def step(x, k):
        out = Bag(y=x * 2, k=k)
        out.me = [out.y]
        return out

    f = compile(step)
    outs = []
    for k in range(7):
        outs.append(f(t(k), k % 3))
        yield outs[-1], len({id(o) for o in outs}), outs


@program
def functions_are_returned(compile):
    f = compile(lambda x, k: lambda y: x * y + k)
    for k in range(6):
        yield f(t(k), k % 3)(t(2))
