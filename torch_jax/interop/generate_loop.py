"""``torch_jax.generate_loop``: text generation of transformers as programs of the device.

``model.generate(..., custom_generate=torch_jax.generate_loop)`` prepares its arguments as usual and
calls the function here in place of its own loop. The prompt is one program, and the loop over
tokens another: model, processors of logits, choice of the token, and the test for the end.
Prompts and caches are padded to powers of two, and lengths are inputs, so that few programs
serve all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_jax.core.x64 import x64
from torch_jax.interop.functional import functional, programs_of
from torch_jax.memory import border, generators
from torch_jax.memory.storage import wrap
from torch_jax.ops.buckets import length_for

# Processors whose scores do not depend on the length of the text: where they look at tokens, a
# token that comes twice counts once. The text behind its end repeats the last token.
_PROCESSORS = frozenset(
    """EpsilonLogitsWarper EtaLogitsWarper InfNanRemoveLogitsProcessor LogitNormalization
    MinPLogitsWarper RepetitionPenaltyLogitsProcessor SuppressTokensLogitsProcessor
    TemperatureLogitsWarper TopHLogitsWarper TopKLogitsWarper TopPLogitsWarper
    TypicalLogitsWarper""".split()
)
# Processors that forbid the end of a text before a length; this length is a number of the loop.
_LEAST_LENGTHS = frozenset(("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"))
_CRITERIA = frozenset(("EosTokenCriteria", "MaxLengthCriteria"))
_ARGUMENTS = frozenset(("attention_mask", "logits_to_keep", "position_ids", "use_cache"))


class _State(NamedTuple):
    """The state after a token: texts, which are unfinished, keys and values of all layers."""

    ids: Any
    keys: list[Any]
    values: list[Any]
    unfinished: Any
    length: Any


class _Given(NamedTuple):
    """Inputs of the programs that stay the same while tokens are made."""

    mask: Any
    positions: Any
    prompt: Any
    least: Any
    pad: Any
    eos: Any


def generate_loop(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    on_tokens: Callable[[torch.Tensor], Any] | None = None,
    chunk: int = 16,
    **model_kwargs: Any,
) -> Any:
    """Run the loop of ``generate`` over a static cache, greedy or sampling, as one program.

    Give it as ``custom_generate`` to ``generate()`` of a model of transformers on device ``jax``.
    Greedy tokens are those of ``generate()``; sampled ones follow the same distribution, and
    ``torch.manual_seed`` repeats them.

    Args:
      on_tokens: called with the new tokens ``[batch, count]``, on the CPU, as they are made.
      chunk: how many tokens are made before ``on_tokens`` is called.

    Raises:
      ValueError: beams, a processor of logits or a criterion that the loop does not know, or a
        model without a static cache; the message names it, and plain ``generate()`` serves it.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 64}
    >>> config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    >>> model = GPT2LMHeadModel(config).eval().to("jax")
    >>> ids = torch.tensor([[2, 3, 4]], device="jax")
    >>> model.generate(
    ...     ids, max_length=8, min_length=8, do_sample=False, custom_generate=generate_loop
    ... ).shape
    torch.Size([1, 8])
    """
    if input_ids.device.type != "jax":
        raise ValueError(
            f"generate_loop is for models on device jax; the tokens are on {input_ids.device}"
        )
    _refuse(model, logits_processor, stopping_criteria, generation_config, model_kwargs)
    batch, prompt = input_ids.shape
    end = min(c.max_length for c in stopping_criteria if hasattr(c, "max_length"))
    padded, longest = length_for(prompt), length_for(max(end, prompt + 1))
    processors, least = _processors(logits_processor)
    loop = _loop(model, bool(generation_config.do_sample), processors)
    with x64(), torch.no_grad():
        _, params, buffers = functional(model)
        weights = params, buffers
        ids = _long(input_ids, longest, 0)
        mask = model_kwargs.get("attention_mask")
        mask = torch.ones_like(input_ids) if mask is None else mask
        positions = model_kwargs.get("position_ids")
        eos, pad = generation_config._eos_token_tensor, generation_config._pad_token_tensor
        given = _Given(
            _array(_long(mask, longest, 1)),
            None if positions is None else _array(_long(positions.expand(batch, -1), padded, 0)),
            jnp.asarray(prompt),
            jnp.asarray(least),
            None if pad is None or eos is None else _array(pad.reshape(())),
            None if eos is None else _array(eos.reshape(-1)),
        )
        key = generators.key(generators.default_generator.draw())
        state = loop.begin(weights, given, _array(ids), key, padded)
        done = prompt  # the first new token is there already
        while True:
            stop = end if on_tokens is None else min(done + chunk, end)
            state = loop.go_on(weights, given, state, key, jnp.asarray(stop))
            length = int(state.length)
            if on_tokens is not None:
                on_tokens(wrap(state.ids).cpu()[:, done:length])
            done = length
            if length >= end or not bool(state.unfinished.any()):
                break
        # cut on the CPU, which needs no program for each length
        text: Any = wrap(state.ids).cpu()[:, :done].to(input_ids.device)
    if not generation_config.return_dict_in_generate:
        return text
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    cache = _cache(model, longest, *(list(map(wrap, x)) for x in (state.keys, state.values)))
    for layer in cache.layers:
        layer.cumulative_length = torch.tensor(done - 1, device="jax")
    return GenerateDecoderOnlyOutput(sequences=text, **{_name_of_cache(): cache})


@functools.cache
def _name_of_cache() -> str:
    """Return transformers' name of a cache: ``past_key_values`` before its release 5.24."""
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    names = GenerateDecoderOnlyOutput.__dataclass_fields__
    return "cache" if "cache" in names else "past_key_values"


