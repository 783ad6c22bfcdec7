"""New tensors: of sizes, of ranges, like others, and drawn; of draws the form alone is compared."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import FLOATS, Call, Code, T, call, chance, size, sizes, some, tensor, within

DTYPES = (*FLOATS, "int64", "int32", "uint8", "bool", "complex64")
# Draws, by the arguments before the size and the options; what they take beside floats is an error.
DRAWS = {"rand": (), "randn": (), "randint": (2, 9), "normal": (1.5, 2.0)}
FILLS: dict[str, tuple] = {"zeros": (), "ones": (), "empty": (), "full": (3,)}
IN_PLACE = {
    "uniform_": (-1, 2),
    "normal_": (1, 2),
    "exponential_": (2.0,),
    "random_": (1, 5),
    "bernoulli_": (0.3,),
    "geometric_": (0.4,),
    "log_normal_": (),
    "cauchy_": (),
}


def _options(r: Random) -> dict[str, Any]:
    return some(r, dtype=Code(f"torch.{r.choice(DTYPES)}"), requires_grad=chance(r, 0.3))


def _form(made: Call) -> Call:
    return made._replace(expression=f"form({made.expression})")


def _of(function: str, *args: Any, **options: Any) -> Call:
    """A call on the device of ``a``, which it does not take."""
    made = call(function, *args, **options, device=Code("a.device"))
    return made._replace(tensors={"a": T(())})


def of_size(r: Random) -> Call:
    """Fills and draws of a size."""
    name = r.choice((*FILLS, *DRAWS, *DRAWS))
    shape, options = sizes(r, r.randint(0, 3)), _options(r)
    if name in FILLS:
        made = _of(f"torch.{name}", shape, *FILLS[name], **options)
        return _form(made) if name == "empty" else made
    return _form(_of(f"torch.{name}", *DRAWS[name], shape, **options))


def of_range(r: Random) -> Call:
    """Ranges, diagonals and windows."""
    options, count = _options(r), size(r, 6)
    name, *args = r.choice(
        (
            ("arange", r.randint(-2, 3), r.randint(3, 7), r.choice((1, 2, 0.5))),
            ("arange", count),
            ("linspace", -1, r.choice((2, 3.5)), count),
            ("logspace", 0, 1, count),
            ("eye", count, size(r, 4)),
            ("hann_window", count),
            ("kaiser_window", count),
        )
    )
    return _of(f"torch.{name}", *args, **options)


def like(r: Random) -> Call:
    """Fills and draws like a tensor, in its strides."""
    x = tensor(r, sizes(r, r.randint(0, 4)), r.choice(DTYPES))._replace(grad=False)
    name = r.choice(("zeros", "ones", "empty", "full", "rand", "randn", "randint"))
    args: tuple = {"full": (2,), "randint": (1, 6)}.get(name, ())
    options = some(r, dtype=Code(f"torch.{r.choice(DTYPES)}"))
    made = call(f"torch.{name}_like", x, *args, **options)
    return made if name in ("zeros", "ones", "full") else _form(made)


def new(r: Random) -> Call:
    """Methods that give a new tensor of the dtype and device of another."""
    x, shape = tensor(r, sizes(r, 2), r.choice(DTYPES))._replace(grad=False), sizes(r, 2)
    name = r.choice(("zeros", "ones", "empty", "full"))
    made = _of(f"a.new_{name}", shape, *FILLS[name], **_options(r))._replace(tensors={"a": x})
    return _form(made) if name == "empty" else made


def in_place(r: Random) -> Call:
    """Draws into a tensor, of any strides."""
    name = r.choice(list(IN_PLACE))
    x = tensor(r, sizes(r, r.randint(0, 3)), r.choice(DTYPES))._replace(grad=False)
    return _form(call("anew", name, x, *IN_PLACE[name], within=within(r)))


def of_weights(r: Random) -> Call:
    """Draws whose parameters are tensors."""
    x = T(sizes(r, r.randint(0, 2), 3), r.choice(FLOATS), values="unit")
    count = r.randint(0, 3)
    name, *args = r.choice(
        (("bernoulli",), ("poisson",), ("multinomial", count), ("multinomial", count, True))
    )
    return _form(call(f"torch.{name}", x, *args))


CALLS = (of_size, of_size, of_range, like, new, in_place, of_weights)
