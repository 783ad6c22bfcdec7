"""What is planned for: the sizes of a Llama, and the numbers of a chip."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Model:
    """The sizes of a decoder of the Llama family, under the names of Hugging Face's config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = False
    head_dim: int = 0  # 0: hidden_size / num_attention_heads

    @property
    def queries(self) -> int:
        """The width of all heads of queries."""
        size = self.head_dim or self.hidden_size // self.num_attention_heads
        return self.num_attention_heads * size

    @property
    def keys(self) -> int:
        """The width of all heads of keys, and of values."""
        return self.queries // self.num_attention_heads * self.num_key_value_heads

    @property
    def layer(self) -> int:
        """The elements of the matrices of one layer."""
        attention = 2 * self.hidden_size * (self.queries + self.keys)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def table(self) -> int:
        """The elements of the embedding, and of the output projection."""
        return self.vocab_size * self.hidden_size

    @property
    def matrices(self) -> int:
        """The elements of all matrices."""
        tables = self.table * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * self.layer + tables

    @property
    def norms(self) -> int:
        """The elements of all norms."""
        return (2 * self.num_hidden_layers + 1) * self.hidden_size

    @property
    def parameters(self) -> int:
        """How many parameters there are.

        >>> Model(**MODELS["llama-3-8b"]).parameters
        8030261248
        """
        return self.matrices + self.norms


def _llama(width: int, hidden: int, layers: int, heads: int) -> dict[str, int]:
    sizes = (width, hidden, layers, heads, 8, 128256)
    return {field.name: n for field, n in zip(dataclasses.fields(Model), sizes, strict=False)}


MODELS = {  # "The Llama 3 Herd of Models", table 3 (arXiv 2407.21783)
    "llama-3-8b": _llama(4096, 14336, 32, 32),
    "llama-3-70b": _llama(8192, 28672, 80, 64),
    "llama-3-405b": _llama(16384, 53248, 126, 128),
}


# Of the values of ``model_type`` those whose layers have these sizes: attention, and a gated MLP.
FAMILY = "llama mistral qwen2 qwen3 gemma gemma2 granite olmo2 phi3 smollm3".split()


def model(config: str | Path | Mapping[str, Any]) -> Model:
    """A model by its name, by the path of a ``config.json``, or by the contents of one.

    Raises:
      ValueError: there is no such name or file, it says too little, or it is of another family.

    >>> model("llama-3-70b").num_hidden_layers
    80
    """
    known = _read(config)
    _refuse_others(known, config)
    missing = [
        field.name
        for field in dataclasses.fields(Model)
        if field.default is dataclasses.MISSING and field.name not in known
    ]
    if "num_key_value_heads" in missing:
        missing.remove("num_key_value_heads")  # as Hugging Face reads it: a head for each query
        known["num_key_value_heads"] = known.get("num_attention_heads")
    if missing:
        raise ValueError(f"the config of a Llama says {', '.join(missing)}, and {config} does not")
    names = {field.name for field in dataclasses.fields(Model)}
    found = {name: n for name, n in known.items() if name in names and n is not None}
    for name, n in found.items():
        if name != "tie_word_embeddings":
            whole(f"{name} of the config", n, least=0 if name == "head_dim" else 1)
    return Model(**found)


def _refuse_others(known: Mapping[str, Any], config: Any) -> None:
    """Raise where a config is of a model with layers of other sizes."""
    kind = known.get("model_type", "llama")
    experts = [f"{n}={v}" for n, v in known.items() if "experts" in n and type(v) is int and v > 1]
    if experts:
        raise ValueError(
            f"{kind} is a mixture of experts ({', '.join(experts)}), whose memory and time depend "
            "on how tokens are given to experts: plan knows decoders without experts only"
        )
    if kind not in FAMILY:
        raise ValueError(
            f"model_type {kind!r} is none of {', '.join(FAMILY)}: plan knows decoders with a gated "
            "MLP; if this one is such, give its sizes without model_type"
        )


_MOST = 2**31