def _refuse(model: Any, processors: Any, criteria: Any, config: Any, kwargs: dict) -> None:
    """Raise if the loop would not do the same as ``generate``."""
    reasons = []
    if config.num_beams > 1 or config.num_return_sequences > 1 and not config.do_sample:
        reasons.append(f"num_beams={config.num_beams}")
    if model.config.is_encoder_decoder or not getattr(model, "_can_compile_fullgraph", False):
        reasons.append(f"{type(model).__name__}, which has no static cache that can be compiled")
    known = _PROCESSORS | _LEAST_LENGTHS
    reasons += [type(p).__name__ for p in processors if type(p).__name__ not in known]
    reasons += [type(c).__name__ for c in criteria if type(c).__name__ not in _CRITERIA]
    asked = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    reasons += [f"{name}=True" for name in asked if getattr(config, name, False)]
    known_arguments = {*_ARGUMENTS, _name_of_cache()}
    reasons += [n for n in kwargs if n not in known_arguments and kwargs[n] is not None]
    if config.use_cache is False:
        reasons.append("use_cache=False")
    positions = kwargs.get("position_ids")
    if positions is not None and positions.dim() != 2:
        reasons.append(f"position_ids of {positions.dim()} dims")
    cache = kwargs.get(_name_of_cache())
    if cache is not None and any(layer.is_initialized for layer in cache.layers):
        reasons.append(f"{_name_of_cache()} with keys in it")
    if not reasons:
        layers = {type(layer).__name__ for layer in _cache(model, 1).layers} - {"StaticLayer"}
        reasons += [f"cache layers of kind {name}" for name in sorted(layers)]
    if reasons:
        raise ValueError(
            f"torch_jax.generate_loop does not know {', '.join(reasons)}: call generate() without "
            "custom_generate, which does"
        )


def _processors(given: Any) -> tuple[list[Any], int]:
    """Return processors of logits for the loop, and the length before which no text may end."""
    least = 0
    kept = []
    for one in given:
        if type(one).__name__ not in _LEAST_LENGTHS:
            kept.append(one)
            continue
        new = getattr(one, "min_new_tokens", None)
        least = max(least, one.min_length if new is None else one.prompt_length_to_skip + new)
    return kept, least


def _long(tensor: torch.Tensor, length: int, value: int) -> torch.Tensor:
    """Return rows of this length, filled behind their end."""
    return torch.nn.functional.pad(tensor.cpu(), (0, length - tensor.shape[1]), value=value)


def _array(tensor: torch.Tensor) -> Any:
    return border.array_of(tensor.to("jax"))


def _cache(model: Any, length: int, keys: Any = None, values: Any = None, at: Any = None) -> Any:
    """Return a static cache of transformers with these keys and values, written up to ``at``."""
    from transformers import StaticCache

    cache: Any = StaticCache(config=model.config, max_cache_len=length)
    for i, layer in enumerate(cache.layers if keys is not None else ()):
        layer.keys, layer.values, layer.is_initialized = keys[i], values[i], True
        layer.dtype, layer.device = keys[i].dtype, keys[i].device
        layer.batch_size, layer.num_heads = keys[i].shape[:2]
        layer.k_head_dim, layer.v_head_dim = keys[i].shape[-1], values[i].shape[-1]
        if at is not None:
            layer.cumulative_length = at.clone()
    return cache


