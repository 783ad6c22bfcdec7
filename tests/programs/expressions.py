"""Random expressions over special numbers: drawn from a seed, as lines of Python that run.

An expression has one to three inputs, in which infinities, NaN, zeros of both signs and the
greatest and least numbers are mixed with ordinary ones, and a few operators in a row. Each line is
tried on the CPU while it is drawn, and another is drawn where PyTorch refuses it.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from tests.programs.operators import TEMPLATES

SPACE: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
LARGEST = 64  # elements of a value

_DTYPES = (
    *["float32"] * 10, *["bfloat16"] * 3, *["float16"] * 2, *["float64"] * 2, *["int32"] * 2,
    *["int64"] * 2, "uint8", "int8", *["bool"] * 2, "complex64",
)  # fmt: skip
_SHAPES = ((), (0,), (1,), (4,), (6,), (6,), (2, 3), (3, 2), (2, 3), (1, 3), (2, 1), (2, 1, 3))
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.3, 3.0, 7.0, -5.0, 0.5, 2.0, 1e-30, 1e30)
_CONSTANTS = (
    *("0.3", "3", "2", "0.5", "-1", "7", "-5", "1", "0", "-0.0", "1e-30", "1e30", "2.5"),
    *("0.1", "1e10", "inf", "-inf", "nan"),
)


class Case(NamedTuple):
    """The lines that make the inputs, those of the expression, and the input with gradients."""

    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    grad: str = ""

    def text(self) -> str:
        """Return the line that repeats the case."""
        names = [f"    {list(lines)!r},".replace("', '", "',\n     '") for lines in self[:2]]
        return "\n".join(["check(", *names, f"    {self.grad!r},", ")"])

    def given(self) -> dict[str, torch.Tensor]:
        """Return the inputs, on the CPU."""
        space: dict[str, Any] = dict(SPACE)
        exec("\n".join(self.inputs), space)
        return {name: space[name] for name in names_of(self.inputs)}

    def run(self, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the last line's value, and its gradient."""
        space = SPACE | given
        leaf = space[self.grad].detach().requires_grad_() if self.grad else None
        if self.grad:
            space[self.grad] = leaf
        for line in self.lines:
            exec(_compiled(line), space)
        result = space[(names_of(self.lines) or names_of(self.inputs))[-1]]
        if leaf is None or not result.requires_grad:
            return [result.detach().clone()]
        (slope,) = torch.autograd.grad(result.sum(), leaf, allow_unused=True)
        return [result.detach().clone()] + ([] if slope is None else [slope])


def _compiled(line: str) -> Any:
    return compile(line, "<expression>", "exec")


def names_of(lines: tuple[str, ...]) -> list[str]:
    """Return the names that lines give a value."""
    return list(dict.fromkeys(line.split(" = ")[0] for line in lines if " = " in line))


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    r = random.Random(seed)
    count = r.choice((1, 2, 2, 3))
    main = r.choice(_DTYPES)
    dtypes = [main] + [main if r.random() < 0.7 else r.choice(_DTYPES) for _ in range(count - 1)]
    inputs = [_input(r, name, dtype) for name, dtype in zip("abc", dtypes, strict=False)]
    case = Case(tuple(inputs), ())
    space: dict[str, Any] = SPACE | case.given()
    names, lines = names_of(case.inputs), []
    for number in range(r.randint(2, 6)):
        line = _line(r, names, f"v{number}", space)
        lines.append(line)
        names += [f"v{number}"] if line.startswith(f"v{number} ") else []
    grad = "a" if main in ("float32", "float64") and r.random() < 0.5 else ""
    case = used(Case(case.inputs, tuple(lines), grad))
    return case if _runs(case) else case._replace(grad="")


def _runs(case: Case) -> bool:
    try:
        case.run(case.given())
    except (RuntimeError, NotImplementedError):  # a derivative that PyTorch lacks
        return False
    return True


def used(case: Case) -> Case:
    """Return a case without the lines that its last does not need."""
    wanted, lines = set(names_of(case.lines)[-1:]), []
    for line in reversed(case.lines):
        if any(_mentions(line.split("(")[0], name) for name in wanted):
            lines.append(line)
            wanted |= {name for name in _all(case) if _mentions(line, name)}
    inputs = tuple(line for line in case.inputs if line.split(" = ")[0] in wanted)
    grad = case.grad if case.grad in names_of(inputs) else ""
    return Case(inputs or case.inputs[:1], tuple(reversed(lines)), grad)


def _all(case: Case) -> list[str]:
    return names_of(case.inputs) + names_of(case.lines)


def _mentions(line: str, name: str) -> bool:

    return re.search(rf"(?<![\w.]){name}\b", line) is not None


