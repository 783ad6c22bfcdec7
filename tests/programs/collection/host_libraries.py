"""The world outside: files, folders, environments, clocks, settings of libraries."""

from __future__ import annotations

import decimal
import gc
import logging
import math
import os
import pathlib
import re
import sys
import tempfile
import time
from os import getenv
from unittest import mock

import numpy as np
import torch

from tests.programs.writing import Bag, attempt, program, t


@program
def a_variable_of_the_environment(compile):
    f = compile(lambda x: x * float(os.environ.get("PROGRAM_SCALE", "1")))
    for k in range(7):
        yield f(t(1))
        os.environ["PROGRAM_SCALE"] = str(k)


@program
def getenv_imported_by_name(compile):
    f = compile(lambda x: x * float(getenv("PROGRAM_SCALE", "1")))
    for k in range(7):
        yield f(t(1))
        os.environ["PROGRAM_SCALE"] = str(k)


@program
def a_variable_is_asked_for(compile):
    f = compile(lambda x: x * 2 if "PROGRAM_FLAG" in os.environ else x + 1)
    for k in range(7):
        yield f(t(1))
        if k == 2:
            os.environ["PROGRAM_FLAG"] = ""
        if k == 4:
            del os.environ["PROGRAM_FLAG"]


@program
def a_variable_is_set_inside(compile):
    def step(x):
        n = int(os.environ.get("PROGRAM_COUNT", "0")) + 1
        os.environ["PROGRAM_COUNT"] = str(n)
        return x * n

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), os.environ["PROGRAM_COUNT"]


@program
def a_file_is_read(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "scale"
        path.write_text("1")
        f = compile(lambda x: x * float(path.read_text()))
        for k in range(7):
            yield f(t(1))
            path.write_text(str(k))


@program
def a_file_is_opened_and_read(compile):
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "scale")

        def step(x):
            with open(name) as file:
                return x * float(file.read())

        f = compile(step)
        for k in range(7):
            with open(name, "w") as file:
                file.write(str(k))
            yield f(t(1))


@program
def a_file_is_written(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "log"

        def step(x):
            with open(path, "a") as file:
                file.write("a")
            return x + 1

        f = compile(step)
        for k in range(7):
            yield f(t(k)), path.read_text()


@program
def an_open_file_is_read_on(compile):
    with tempfile.TemporaryFile("w+") as file:
        file.write("\n".join(map(str, range(10))))
        file.seek(0)
        f = compile(lambda x: x * float(file.readline()))
        for _ in range(7):
            yield f(t(1))


@program
def a_file_is_asked_for(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "flag"
        f = compile(lambda x: x * 2 if path.exists() else x + 1)
        g = compile(lambda x: x * len(os.listdir(folder)))
        for k in range(7):
            yield f(t(1)), g(t(1))
            path.touch() if k % 2 else path.unlink(missing_ok=True)


@program
def the_working_folder_changes(compile):
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "a", "bc"))
        f = compile(lambda x: x * len(os.path.basename(os.getcwd())))
        for k in range(6):
            os.chdir(os.path.join(folder, "a", "bc") if k % 2 else os.path.join(folder, "a"))
            yield f(t(1))
        os.chdir("/")


@program
def a_checkpoint_is_loaded_inside(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "w.pt")
        f = compile(lambda x: x + torch.load(path).to("jax"))
        for k in range(6):
            torch.save(torch.ones(3) * k, path)
            yield f(t(1))


@program
def an_array_is_loaded_inside(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "w.npy")
        f = compile(lambda x: x * float(np.load(path)[0]))
        for k in range(6):
            np.save(path, np.array([float(k)]))
            yield f(t(1))


@program
def a_clock_goes_on(compile):
    f = compile(lambda x: (x + 1, time.perf_counter()))
    times = [f(t(1))[1] for _ in range(6)]
    yield len(set(times)), times == sorted(times)
    yield f(t(1))[0]


@program
def a_clock_is_patched(compile):
    f = compile(lambda x: x * time.time())
    with mock.patch("time.time", side_effect=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] + [7.0] * 100):
        found = [f(t(1)) for _ in range(6)]
    yield [bool((a != b).any()) for a, b in zip(found, found[1:], strict=False)]
    yield f(t(1)).shape


@program
def a_function_of_math_is_patched(compile):
    old = math.sqrt
    f = compile(lambda x: x * math.sqrt(4.0))
    try:
        for k in range(8):
            yield f(t(1))
            math.sqrt = (lambda value: 7.0) if k in (2, 3, 5) else old
    finally:
        math.sqrt = old


