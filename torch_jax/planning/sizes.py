"""The sizes of a Llama: by its name, or from a ``config.json`` of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Model(NamedTuple):
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
    def head(self) -> int:
        """Return the width of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


MODELS = {  # "The Llama 3 Herd of Models", table 3 (arXiv 2407.21783)
    "llama-3-8b": Model(4096, 14336, 32, 32, 8, 128256),
    "llama-3-70b": Model(8192, 28672, 80, 64, 8, 128256),
    "llama-3-405b": Model(16384, 53248, 126, 128, 8, 128256),
}

# Of the values of ``model_type`` those whose layers have these sizes: attention, and a gated MLP.
FAMILY = "llama mistral qwen2 qwen3 gemma gemma2 granite olmo2 phi3 smollm3".split()


def model(config: str | Path | Mapping[str, Any]) -> Model:
    """Return a model by its name, by the path of a ``config.json``, or by the contents of one.

    >>> model("llama-3-70b").num_hidden_layers
    80
    """
    known = _read(config)
    kind = known.get("model_type", "llama")
    experts = [f"{n}={v}" for n, v in known.items() if "experts" in n and type(v) is int and v > 1]
    if experts:
        raise ValueError(
            f"{kind} is a mixture of experts ({', '.join(experts)}): plan knows decoders without "
            "experts only. `check` compiles any training script"
        )
    if kind not in FAMILY:
        raise ValueError(
            f"model_type {kind!r} is none of {', '.join(FAMILY)}: plan knows decoders with a gated "
            "MLP. `check` compiles any training script"
        )
    known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
    found = {name: known[name] for name in Model._fields if known.get(name) is not None}
    needed = (name for name in Model._fields if name not in Model._field_defaults)
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"the config of a Llama says {', '.join(missing)}, and {config} does not")
    for name, n in found.items():
        if name != "tie_word_embeddings" and (type(n) is not int or n < (name != "head_dim")):
            raise ValueError(f"{name} of the config is a whole number from 1, not {n!r}")
    return Model(**found)


def _read(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    if str(config) in MODELS:
        return MODELS[str(config)]._asdict()
    try:
        return json.loads(Path(config).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{config} is neither one of {', '.join(MODELS)} nor a config.json: {error}"
        ) from error
