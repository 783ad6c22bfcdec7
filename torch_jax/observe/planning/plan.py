"""``torch_jax.plan``: the memory, the collectives and the time of a training step of a Llama.

The step is AdamW's over a mesh with three kinds of axes. ``data`` splits the batch. ``fsdp`` splits
the batch and all matrices, which are gathered where they are used. ``tensor`` splits heads and
hidden units, so that activations are summed. The formulas are those of the programs that XLA's
partitioner makes of such shardings: ``docs/hosts.md`` has the rules, and how well both agree.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_jax.observe.planning import sizes

KINDS = ("data", "fsdp", "tensor")
REMAT = ("none", "dots", "layer")
_MOST_CHIPS = 10**6
_USABLE = 0.92  # of the memory of a chip: the rest is the runtime's, or lies between allocations


@dataclass(frozen=True)
class Dtypes:
    """Bytes of an element: of what is computed, of masters, of gradients, of both moments."""

    compute: int
    masters: int
    gradients: int
    moments: int = 8


DTYPES = {"bf16": Dtypes(2, 4, 2), "f32": Dtypes(4, 0, 4), "bf16-only": Dtypes(2, 0, 2, 4)}


@dataclass(frozen=True)
class Step:
    """What is asked: a model, a mesh, a batch, and how the step is written.

    Attributes:
      model: its sizes.
      axes: the lengths of the mesh, the innermost last, by kind; a kind may be missing.
      batch: sequences of a step, over all chips.
      length: tokens of a sequence.
      dtypes: of :data:`DTYPES`.
      remat: what a layer keeps for the backward pass: all, products, or its input only.
      scan: whether the layers are one loop of the program (``torch_jax.scan_layers``).
      accumulate: into how many parts, one after the other, the batch is cut.
      split_length: whether activations between layers are split over ``tensor``, by length.
      flash: whether attention keeps no scores, and computes only those that are not masked.
    """

    model: sizes.Model
    axes: Mapping[str, int]
    batch: int
    length: int
    dtypes: Dtypes
    remat: str
    scan: bool
    accumulate: int
    split_length: bool
    flash: bool

    def along(self, kind: str) -> int:
        """How long the axis of a kind is."""
        return self.axes.get(kind, 1)

    @property
    def chips(self) -> int:
        """How many chips there are."""
        return math.prod(self.axes.values())

    @property
    def tokens(self) -> int:
        """The tokens that a chip has at once."""
        parts = self.along("data") * self.along("fsdp") * self.accumulate
        return self.batch // parts * self.length


@dataclass(frozen=True)
class Collective:
    """A collective of each step.

    Attributes:
      kind: its name.
      axis: over which chips.
      what: what it is for.
      bytes: of a chip in a step: of the result of an all-gather, of the operand of others.
      waits: whether computing waits for it.
      seconds: how long it takes.
    """

    kind: str
    axis: str
    what: str
    bytes: int
    waits: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What a step comes to, for each chip; :func:`plan` makes it.

    Attributes:
      parameters: of the model, on all chips together.
      chips: of the mesh.
      memory: bytes by what they are for.
      available: bytes that a program may have.
      collectives: those of a step.
      flops: what is computed in a step, recomputation included.
      seconds: of computing, of waiting for collectives, and of the step.
      utilization: the model's operations, without recomputation, as a part of the chips' peak.
      tokens: of a step, over all chips.
      advice: what to change where it does not fit.
    """

    parameters: int
    chips: int
    memory: dict[str, int]
    available: int
    collectives: tuple[Collective, ...]
    flops: int
    seconds: dict[str, float]
    utilization: float
    tokens: int
    advice: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All bytes of a chip."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether a chip has so much memory."""
        return self.total <= self.available