@program
def a_mock_answers(compile):
    scale = mock.Mock(side_effect=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    f = compile(lambda x: x * scale())
    for _ in range(6):
        yield f(t(1)), scale.call_count


@program
def a_patch_of_an_object(compile):
    s = Bag(scale=lambda: 2.0)
    f = compile(lambda x: x * s.scale())
    for k in range(6):
        if k % 2:
            with mock.patch.object(s, "scale", lambda k=k: float(k)):
                yield f(t(1))
        else:
            yield f(t(1))


@program
def the_recursion_limit_is_read(compile):
    f = compile(lambda x: x * sys.getrecursionlimit())
    for k in range(6):
        sys.setrecursionlimit(3000 + k)
        yield f(t(1))
    sys.setrecursionlimit(1000)


@program
def the_path_of_imports_is_read(compile):
    before = len(sys.path)
    f = compile(lambda x: x * (1 + len(sys.path) - before))
    for k in range(6):
        yield f(t(1))
        sys.path.append(f"/nowhere/{k}")


@program
def the_arguments_of_the_program_are_read(compile):
    before = list(sys.argv)
    f = compile(lambda x: x * len(sys.argv))
    try:
        for k in range(6):
            sys.argv[:] = ["a"] * (k % 3 + 1)
            yield f(t(1))
    finally:
        sys.argv[:] = before


@program
def the_collector_is_asked(compile):
    f = compile(lambda x: x * 2 if gc.isenabled() else x + 1)
    for k in range(6):
        (gc.disable if k % 2 else gc.enable)()
        yield f(t(1))
    gc.enable()


@program
def the_context_of_decimals(compile):
    f = compile(lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(3)))
    for k in range(6):
        with decimal.localcontext() as context:
            context.prec = 1 + k % 3
            yield f(t(3))


@program
def errors_of_numpy(compile):
    a = np.zeros(1)

    def step(x):
        try:
            return x * float((1 / a)[0] > 0)
        except FloatingPointError:
            return x - 1

    f = compile(step)
    for k in range(6):
        with np.errstate(divide="raise" if k % 2 else "ignore"):
            yield f(t(1))


@program
def options_of_numpy_printing(compile):
    a = np.array([1.23456])
    f = compile(lambda x: (x * len(str(a)), str(a)))
    for k in range(6):
        with np.printoptions(precision=2 + k % 3):
            yield f(t(1))


@program
def a_level_of_logging(compile):
    log = logging.getLogger("tests.programs.levels")
    f = compile(lambda x: x * 2 if log.isEnabledFor(logging.INFO) else x + 1)
    for k in range(6):
        log.setLevel(logging.INFO if k % 2 else logging.ERROR)
        yield f(t(1))
    log.setLevel(logging.NOTSET)


@program
def a_pattern_is_matched(compile):
    s = Bag(text="k=1")
    f = compile(lambda x: x * float(re.match(r"k=(\d+)", s.text).group(1)))
    for k in range(6):
        yield f(t(1))
        s.text = f"k={k}"


@program
def a_scanner_of_text_moves_on(compile):
    found = re.finditer(r"\d+", "1 2 3 4 5 6 7 8")
    f = compile(lambda x: x * float(next(found).group()))
    for _ in range(7):
        yield f(t(1))


@program
def numpy_computes_a_number(compile):
    a = np.arange(4.0)
    f = compile(lambda x: x * float(np.linalg.norm(a)) + int(a.argmax()))
    for k in range(7):
        yield f(t(1))
        a[k % 4] = 10 + k


@program
def an_array_becomes_a_tensor(compile):
    a = np.arange(3, dtype=np.float32)
    f = compile(lambda x: x + torch.from_numpy(a).to("jax"))
    for k in range(7):
        yield f(t(1))
        a += k


@program
def an_array_becomes_a_tensor_by_a_copy(compile):
    a = np.arange(3, dtype=np.float32)
    f = compile(lambda x: x + torch.tensor(a, device="jax"))
    for k in range(7):
        yield f(t(1))
        a += k


@program
def a_list_becomes_a_tensor(compile):
    items = [1.0, 2.0, 3.0]
    f = compile(lambda x: x + torch.tensor(items, device="jax"))
    for k in range(7):
        yield f(t(1))
        items[k % 3] = float(k)


@program
def a_number_becomes_a_tensor(compile):
    s = Bag(k=1.0)
    f = compile(lambda x: x + torch.tensor(s.k, device="jax") + torch.full((3,), s.k, device="jax"))
    for k in range(7):
        yield f(t(1))
        s.k = float(k)


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
def cpu_tensors_become_numbers(compile):
    sizes, scale = torch.tensor([1, 2]), torch.tensor([2.0])
    f = compile(lambda x: x.repeat(sizes.tolist()) * scale.numpy()[0].item())
    for k in range(7):
        yield f(t(1))
        sizes[k % 2] = 1 + k % 3
        scale.fill_(k)


@program
def a_module_on_the_cpu_is_written(compile):
    table = torch.nn.Embedding(4, 3)
    f = compile(lambda x: x + table(torch.tensor([1])).detach().to("jax"))
    for k in range(7):
        yield f(t(1))
        torch.nn.init.constant_(table.weight, float(k))


@program
def a_meter_divides_by_a_counter(compile):
    meter = Bag(total=0.0, n=0)

    def step(x, k):
        meter.total += k
        meter.n += 1
        return x * (meter.total / meter.n)

    f = compile(step)
    for k in range(9):
        yield f(t(1), float(k)), meter


@program
def a_missing_file_raises(compile):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "late"
        f = compile(lambda x: x * float(path.read_text()))
        for k in range(6):
            yield attempt(f, t(1))
            if k >= 2:
                path.write_text(str(k))


@program
def the_size_of_an_object(compile):
    items = [1]
    f = compile(lambda x: x * len(items) if sys.getsizeof(items) < 120 else x - 1)
    for _ in range(7):
        yield f(t(1))
        items.extend([1, 2, 3])