def _loop(model: Any, samples: bool, processors: list[Any]) -> _Loop:
    """Return the programs of a model for one way of choosing tokens; they are made once."""
    said = tuple((type(p), *map(_said, vars(p).items())) for p in processors)
    modes = tuple(part.training for part in model.modules())
    key = samples, said, modes, model.config._attn_implementation
    return programs_of(model).get_or_make(key, lambda: _Loop(model, samples, processors))


def _said(argument: tuple[str, Any]) -> tuple[str, str]:
    """Return an argument of a processor as a key; of tensors ``repr`` may leave elements out."""
    name, value = argument
    return name, repr(value.tolist() if isinstance(value, torch.Tensor) else value)


class _Loop:
    """The two programs: the prompt with its first token, and all tokens after it."""

    def __init__(self, model: Any, samples: bool, processors: list[Any]):
        fn, *_ = functional(model)
        self._samples, self._processors = samples, processors

        def begin(weights, given, ids, key, padded):
            rng = jax.random.fold_in(key, given.prompt)
            return fn(*weights, given, ids, padded, method=self._prompt, rng=rng)[0]

        def go_on(weights, given, state, key, end):
            def goes_on(state):
                return (state.length < end) & state.unfinished.any()

            def token(state):
                rng = jax.random.fold_in(key, state.length)
                return fn(*weights, given, state, method=self._token, rng=rng)[0]

            return lax.while_loop(goes_on, token, state)

        self.begin = jax.jit(begin, static_argnums=4)
        self.go_on = jax.jit(go_on, donate_argnums=2)

    def _prompt(self, model: Any, given: _Given, ids: Any, padded: int) -> _State:
        """Choose the first token; no operator reads behind the end of the prompt."""
        cache = _cache(model, ids.shape[1])
        logits = _logits(model, ids[:, :padded], given.mask, given.positions, cache)
        last = (given.prompt - 1).reshape(1)
        state = _State(ids, *_contents(cache), torch.ones_like(ids[:, 0]), given.prompt)
        return self._chosen(given, state, logits.index_select(1, last)[:, 0])

    def _token(self, model: Any, given: _Given, state: _State) -> _State:
        last = state.ids.index_select(1, (state.length - 1).reshape(1))
        cache = _cache(model, state.ids.shape[1], state.keys, state.values, state.length - 1)
        if (positions := given.positions) is not None:
            positions = positions.index_select(1, (given.prompt - 1).reshape(1))
            positions = positions + (state.length - given.prompt)
        logits = _logits(model, last, given.mask, positions, cache)
        keys, values = _contents(cache)
        return self._chosen(given, state._replace(keys=keys, values=values), logits[:, -1])

    def _chosen(self, given: _Given, state: _State, logits: torch.Tensor) -> _State:
        """Return the state after a token was chosen by its logits."""
        ids, length = state.ids, state.length
        scores = logits.to(torch.float32)
        if given.eos is not None:
            ends = scores.index_fill(1, given.eos, -torch.inf)
            scores = torch.where(length < given.least, ends, scores)
        counts = torch.arange(ids.shape[1], device=ids.device) < length
        last = ids.index_select(1, (length - 1).reshape(1))
        text = torch.where(counts, ids, last)
        for process in self._processors:
            scores = process(text, scores)
        if self._samples:
            chosen = torch.multinomial(scores.softmax(-1), 1)[:, 0]
        else:
            chosen = scores.argmax(-1)
        unfinished = state.unfinished
        if given.eos is not None:
            if given.pad is not None:
                chosen = torch.where(unfinished > 0, chosen, given.pad)
            unfinished = unfinished * ~torch.isin(chosen, given.eos)
        ids = ids.index_copy(1, length.reshape(1), chosen[:, None])
        return _State(ids, state.keys, state.values, unfinished, length + 1)


def _logits(model: Any, ids: Any, mask: Any, positions: Any, cache: Any) -> torch.Tensor:
    """Run the model on tokens, whose keys and values it writes into the cache."""
    given = {"input_ids": ids, "attention_mask": mask, _name_of_cache(): cache}
    if positions is not None:
        given["position_ids"] = positions
    return model(use_cache=True, return_dict=True, **given).logits


def _contents(cache: Any) -> tuple[list[Any], list[Any]]:
    return [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