def plan(
    config: Any,
    mesh: Mapping[str, int],
    *,
    batch: int,
    length: int = 8192,
    chip: Any = "h100",
    dtype: str = "bf16",
    remat: str = "layer",
    scan: bool = True,
    accumulate: int = 1,
    split_length: bool = False,
    flash: bool = True,
    efficiency: float = 0.7,
) -> Plan:
    """What a training step of a Llama needs on each chip of a mesh, by arithmetic.

    Args:
      config: ``"llama-3-8b"``, ``"llama-3-70b"``, ``"llama-3-405b"``, the path of a Hugging Face
        ``config.json``, or a dict of its contents.
      mesh: lengths by kind of axis, ``data``, ``fsdp`` and ``tensor``, the innermost last.
      batch: sequences of a step, over all chips.
      length: tokens of a sequence.
      chip: ``"v5p"``, ``"h100"``, others of ``sizes.CHIPS``, or numbers: ``"h100,network=25e9"``.
      dtype: ``"bf16"`` (with float32 masters and moments), ``"f32"``, or ``"bf16-only"``.
      remat: what is computed again in the backward pass: ``"none"``, ``"dots"`` (all but products
        of activations and weights) or ``"layer"`` (all of a layer).
      scan: whether the layers are one loop.
      accumulate: into how many parts, one after the other, the batch is cut.
      split_length: whether activations between layers are split over ``tensor`` by length.
      flash: whether attention keeps no scores.
      efficiency: the part of its peak that a chip reaches while it computes.

    Raises:
      ValueError: the mesh does not divide the model or the batch, a word is not known, or a number
        makes no sense.

    >>> found = plan("llama-3-8b", {"fsdp": 8}, batch=8)
    >>> found.fits, found.memory["parameters"]
    (True, 2008031232)
    """
    if dtype not in DTYPES or remat not in REMAT:
        raise ValueError(
            f"dtype is one of {', '.join(DTYPES)} and remat of {', '.join(REMAT)}, not "
            f"{dtype!r} and {remat!r}"
        )
    _check(mesh, efficiency, batch=batch, length=length, accumulate=accumulate)
    step = Step(
        sizes.model(config),
        dict(mesh),
        batch,
        length,
        DTYPES[dtype],
        remat,
        scan,
        accumulate,
        split_length,
        flash,
    )
    refuse(step)
    of_chip = sizes.chip(chip)
    found = _planned(step, of_chip, efficiency)
    return found if found.fits else dataclasses.replace(found, advice=_advice(step, of_chip))


def _check(mesh: Mapping[str, int], efficiency: Any, **numbers: Any) -> None:
    """Raise for numbers that no step has."""
    for name, number in numbers.items():
        sizes.whole(f"{name} (--{name})", number)
    for name, number in mesh.items():
        sizes.whole(f"the length of axis {name} of the mesh (--mesh)", number)
    if (chips := math.prod(mesh.values())) > _MOST_CHIPS:
        raise ValueError(f"the mesh (--mesh) has {chips:,} chips: {_MOST_CHIPS:,} are the most")
    if isinstance(efficiency, bool | str) or not 0 < efficiency <= 1:
        raise ValueError(
            f"efficiency (--efficiency) is a part of the peak, above 0 and up to 1, not "
            f"{efficiency!r}"
        )