def whole(name: str, value: Any, least: int = 1, most: int = _MOST) -> None:
    """Raise unless a value is a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r}")


def _read(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    if str(config) in MODELS:
        return dict(MODELS[str(config)])
    try:
        return json.loads(Path(config).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{config} is neither one of {', '.join(MODELS)} nor a config.json: {error}"
        ) from error


@dataclass(frozen=True)
class Chip:
    """What a chip can do, in FLOP, bytes and seconds.

    Attributes:
      flops: a second, at most, of matrix products in bfloat16.
      memory: bytes.
      bandwidth: bytes a second to and from memory.
      link: bytes a second that a chip sends along one axis of a mesh, while it receives as many.
      island: how many chips such links connect.
      network: bytes a second that a chip has between islands.
    """

    flops: float
    memory: float
    bandwidth: float
    link: float
    island: int
    network: float


_GB, _GIB = 1e9, 2.0**30
CHIPS = {
    "v4": Chip(275e12, 32 * _GIB, 1200 * _GB, 100 * _GB, 4096, 3.1 * _GB),
    "v5e": Chip(197e12, 16 * _GB, 819 * _GB, 100 * _GB, 256, 3.1 * _GB),
    "v5p": Chip(459e12, 95 * _GIB, 2765 * _GB, 200 * _GB, 8960, 6.25 * _GB),
    "v6e": Chip(918e12, 32 * _GB, 1600 * _GB, 200 * _GB, 256, 12.5 * _GB),
    "a100": Chip(312e12, 80 * _GB, 2039 * _GB, 300 * _GB, 8, 25 * _GB),
    "h100": Chip(989e12, 80 * _GB, 3350 * _GB, 450 * _GB, 8, 50 * _GB),
    "h200": Chip(989e12, 141 * _GB, 4800 * _GB, 450 * _GB, 8, 50 * _GB),
    "b200": Chip(2250e12, 180 * _GB, 7700 * _GB, 900 * _GB, 8, 50 * _GB),
}
"""TPUs after docs.cloud.google.com/tpu/docs (v4, v5e, v5p, v6e), GPUs after NVIDIA's data sheets
(A100 80GB SXM, H100 SXM, H200 SXM, HGX B200), without sparsity.

A TPU's link is that of one dimension of the torus, both ways around: a third of the chip's
bandwidth in one direction for v4 and v5p, half of it for v5e and v6e. Its network is the data
center network between slices; none is published for v4, for which that of v5e stands. A GPU's link
is NVLink in one direction, its network one adapter a GPU: 200 Gb/s for A100, 400 Gb/s for others.
"""


def chip(given: str | Mapping[str, float] | Chip) -> Chip:
    """A chip by its name, or by numbers: ``"flops=1e15,memory=96e9,..."``.

    Numbers that are left out are those of an H100; ``"h100,network=25e9"`` says so in full.

    Raises:
      ValueError: there is no such chip or number.

    >>> chip("v5e,island=16").island
    16
    """
    if isinstance(given, Chip):
        return given
    numbers: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    base = CHIPS["h100"]
    for part in given.split(",") if isinstance(given, str) else ():
        name, equals, number = part.strip().partition("=")
        if not equals and name in CHIPS:
            base = CHIPS[name]
        else:
            numbers[name] = number
    fields = {field.name for field in dataclasses.fields(Chip)}
    wrong = [f"{n}={v}" if v else n for n, v in numbers.items() if not _is_of_chip(n, v, fields)]
    if wrong or not isinstance(given, str | Mapping):
        raise ValueError(
            f"chip (--chip): a chip is one of {', '.join(CHIPS)}, or has "
            f"{'=, '.join(sorted(fields))}=, numbers above 0 (island a whole one); not "
            f"{', '.join(wrong) or repr(given)}"
        )
    known: dict[str, Any] = {name: float(n) for name, n in numbers.items()}
    found = dataclasses.replace(base, **known)
    return dataclasses.replace(found, island=int(found.island))


def _is_of_chip(name: str, value: Any, fields: set[str]) -> bool:
    """Whether a chip has a number of such a name and value."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    is_whole = name != "island" or number.is_integer()
    return name in fields and math.isfinite(number) and number > 0 and is_whole
