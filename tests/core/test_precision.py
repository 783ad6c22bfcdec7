"""Precision of float32 products: the settings, and no program of another precision is run."""

import ast
import asyncio
import functools
import inspect
import random
import re
import threading
from collections import defaultdict
from pathlib import Path
from types import FunctionType, SimpleNamespace

import jax.numpy as jnp
import pytest
import torch
from jax import lax

import torch_jax
from tests.support.executors import EXECUTORS
from torch_jax import config
from torch_jax.core import precision
from torch_jax.ops import matmul, registry
from torch_jax.ops import precision as of_ops

FACTORS = {lax.Precision.HIGHEST: 1.0, lax.Precision.HIGH: 2.0, lax.Precision.DEFAULT: 4.0}
BY_NAME = {"highest": 1.0, "high": 2.0, "medium": 4.0}


def forget():
    config.set("matmul_precision", "torch")  # which drops what was compiled
    config.set("conv_precision", "torch")


@pytest.fixture(autouse=True)
def as_it_was():
    # torch.testing._internal freezes these switches where another test of the process imports it
    with torch.backends.__allow_nonbracketed_mutation():
        yield
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.backends.cudnn.allow_tf32 = True
    forget()


@pytest.fixture
def shown_in_values(monkeypatch):
    """Products are multiplied by 1, 2 or 4: results show by which precision they were compiled."""
    torch.ones(1, device="jax")  # the first use imports those who take the function by name
    original = matmul.dot

    def dot(a, b, *dims):
        return original(a, b, *dims) * FACTORS[of_ops.precision(a.dtype)]

    monkeypatch.setattr(matmul, "dot", dot)
    forget()


# --- who says so ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "matmul", "conv"),
    [
        ("", "highest", "highest"),
        ("old('high')", "high", "high"),
        ("old('medium')", "medium", "high"),
        ("old('medium'); old('highest')", "highest", "highest"),
        ("cuda.allow_tf32 = True", "high", "high"),
        ("old('medium'); cuda.allow_tf32 = False", "highest", "highest"),
        ("old('medium'); cuda.allow_tf32 = True", "high", "high"),
        ("cuda.fp32_precision = 'tf32'", "high", "high"),
        ("old('high'); cuda.fp32_precision = 'ieee'", "highest", "highest"),
        ("everywhere.fp32_precision = 'tf32'", "high", "high"),
        ("cudnn.allow_tf32 = False; everywhere.fp32_precision = 'bf16'", "medium", "highest"),
        ("everywhere.fp32_precision = 'tf32'; cuda.fp32_precision = 'ieee'", "highest", "highest"),
        ("cudnn.allow_tf32 = False; old('high')", "high", "highest"),
        ("old('high'); cudnn.conv.fp32_precision = 'ieee'", "high", "highest"),
        ("mkldnn.fp32_precision = 'bf16'", "highest", "highest"),  # of the CPU alone
        ("old('high'); own.matmul.fp32_precision = 'ieee'", "highest", "high"),
        ("own.conv.fp32_precision = 'tf32'", "highest", "high"),
        ("own.fp32_precision = 'bf16'", "medium", "medium"),
        ("own.matmul.allow_tf32 = True; old('medium')", "high", "high"),
        ("own.matmul.allow_tf32 = False; old('medium')", "highest", "high"),
        ("own.fp32_precision = 'bf16'; own.fp32_precision = 'none'", "highest", "highest"),
    ],
)
def test_who_is_listened_to(calls, matmul, conv):
    names = {
        "old": torch.set_float32_matmul_precision,
        "cuda": torch.backends.cuda.matmul,
        "cudnn": torch.backends.cudnn,
        "mkldnn": torch.backends.mkldnn.matmul,
        "everywhere": torch.backends,
        "own": torch.backends.jax,
    }
    exec(calls, names)
    assert precision.state() == (matmul, conv)
    with torch_jax.matmul_precision("medium"):
        assert precision.state() == ("medium", "medium")
        with torch_jax.matmul_precision("highest"):
            assert precision.state() == ("highest", "highest")
    assert precision.state() == (matmul, conv)