def refuse(step: Step) -> None:
    """Raise where a step cannot be split so."""
    model, tensor = step.model, step.along("tensor")
    both = step.along("fsdp") * tensor
    unknown = set(step.axes) - set(KINDS)
    if unknown or any(length < 1 for length in step.axes.values()):
        raise ValueError(f"a mesh has the axes {', '.join(KINDS)}, not {dict(step.axes)}")
    divided = [
        ("batch", step.batch, "data * fsdp * accumulate", step.chips // tensor * step.accumulate),
        ("num_attention_heads", model.num_attention_heads, "tensor", tensor),
        ("num_key_value_heads", model.num_key_value_heads, "tensor", tensor),
        ("hidden_size", model.hidden_size, "fsdp", step.along("fsdp")),
        ("intermediate_size", model.intermediate_size, "tensor", tensor),
        ("vocab_size", model.vocab_size, "fsdp", both // tensor),
        ("vocab_size", model.vocab_size, "tensor", tensor),
    ]
    if step.split_length:
        divided.append(("length", step.length, "tensor", tensor))
    faults = [
        f"{name} {number} is not a multiple of {of} = {by}"
        for name, number, of, by in divided
        if number % by or not number
    ]
    if faults:
        raise ValueError(f"this mesh does not divide the step: {'; '.join(faults)}")


def _planned(step: Step, chip: sizes.Chip, efficiency: float) -> Plan:
    collectives = tuple(
        dataclasses.replace(one, seconds=_seconds(one, step, chip)) for one in communication(step)
    )
    computed = flops(step)
    wanted = flops(dataclasses.replace(step, remat="none"))
    seconds = _times(step, chip, computed, collectives, efficiency)
    return Plan(
        parameters=step.model.parameters,
        chips=step.chips,
        memory=memory(step),
        available=int(chip.memory * _USABLE),
        collectives=collectives,
        flops=computed,
        seconds=seconds,
        utilization=wanted / (seconds["step"] * chip.flops),
        tokens=step.batch * step.length,
    )


# --- memory ---------------------------------------------------------------------------------------


def memory(step: Step) -> dict[str, int]:
    """Bytes of a chip, by what they are for."""
    own, dtypes = _own(step), step.dtypes
    summed = 4 if step.accumulate > 1 else dtypes.gradients
    return {
        "parameters": own * dtypes.compute,
        "optimizer": own * (dtypes.masters + dtypes.moments),
        "gradients": own * summed,
        "activations": _kept(step) * step.model.num_hidden_layers,
        "one layer": _working(step),
        "logits": _logits(step),
        "gathered weights": _gathered(step),
    }


def _own(step: Step) -> int:
    """The elements of parameters that a chip has: its part of matrices, and the norms."""
    return step.model.matrices // (step.along("fsdp") * step.along("tensor")) + step.model.norms


def _widths(step: Step) -> tuple[float, float, float, float, float]:
    """What a chip has of a token: of the residual stream, queries, keys, hidden units, scores."""
    model, tensor = step.model, step.along("tensor")
    scores = 0 if step.flash else model.num_attention_heads * step.length / tensor
    return (
        model.hidden_size / (tensor if step.split_length else 1),
        model.queries / tensor,
        model.keys / tensor,
        model.intermediate_size / tensor,
        scores,
    )


def _kept(step: Step) -> int:
    """Bytes that a layer keeps for its backward pass."""
    stream, queries, keys, hidden, scores = _widths(step)
    elements = {
        "layer": stream,
        "dots": 2 * stream + queries + 2 * keys + 2 * hidden,
        "none": 4 * stream + 2 * queries + 2 * keys + 4 * hidden + 2 * scores,
    }
    return int(step.tokens * elements[step.remat] * step.dtypes.compute)


def _working(step: Step) -> int:
    """Bytes of a layer while its backward pass runs: what is computed again, and gradients."""
    stream, queries, keys, hidden, scores = _widths(step)
    elements = 2 * stream + queries + 2 * hidden
    if step.remat != "none":
        elements += 4 * stream + 2 * queries + 2 * keys + 3 * hidden + scores
    return int(step.tokens * (elements * step.dtypes.compute + scores * 4))


def _logits(step: Step) -> int:
    """Bytes of the logits and of their gradient, in float32 where they become a loss."""
    elements = step.tokens * step.model.vocab_size // step.along("tensor")
    return elements * (4 + step.dtypes.compute)


def _gathered(step: Step) -> int:
    """Bytes of weights that are whole at one time: two layers, or all where nothing bounds them."""
    if step.along("fsdp") == 1:
        return 0
    layers = 2 if _gathers_twice(step) else step.model.num_hidden_layers
    elements = max(layers * step.model.layer, step.model.table) // step.along("tensor")
    return elements * step.dtypes.compute


def _gathers_twice(step: Step) -> bool:
    """Whether weights are gathered anew for the backward pass; else they stay from the forward."""
    return step.scan or step.remat != "none"


# --- operations -----------------------------------------------------------------------------------


def flops(step: Step) -> int:
    """Operations of a chip in a step: of matrix products, twice a multiplication."""
    model, tensor = step.model, step.along("tensor")
    tokens = step.tokens * step.accumulate
    attention = 4 * tokens * step.length * model.queries // tensor // (2 if step.flash else 1)
    layer = 2 * tokens * model.layer // tensor + attention
    last = 2 * tokens * model.hidden_size * model.intermediate_size // tensor
    again = {"none": 0, "dots": attention, "layer": layer - last}[step.remat]
    head = 2 * tokens * model.table // tensor
    return model.num_hidden_layers * (3 * layer + again) + 3 * head


# --- collectives ----------------------------------------------------------------------------------


def communication(step: Step) -> Iterator[Collective]:
    """The collectives of a step."""
    if step.along("fsdp") > 1:
        yield from _of_weights(step)
    if step.along("data") > 1:
        elements = _own(step)
        count = elements * step.accumulate * step.dtypes.gradients
        yield Collective("all-reduce", "data", "gradients", count)
    if step.along("tensor") > 1:
        yield from _of_activations(step)


def _of_weights(step: Step) -> Iterator[Collective]:
    model, tensor = step.model, step.along("tensor")
    layers = model.num_hidden_layers * model.layer * (2 if _gathers_twice(step) else 1)
    whole = (layers + 2 * model.table) // tensor * step.accumulate
    yield Collective("all-gather", "fsdp", "weights", whole * step.dtypes.compute)
    given = model.matrices // tensor * step.accumulate
    yield Collective("reduce-scatter", "fsdp", "gradients", given * step.dtypes.gradients)


def _of_activations(step: Step) -> Iterator[Collective]:
    """Sums of activations: two forward, two back, and one that is computed again, for each layer.

    Split by length, each is a reduce-scatter, and an all-gather where the next product begins.
    """
    model = step.model
    one = step.tokens * model.hidden_size * step.dtypes.compute * step.accumulate
    again = 1 if step.remat == "layer" else 0
    sums = model.num_hidden_layers * (4 + again) + 1
    if not step.split_length:
        yield Collective("all-reduce", "tensor", "activations", sums * one, waits=True)
        yield Collective("all-gather", "tensor", "embedding", one, waits=True)
        return
    gathers = model.num_hidden_layers * (4 + 2 * bool(again)) + 1
    yield Collective("reduce-scatter", "tensor", "activations", sums * one, waits=True)
    yield Collective("all-gather", "tensor", "activations", gathers * one, waits=True)


# --- time -----------------------------------------------------------------------------------------


def _seconds(one: Collective, step: Step, chip: sizes.Chip) -> float:
    """How long a collective takes: within islands by links, between them by the network.

    Chips of one island that take part share what comes from others.
    """
    length = step.along(one.axis)
    near = max(1, min(length, chip.island // _inside(step, one.axis)))
    ways = 2 if one.kind == "all-reduce" else 1
    links = one.bytes * (length - 1) / length / chip.link
    network = one.bytes * (1 - near / length) / near / chip.network
    return ways * max(links if near > 1 else 0.0, network)


def _inside(step: Step, axis: str) -> int:
    """How many chips lie between two neighbours along an axis: those of the axes after it."""
    names = list(step.axes)
    return math.prod(step.axes[name] for name in names[names.index(axis) + 1 :])


def _times(
    step: Step,
    chip: sizes.Chip,
    computed: int,
    collectives: tuple[Collective, ...],
    efficiency: float,
) -> dict[str, float]:
    """Seconds: computing hides those collectives that nothing waits for, as far as it lasts."""
    dtypes = step.dtypes
    state = _own(step) * (dtypes.compute + dtypes.masters + dtypes.moments) * 2
    compute = computed / (chip.flops * efficiency) + state / chip.bandwidth
    waiting = sum(one.seconds for one in collectives if one.waits)
    hidden = sum(one.seconds for one in collectives if not one.waits)
    exposed = waiting + max(0.0, hidden - compute)
    return {"compute": compute, "exposed": exposed, "step": compute + exposed}


# --- advice ---------------------------------------------------------------------------------------


def _advice(step: Step, chip: sizes.Chip) -> tuple[str, ...]:
    """Options of the command line with which a step fits: the mildest of each way."""
    ways = (_parts(step), _traded(step, "data", "fsdp"), _traded(step, "fsdp", "tensor"))
    found = [_first(step, way, chip) for way in (*ways, _shorter(step))]
    if not any(found):  # the chips that are there will not do
        found = [_first(step, _more_chips(step, tensor), chip) for tensor in (1, 8)]
    return tuple(dict.fromkeys(one for one in found if one))


def _first(step: Step, way: Iterator[Step], chip: sizes.Chip) -> str:
    """The options of the first step that fits, nothing where none does."""
    return next((_options(step, other) for other in way if _fits(other, chip)), "")


_POWERS = [2**n for n in range(8)]


def _lean(step: Step) -> list[Step]:
    """The step that keeps least, and the same split by length where that splits anything."""
    lean = [dataclasses.replace(step, remat="layer")]
    if step.along("tensor") > 1:
        lean.append(dataclasses.replace(lean[0], split_length=True))
    return lean


def _parts(step: Step) -> Iterator[Step]:
    """Steps of smaller parts."""
    for times, one in itertools.product(_POWERS, _lean(step)):
        yield dataclasses.replace(one, accumulate=step.accumulate * times)


def _traded(step: Step, given: str, taken: str) -> Iterator[Step]:
    """Steps on as many chips, of which one axis is shorter and another longer."""
    for times in _POWERS[1:]:
        if step.along(given) % times == 0:
            axes = {given: step.along(given) // times, taken: step.along(taken) * times}
            yield from _parts(dataclasses.replace(step, axes={**step.axes, **axes}))


def _shorter(step: Step) -> Iterator[Step]:
    """Steps of shorter sequences."""
    for times, one in itertools.product(_POWERS[1:], _lean(step)):
        if step.length % times == 0:
            yield dataclasses.replace(one, length=step.length // times)


def _more_chips(step: Step, tensor: int) -> Iterator[Step]:
    """Steps on more chips, and of a batch that they divide."""
    for times in _POWERS[1:]:
        axes = {"fsdp": step.along("fsdp") * times, "tensor": step.along("tensor") * tensor}
        more = dataclasses.replace(step, axes={**step.axes, **axes}, batch=step.batch * times)
        yield _lean(more)[-1]


def _options(step: Step, other: Step) -> str:
    """How a step differs from another, as the options of the command line."""
    mesh = ",".join(f"{name}={length}" for name, length in other.axes.items())
    words = {
        f"--mesh {mesh}": other.axes != step.axes,
        f"--batch {other.batch}": other.batch != step.batch,
        f"--length {other.length}": other.length != step.length,
        f"--remat {other.remat}": other.remat != step.remat,
        "--split-length": other.split_length != step.split_length,
        f"--accumulate {other.accumulate}": other.accumulate != step.accumulate,
    }
    return " ".join(word for word, differs in words.items() if differs)


def _fits(step: Step, chip: sizes.Chip) -> bool:
    try:
        refuse(step)
    except ValueError:
        return False
    return sum(memory(step).values()) <= chip.memory * _USABLE
