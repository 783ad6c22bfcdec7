"""The costs of a compiled program: XLA's own estimates, all rounds of loops, and libraries of GPUs.

A call of cuBLAS or cuDNN is ``%name = (f32[8,6]{1,0}, s8[32]{0}) custom-call(%a, %b),
custom_call_target="__cublas$lt$matmul", … backend_config={…}``; the bytes are working space.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

from torch_jax._private import jax_core
from torch_jax.observe.checking import hlo

_TARGET = re.compile(r'custom_call_target="(__cu\w+\$[\w$]+)"')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions": ?\[([\d", ]*)\]')
_SCORES = re.compile(r'"intermediate_tensor_shape".*?"dimensions": ?\[([\d", ]*)\]')
_KERNEL = re.compile(r"dim_labels=\w+_(\w+)->")


def costs(text: str, once: dict[str, float] | None = None) -> dict[str, float]:
    """Return the ``flops`` and ``bytes accessed`` of a program, with all rounds of its loops.

    XLA's own estimates have one round of each, and nothing of libraries; ``once`` are these, if
    they are known.
    """
    found = defaultdict(float, once or jax_core.costs_of_text(text))
    for name, cost in of_libraries(text).items():
        found[name] += cost
    for loop in hlo.rounds(text)[1]:
        if loop.rounds:
            for name, cost in jax_core.costs_of_text(_begun_at(text, loop.body)).items():
                found[name] += loop.times * (loop.rounds - 1) * cost
    return dict(found)


def _begun_at(text: str, name: str) -> str:
    """Return a program's text with another of its computations as its entry."""
    text = re.sub(r"^HloModule .*", "HloModule loop", text, count=1)
    text = text.replace("\nENTRY ", "\n", 1)
    return re.sub(rf"\n(?=%?{re.escape(name)} \()", "\nENTRY ", text, count=1)


def of_libraries(text: str) -> dict[str, float]:
    """Return the ``flops`` and ``bytes accessed`` of all calls of libraries in a program.

    >>> text = '''
    ... ENTRY %main (a: f32[8,4], b: f32[4,6]) -> (f32[8,6], s8[32]) {
    ...   %a = f32[8,4]{1,0} parameter(0)
    ...   %b = f32[4,6]{1,0} parameter(1)
    ...   ROOT %c = (f32[8,6]{1,0}, s8[32]{0}) custom-call(%a, %b), C
    ... }'''
    >>> call = 'custom_call_target="__cublas$gemm", "lhs_contracting_dimensions":["1"]'
    >>> of_libraries(text.replace(" C", call))
    {'bytes accessed': 416, 'flops': 384}
    """
    found: Counter[str] = Counter()
    for part in hlo.rounds(text)[0].values() if _TARGET.search(text) else ():
        rows = hlo.instructions(part.text)
        forms = {name: form for name, form, _, _ in rows}
        for _, form, _, rest in rows:
            if target := _TARGET.search(rest):
                operands = re.findall(r"%([\w.\-]+)", rest.partition(")")[0])
                given = [one for name in operands for one in hlo.arrays(forms.get(name, ""))]
                made = [one for one in hlo.arrays(form) if one[1][:2] not in ("s8", "u8")]
                moved = sum(nbytes for nbytes, _ in (*given, *made))
                first, last = ([_numbers(one) for _, one in arrays] for arrays in (given, made))
                found["bytes accessed"] += part.runs * moved
                found["flops"] += part.runs * _flops(target[1], first, last, rest)
    return dict(found)


def _flops(target: str, given: list[list[int]], made: list[list[int]], line: str) -> int:
    """Return the additions and multiplications of a call, by the lengths of its arrays, or 0."""
    contracted, kernel = _CONTRACTED.search(line), _KERNEL.search(line)
    if contracted:
        depth = math.prod(given[0][at] for at in _numbers(contracted[1]))
        if not (scores := _SCORES.search(line)):
            return 2 * math.prod(made[0]) * depth
        products = 5 if "Backward" in target else 2  # scores again, and four gradients
        return products * 2 * math.prod(_numbers(scores[1])) * depth
    if kernel:
        (first, second, *_), result = given, made[0]
        out, window = {
            "__cudnn$convBackwardInput": (first, second),
            "__cudnn$convBackwardFilter": (second, result),
        }.get(target, (result, second))
        return 2 * math.prod(out) * math.prod(window) // window[kernel[1].index("o")]
    return 0


def _numbers(text: str) -> list[int]:
    """Return the whole numbers in a list, or the lengths in a form such as ``f32[8,6]``."""
    return [int(one) for one in re.findall(r"\d+", text.partition("[")[2] or text)]