def _line(r: random.Random, names: list[str], new: str, space: dict[str, Any]) -> str:
    """Return a line that PyTorch runs on the CPU, and run it."""
    while True:
        template = r.choice(r.choice(TEMPLATES))
        x = names[-1] if r.random() < 0.8 else r.choice(names)
        y = r.choice(names)
        if r.random() < 0.3:
            x, y = y, x
        # the CPU makes infinity or 0 of numbers that float16 cannot hold, CUDA and programs do not
        is_small = any(space[name].dtype == torch.float16 for name in (x, y))
        known = [c for c in _CONSTANTS if not (is_small and c in ("1e30", "1e-30"))]
        numbers = {"c": r.choice(known), "e": r.choice(known), "z": r.choice(names)}
        numbers |= {"k": r.choice((0, -1)), "keep": r.choice((True, False))}
        expression = template.format(x=x, y=y, **numbers)
        writes = ".__" in template or "_(" in template.split("{", 2)[1]
        if (writes and x in "abc") or (
            _DIVIDES.search(template) and any(map(_holds_the_least, (space[x], space[y])))
        ):
            continue
        line = expression if writes else f"{new} = {expression}"
        before = {name: space[name].clone() for name in names} if writes else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(_compiled(line), space)
            value = space[x if writes else new]
            is_known = isinstance(value, torch.Tensor) and value.dtype != torch.complex32
            if is_known and value.numel() <= LARGEST:
                return line
        except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            space |= before


_DIVIDES = re.compile("//|%|fmod|gcd|remainder|rounding_mode")


def _holds_the_least(value: torch.Tensor) -> bool:
    """Return whether an element is the least integer: divided by -1 it ends PyTorch's process."""
    wide = value.dtype in (torch.int32, torch.int64)
    return wide and bool((value == torch.iinfo(value.dtype).min).any())


def _input(r: random.Random, name: str, dtype: str) -> str:
    shape = r.choice(_SHAPES)
    count = torch.Size(shape).numel()
    kind = getattr(torch, dtype)
    if not kind.is_floating_point and not count:  # kernels of the CPU refuse their dtypes later
        shape, count = (1,), 1
    values = ", ".join(_number(r, kind) for _ in range(count))
    text = f"{name} = torch.tensor([{values}], dtype=torch.{dtype}).view{shape or '(())'}"
    return text + (".mT" if len(shape) > 1 and r.random() < 0.3 else "")


def _number(r: random.Random, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return str(r.random() < 0.5)
    if dtype.is_complex:
        return f"complex({r.uniform(-3, 3):.3f}, {r.uniform(-3, 3):.3f})"
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        low = max(info.min, -9)
        special = (info.min, info.max, 0, 1, low, 3, 7)
        return str(r.choice(special) if r.random() < 0.4 else r.randint(low, 9))
    info = torch.finfo(dtype)
    special = (*_SPECIAL, float("inf"), float("-inf"), float("nan"), info.max, -info.max)
    special += (info.tiny, info.eps)
    return repr(r.choice(special) if r.random() < 0.4 else round(r.uniform(-4, 4), 3))


def smaller(case: Case, is_wrong: Callable[[Case], Any]) -> Case:
    """Return the case without all that it can miss and still be wrong."""
    while True:
        for candidate in _candidates(case):
            try:
                if is_wrong(candidate):
                    case = candidate
                    break
            except Exception:
                continue
        else:
            return case


def _candidates(case: Case) -> Iterator[Case]:
    if case.grad:
        yield case._replace(grad="")
    for at, line in enumerate(case.lines):
        rest = case.lines[:at] + case.lines[at + 1 :]
        name = line.split(" = ")[0]
        if rest and " = " in line:
            for other in _all(case):
                if other != name:
                    lines = tuple(_renamed(one, name, other) for one in rest)
                    yield used(case._replace(lines=lines))
        elif rest:
            yield used(case._replace(lines=rest))
    for at, line in enumerate(case.inputs):
        for value in (line.replace(".mT", ""), *_one_element(line)):
            if value != line:
                yield case._replace(inputs=(*case.inputs[:at], value, *case.inputs[at + 1 :]))


def _renamed(line: str, name: str, other: str) -> str:

    return re.sub(rf"(?<![\w.]){name}\b", other, line)


def _one_element(line: str) -> Iterator[str]:

    head, values, tail = re.fullmatch(r"(.*tensor\(\[)(.*)(\], dtype=[\w.]*\)).*", line).groups()
    each = re.findall(r"complex\([^)]*\)|[^, ]+", values)
    if len(each) > 1 or "view((" in line or "view(1, 1" in line:
        for value in each:
            yield f"{head}{value}{tail}.view(1,)"
        if len(each) > 2:
            for at in range(len(each)):
                yield f"{head}{', '.join(each[:at] + each[at + 1 :])}{tail}"
