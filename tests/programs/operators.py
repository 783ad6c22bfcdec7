"""The operators of random expressions: texts, with ``x``, ``y`` and ``z`` for values.

``c`` and ``e`` are numbers, ``k`` a dim. A group is drawn first, then one of its texts.
"""

from __future__ import annotations

_ARITHMETIC = (
    *("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}", "{x} + {c}", "{x} * {c}", "{x} - {c}"),
    *("{c} - {x}", "{x} / {c}", "{c} / {x}", "-{x}", "torch.add({x}, {y}, alpha=2)", "{x} * {x}"),
    *("torch.addcmul({x}, {y}, {z}, value=0.3)", "torch.addcdiv({x}, {y}, {z})", "{x} - {x}"),
    *("torch.lerp({x}, {y}, 0.3)", "{x} / {x}", "torch.rsub({x}, {y})", "torch.square({x})"),
)
_DIVISION = (
    *("{x} // {c}", "{x} % {c}", "{x} // {y}", "{x} % {y}", "torch.fmod({x}, {c})"),
    *("torch.fmod({x}, {y})", "torch.div({x}, {y}, rounding_mode='trunc')", "{c} % {x}"),
    *("torch.div({x}, {c}, rounding_mode='trunc')", "torch.frac({x})", "{c} // {x}"),
)
_COMPARISONS = (
    *("{x} == {y}", "{x} != {y}", "{x} < {y}", "{x} <= {y}", "{x} > {c}", "{x} >= {y}"),
    *("{x} == {x}", "{x} == {x}.amax()", "{x} >= {x}.amin({k}, keepdim=True)", "{x} <= {c}"),
    *("torch.isnan({x})", "torch.isinf({x})", "torch.isfinite({x})"),
    "torch.signbit({x}.nan_to_num(1.0))",  # a NaN has any sign
    *("{x} < {x}.mean()", "{x} != {x}", "~({x} < {y})", "~({x} >= {c})", "torch.isposinf({x})"),
    *("torch.isclose({x}, {y})", "torch.logical_not({x})", "torch.logical_and({x}, {y})"),
    *("torch.logical_xor({x}, {y})", "{x} == {x}.abs()"),
)
_CHOICES = (
    *("torch.where({x} > 0, {x}, {y})", "torch.where({x} == {y}, {x}, {z})"),
    *("torch.where({x} != {x}, {y}, {x})", "torch.where({x}, {y}, {z})", "{x} * ({y} > {c})"),
    *("({x} > 0) * {y}", "{x} * {x}.isfinite()", "{x}.masked_fill({y} > 0, {c})"),
    *(
        "torch.where({y} < {c}, {x}, 0)",
        "({x} > {y}).to({x}.dtype) * {x}",
        "{x} * (1 - {x}.sign())",
    ),
    *("torch.where({x} >= {y}, {x}, {y})", "torch.where({x} < {y}, {x}, {y})"),
    *("torch.nan_to_num({x})", "torch.nan_to_num({x}, {c}, {e}, {c})", "{x} ** ({y} > 0)"),
)
_LIMITS = (
    *("torch.maximum({x}, {y})", "torch.minimum({x}, {y})", "torch.fmax({x}, {y})"),
    *("torch.fmin({x}, {y})", "{x}.clamp({c}, {e})", "{x}.clamp(min={c})", "{x}.clamp(max={c})"),
    *("torch.clamp({x}, {y}, {z})", "{x}.clamp_min({y})", "torch.relu({x})", "{x}.clamp(-1, 1)"),
    *("torch.nn.functional.hardtanh({x})", "torch.nn.functional.relu6({x})"),
)
_ROUNDING = (
    *("{x}.sign()", "{x}.abs()", "{x}.floor()", "{x}.ceil()", "{x}.round()", "{x}.trunc()"),
    *("torch.copysign({x}, {y})", "torch.copysign({x}, {c})", "torch.sgn({x})"),
    *("torch.round({x}, decimals=1)", "torch.heaviside({x}, {y})", "torch.positive({x})"),
)
_POWERS = (
    *("{x} ** 2", "{x} ** 3", "{x} ** 0.5", "{x} ** -1", "{x} ** -2", "{x} ** {y}", "2 ** {x}"),
    *("{x} ** {c}", "{c} ** {x}", "{x} ** -0.5", "{x} ** 0", "torch.float_power({x}, {c})"),
    *("{x}.sqrt()", "{x}.rsqrt()", "{x}.reciprocal()", "torch.ldexp({x}, {y})"),
)
_FUNCTIONS = tuple(
    f"torch.{name}({{x}})"
    for name in (
        "exp exp2 expm1 log log2 log10 log1p tanh sigmoid erf erfc sin cos tan atan asin acos sinh "
        "cosh asinh acosh atanh sinc angle deg2rad lgamma erfinv"
    ).split()
) + (
    *("torch.atan2({x}, {y})", "torch.hypot({x}, {y})", "torch.logaddexp({x}, {y})"),
    *(
        "torch.xlogy({x}, {y})",
        "torch.xlogy({x}, {c})",
        "torch.logit({x})",
        "torch.logit({x}, 0.1)",
    ),
)
_ACTIVATIONS = tuple(
    f"torch.nn.functional.{name}({{x}})"
    for name in (
        "gelu silu softplus elu celu selu mish hardswish hardsigmoid leaky_relu logsigmoid "
        "softsign tanhshrink hardshrink softshrink"
    ).split()
)
_CASTS = tuple(
    f"{{x}}.to(torch.{name})"
    for name in (
        "float32 float32 float64 bfloat16 float16 int32 int64 uint8 int8 int16 bool float32"
    ).split()
) + ("{x}.to({y}.dtype)", "{x}.type_as({y})")
_WHOLE = tuple(
    f"{{x}}.{name}()"
    for name in "sum mean amax amin any all argmax argmin max min std norm median".split()
)
_REDUCTIONS = tuple(
    f"{{x}}.{name}({{k}}, keepdim={{keep}})"
    for name in "sum mean amax amin any all argmax argmin std var logsumexp nansum".split()
) + (
    *("torch.linalg.vector_norm({x}, 2, {k}, keepdim={keep})", "{x}.cumsum({k})"),
    *("torch.linalg.vector_norm({x}, inf, {k})", "torch.linalg.vector_norm({x}, 1, {k})"),
    *("torch.linalg.vector_norm({x}, 0, {k})", "{x}.softmax({k})"),
    # the CPU multiplies half types in their own range
    *("{x}.clamp(-1, 1).cumprod({k})", "{x}.clamp(-1, 1).prod()", "{x}.clamp(-1, 1).prod({k})"),
    *("{x}.log_softmax({k})", "{x}.max({k}).values", "{x}.min({k}).values", "{x}.cummax({k})[0]"),
    *("torch.count_nonzero({x}, {k})", "torch.logcumsumexp({x}, {k})", "{x}.cummin({k})[0]"),
    *("torch.nn.functional.normalize({x}, dim={k})",),
)
_PLACES = (
    *("{x}.sort({k}, stable=True).values", "{x}.sort({k}, descending=True, stable=True).values"),
    *("{x}.sort({k}, stable=True).indices", "{x}.topk(2, {k}).values", "{x}.roll(1, {k})"),
    *("{x}.flip({k})", "torch.cat([{x}, {y}], {k})", "torch.stack([{x}, {y}], {k})"),
    *("torch.nn.functional.pad({x}, (1, 1))", "torch.nn.functional.pad({x}, (1, 0), value={c})"),
    *("{x}[..., 0]", "{x}[..., ::2]", "{x}[..., None]", "{x}.mT", "{x}.flatten()", "{x}[..., -1:]"),
    *(
        "{x}.gather({k}, {y}.argmax({k}, keepdim=True))",
        "{x}.index_select({k}, torch.tensor([0], device={x}.device))",
    ),
    *(
        "{x}.unsqueeze(0)",
        "{x}.expand(2, *{x}.shape).clone()",
        "torch.tril({x})",
        "torch.diff({x})",
    ),
    *("{x}.repeat_interleave(2, {k})", "{x}.scatter_add({k}, {y}.argmax({k}, keepdim=True), {x})"),
    *("{x}.kthvalue(1, {k}).values", "torch.searchsorted({x}.flatten(), {y})"),
)
_BITS = (
    *("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}", "{x} << 1", "{x} >> 1", "{x} << {y}"),
    *("{x} >> {y}", "{x} & 3", "{x} ^ 1", "{x} >> 40", "{x} << 33", "torch.gcd({x}, {y})"),
)
_WRITES = (
    *("{x}.add_({y})", "{x}.mul_({c})", "{x}.clamp_(-1, 1)", "{x}.neg_()", "{x}.div_({y})"),
    *("{x}.masked_fill_({y} > 0, {c})", "{x}.floor_()", "{x}.copy_({y})", "{x}.mul_({y} > 0)"),
    *("{x}.relu_()", "{x}.exp_()", "{x}.zero_()", "{x}.fill_({c})", "{x}.remainder_({c})"),
    *("{x}.sub_({y})", "{x}.sqrt_()", "{x}.pow_(2)", "{x}.abs_()"),
)
TEMPLATES: tuple[tuple[str, ...], ...] = (
    *(_ARITHMETIC, _ARITHMETIC, _ARITHMETIC, _DIVISION, _COMPARISONS, _COMPARISONS, _CHOICES),
    *(_CHOICES, _LIMITS, _ROUNDING, _POWERS, _FUNCTIONS, _FUNCTIONS, _ACTIVATIONS, _CASTS),
    *(_WHOLE, _REDUCTIONS, _PLACES, _BITS, _WRITES),
)