def test_what_is_no_precision():
    with pytest.raises(ValueError, match="'tf32'"):
        torch_jax.matmul_precision("tf32")
    with pytest.raises(ValueError, match="'default'"):
        config.set("matmul_precision", "default")
    with pytest.raises(RuntimeError, match="'high'"):
        torch.backends.jax.matmul.fp32_precision = "high"
    with pytest.raises(TypeError, match="decorates"):
        torch_jax.matmul_precision("high")(torch.nn.Linear)


def test_a_block_is_of_one_thread_and_one_task():
    found = {}

    def other():
        found["thread"] = precision.state().matmul

    async def task(name, value, first, then):
        with torch_jax.matmul_precision(value):
            first.set()
            await then.wait()
            found[name] = precision.state().matmul

    async def both():
        events = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task("a", "high", *events), task("b", "medium", *events[::-1]))

    with torch_jax.matmul_precision("high"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    asyncio.run(both())
    assert found == {"thread": "highest", "a": "high", "b": "medium"}

    @torch_jax.matmul_precision("medium")
    def decorated():
        yield precision.state().matmul

    assert list(decorated()) == ["medium"] and precision.state().matmul == "highest"


def precisions_in(program):
    """The precisions of operands that a lowered program names."""
    return set(re.findall(r"\b(HIGHEST|HIGH|DEFAULT)\b", program.as_text()))


# --- that it reaches the programs -----------------------------------------------------------------


def test_a_lowered_program_says_it():
    def products(x, w):
        return torch.nn.functional.conv1d(x @ x, w)

    given = torch.ones(2, 5, 5, device="jax"), torch.ones(3, 5, 2, device="jax")
    torch.backends.jax.conv.fp32_precision = "tf32"
    with torch_jax.matmul_precision("medium"):
        inside = precisions_in(torch_jax.lower(products, *given))
    outside = precisions_in(torch_jax.lower(products, *given))
    doubles = precisions_in(torch_jax.lower(products, *(t.double() for t in given)))
    assert inside == {"DEFAULT"} and outside == {"HIGHEST", "HIGH"} and doubles == {"HIGHEST"}


def switches(seed):
    """What a program may do to the precision between two calls, for ever."""
    chance = random.Random(seed)
    old, cuda = torch.set_float32_matmul_precision, torch.backends.cuda.matmul

    def own(value):
        torch.backends.jax.matmul.fp32_precision = value

    while True:
        kind = chance.choice(("old", "old", "tf32", "own", "none"))
        if kind == "old":
            old(chance.choice(precision.NAMES))
        elif kind == "tf32":
            old("highest")  # together with other switches PyTorch refuses to answer Dynamo
            cuda.allow_tf32 = chance.random() < 0.5
        elif kind == "own":
            own(chance.choice(("ieee", "bf16", "none", "none")))
        yield chance.choice((None, None, *precision.NAMES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor",
    ["eager", "lazy", "jit", "real jit", pytest.param("graph", marks=pytest.mark.slow)],
)
@pytest.mark.usefixtures("eager_by_xla")
def test_no_program_is_stale(executor, shown_in_values):
    """Forward and backward, under any sequence of switches and blocks."""
    x = torch.ones(3, 4, device="jax")
    w = torch.ones(4, 2, device="jax", requires_grad=True)

    def products(x, w):
        y = x @ w
        return y, torch.autograd.grad(y.sum(), w)[0]

    if executor == "graph":  # a graph and its backward

        def products(x, w):
            return x @ w

    run = torch_jax.jit(products) if executor == "real jit" else EXECUTORS[executor](products)
    seen = set()
    changes = switches(1)
    for _ in range(12 if executor == "graph" else 60):
        region = next(changes)
        if region is None:
            factor, results = BY_NAME[precision.state().matmul], run(x, w)
        else:
            with torch_jax.matmul_precision(region):
                factor, results = BY_NAME[region], run(x, w)
        if executor == "graph":
            held = BY_NAME[precision.state().matmul]  # of the backward pass, which runs now
            (grad,) = torch.autograd.grad(results.sum(), w)
            assert grad.cpu()[0, 0] == 3 * held
            results = (results,)
        assert results[0].detach().cpu()[0, 0] == 4 * factor
        if executor != "graph":
            assert results[1].cpu()[0, 0] == 3 * factor
        seen.add(factor)
    assert seen == set(BY_NAME.values())


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.slow
def test_a_block_inside_of_a_function(executor, shown_in_values):
    def products(x):
        y = x @ x
        with torch_jax.matmul_precision("medium"):
            return y, x @ x

    run = EXECUTORS[executor](products)
    for _ in range(3):
        first, second = run(torch.ones(3, 3, device="jax"))
        assert (first.cpu()[0, 0], second.cpu()[0, 0]) == (3, 12)


def test_a_switch_that_the_function_itself_turns(shown_in_values):
    @torch_jax.jit
    def products(x):
        torch.set_float32_matmul_precision("high")
        y = x @ x
        torch.set_float32_matmul_precision("highest")
        return y + x @ x

    for _ in range(12):
        assert products(torch.ones(3, 3, device="jax")).cpu()[0, 0] == 9
        assert torch.get_float32_matmul_precision() == "highest"


def test_an_exported_program_keeps_the_precision_of_its_export(shown_in_values):
    model, x = torch.nn.Linear(3, 1, bias=False), torch.ones(2, 3)
    torch.nn.init.ones_(model.weight)
    with torch_jax.matmul_precision("high"):
        exported = torch_jax.export(model, (x,))
    assert float(exported.call(x)[0, 0]) == 6


# --- that operators say that they have products ---------------------------------------------------


def test_an_operator_that_is_not_declared_is_told_nothing():
    with of_ops.precisions_are(None), pytest.raises(LookupError, match="products=True"):
        of_ops.precision(jnp.float32)


@pytest.mark.slow
def test_all_operators_with_products_are_declared():
    """Whatever asks for a precision, itself or by functions of the folder that it calls."""
    torch.ones(1, device="jax")  # the first use fills the table
    asking = {name for name, row in registry.TABLE.items() if _asks(row.function, set())}
    declared = {name for name, row in registry.TABLE.items() if row.products}
    assert {"mm", "convolution", "addmm"} < declared and asking == declared
    products = torch._foreach_mm([torch.ones(2, 3, device="jax")], [torch.ones(3, 2, device="jax")])
    assert products[0].tolist() == [[3, 3], [3, 3]]  # derived operators are as the first


def _asks(function, seen):
    if not isinstance(function, FunctionType):
        return False
    function = inspect.unwrap(function)
    if function is of_ops.precision or function is of_ops.current:
        return True
    if not function.__module__.startswith("torch_jax.ops.") or function in seen:
        return False
    seen.add(function)
    return any(_asks(called, seen) for called in _named_in(function))


def _named_in(function):
    """The functions that the source of one names: by themselves, in a module or a namespace."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = function.__globals__ | {name: cell.cell_contents for name, cell in closure}
    inside = _functions_in(inspect.getsourcefile(function))[function.__code__.co_firstlineno]
    for node in (part for one in inside for part in ast.walk(one)):
        if isinstance(node, ast.Name):
            found = scope.get(node.id)
            yield from vars(found).values() if isinstance(found, SimpleNamespace) else [found]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = scope.get(node.value.id)
            yield getattr(owner, node.attr, None) if inspect.ismodule(owner) else None


@functools.cache
def _functions_in(path):
    """The functions of a file, by where their code begins: at the first decorator."""
    found = defaultdict(list)
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            lines = node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))
            found[min(lines)].append(node)
    return found
