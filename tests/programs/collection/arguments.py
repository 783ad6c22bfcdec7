"""Arguments: numbers, containers, tensors of other forms, and their attributes."""

from __future__ import annotations

import numpy as np
import torch

from tests.programs.writing import attempt, calls, m, program, t


class Marked(torch.Tensor):
    """A subclass that adds nothing."""


def _writes(x, y):
    x.add_(1)
    return x * y, x is y


def _shared():
    """Two arguments: apart, one object, parts of one memory that overlap or not."""
    for k in range(8):
        x, base = t(k), torch.arange(6.0).to("jax")
        pairs = ((x, t(1)), (x, x), (base[:3], base[1:4]), (base[:3], base[3:]))
        yield pairs[k % 4]


def _asked(x):
    return (x * x).sum().backward() if x.requires_grad else x * 2


NUMBERS = (1, True, 1.0, 2, 0.5, False, -0.0, 0.0, 3, float("nan"), float("inf"), 2**40)
OF_NUMPY = (np.float32(2), np.float64(2), np.float64(3), np.int64(2), np.int64(3), np.bool_(True))
MIXED = (2, t, 3.0, torch.tensor(4.0), 2, torch.tensor(5.0))
DTYPES = (torch.float32, torch.int64, torch.float32, torch.float16, torch.int64, torch.bool)
FUNCTIONS = (torch.sin, torch.cos, torch.sin, lambda x: x - 1, lambda x: x + 5)
PLACES, SIZES = (0, 0, 3, 6, 3, 1, 0), (3, 0, 2, 0, *range(3, 9), 1, 0)
KINDS = (torch.nn.Parameter, lambda x: x.as_subclass(Marked), lambda x: x)

calls("numbers_of_all_types", lambda x, k: x * k, lambda: ((t(1), k) for k in NUMBERS))
calls("numpy_numbers", lambda x, k: (x * k, type(k).__name__),
      lambda: ((t(1), k) for k in OF_NUMPY))  # fmt: skip
calls("a_tensor_or_a_number", lambda x, k: (x * k, isinstance(k, torch.Tensor)),
      lambda: ((t(1), k(2) if k is t else k) for k in MIXED))  # fmt: skip
calls("a_list_argument_is_returned", lambda xs: xs, lambda: (([t(k), t(1)],) for k in range(6)))
calls("arguments_that_share_memory", _writes, _shared)
calls("forms_of_tensors", lambda x: (x + x, x.sum(), x.shape, x.stride(), x.is_contiguous()),
      lambda: ((x,) for x in (t(1), t(1, 2), m(), m().t(), m()[:, ::2], t(1, dtype=torch.int64),
                              m()[0], torch.ones(1).to("jax").expand(3), t(1))))  # fmt: skip
calls("places_of_an_argument", lambda x: (x * 2, x.storage_offset()),
      lambda: ((torch.arange(9.0).to("jax")[k : k + 3],) for k in PLACES))  # fmt: skip
calls("sizes_of_an_argument", lambda x: (x.sum(), x * 2, x.numel()),
      lambda: ((torch.arange(float(k)).to("jax"),) for k in SIZES))  # fmt: skip
calls("whether_gradients_are_wanted", _asked, lambda: ((t(k, grad=k % 2 > 0),) for k in range(7)))
calls("the_class_of_a_tensor_argument", lambda x: (x + 1, type(x).__name__),
      lambda: ((KINDS[k % 3](t(k)),) for k in range(7)))  # fmt: skip
calls("functions_as_arguments", lambda x, g: g(x), lambda: ((t(1), g) for g in FUNCTIONS * 2))
calls("types_as_arguments", lambda x, dtype: x.to(dtype), lambda: ((t(1), d) for d in DTYPES))
calls("cpu_tensors_as_arguments", lambda x, c: x * c,
      lambda: ((t(1), torch.tensor(float(k))) for k in range(7)))  # fmt: skip


@program
def arguments_by_place_and_by_name(compile):
    f = compile(lambda x, *xs, k=2.0, **more: (x * k + sum(xs), list(more)))
    for k in range(7):
        yield f(t(k)), f(t(1), *[t(2)] * (k % 3), k=3.0, more=t(k)), f(b=1, x=t(k), a=2)
        yield attempt(f), attempt(f, t(1), x=t(2))
