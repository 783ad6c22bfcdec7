"""Transformers of today, in PyTorch and by hand in JAX: a ViT, a Llama and a video transformer.

The Llama is trained, and decodes a token over a cache of keys and values. The video transformer
has the blocks of Wan: self-attention with rotary positions, cross-attention to a text, and six
modulations by the time. Each has few layers of the widths that such models have.

``python -m benchmarks.blocks`` checks each in JAX against PyTorch on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import nn
from torch.nn import functional as F

from benchmarks import cases, models, reference
from benchmarks.cases import Case, adamw, cross_entropy
from benchmarks.reference import Batch, Params, layer_norm, linear

LAYERS = 2
Tensors = tuple[torch.Tensor, ...]
Made = tuple[tuple[nn.Module, Tensors], tuple[Callable[..., Any], tuple]]


def train_step(
    forward: Callable[..., jax.Array],
    dtype: Any,
    update: Any,
    params: Params,
    state: Any,
    batch: Batch,
) -> tuple[Params, Any, jax.Array]:
    """One step of an optimizer over parameters of float32, which the model uses in ``dtype``."""

    def loss(params: Params) -> jax.Array:
        used = jax.tree.map(lambda x: x.astype(dtype), params)
        return reference.cross_entropy(forward(used, batch[0]), batch[1])

    found, grads = jax.value_and_grad(loss)(params)
    return *update(params, state, grads), found


# ---- ViT --------------------------------------------------------------------------------------

VIT_WIDTH, VIT_HEADS, PATCH, SIDE, IMAGES, CLASSES = 768, 12, 16, 224, 8, 1000


class VitBlock(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(VIT_WIDTH), nn.LayerNorm(VIT_WIDTH)
        self.qkv, self.out = nn.Linear(VIT_WIDTH, 3 * VIT_WIDTH), nn.Linear(VIT_WIDTH, VIT_WIDTH)
        self.up = nn.Linear(VIT_WIDTH, 4 * VIT_WIDTH)
        self.down = nn.Linear(4 * VIT_WIDTH, VIT_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, VIT_HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """Images to logits, by a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, VIT_WIDTH, PATCH, PATCH)
        self.kind = nn.Parameter(torch.randn(1, 1, VIT_WIDTH) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2 + 1, VIT_WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[VitBlock() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(VIT_WIDTH), nn.Linear(VIT_WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``[batch, 3, height, width]`` to ``[batch, classes]``."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[batch, 3, height, width]`` and their classes ``[batch]``, on the CPU."""
    return torch.randn(IMAGES, 3, SIDE, SIDE), torch.randint(0, CLASSES, (IMAGES,))


def vit_forward(p: Params, images: jax.Array) -> jax.Array:
    """``[batch, height, width, 3]`` to ``[batch, classes]``."""
    kernel, layout = p["patches.weight"], ("NHWC", "HWIO", "NHWC")
    images = images.astype(kernel.dtype)
    x = lax.conv_general_dilated(images, kernel, (PATCH,) * 2, "VALID", dimension_numbers=layout)
    x = (x + p["patches.bias"]).reshape(len(images), -1, VIT_WIDTH)
    kind = jnp.broadcast_to(p["kind"], (len(x), 1, VIT_WIDTH))
    x = jnp.concatenate([kind, x], 1) + p["position"]
    for i in range(LAYERS):
        b = f"blocks.{i}"
        qkv = linear(p, f"{b}.qkv", layer_norm(p, f"{b}.norm1", x))
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], 3 * VIT_HEADS, -1), 3, axis=2)
        attended = jax.nn.dot_product_attention(q, k, v)
        x = x + linear(p, f"{b}.out", attended.reshape(x.shape))
        up = linear(p, f"{b}.up", layer_norm(p, f"{b}.norm2", x))
        x = x + linear(p, f"{b}.down", jax.nn.gelu(up, approximate=False))
    return linear(p, "head", layer_norm(p, "norm", x[:, 0]))


# ---- Llama ------------------------------------------------------------------------------------

WIDTH, HEADS, KEY_HEADS, HEAD, HIDDEN, VOCABULARY = 1024, 8, 2, 128, 2816, 4096
BATCH, LENGTH, CACHED = 4, 512, 1024


def _angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[length, head]`` of rotary positions."""
    steps = torch.arange(0, HEAD, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * (10000.0 ** (-steps / HEAD))[None]
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaAttention(nn.Module):
    """Attention with fewer heads of keys than of queries, and where asked with a cache."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        if cached:
            for name in ("keys", "values"):
                zeros = torch.zeros(BATCH, KEY_HEADS, CACHED, HEAD)
                self.register_buffer(name, zeros, persistent=False)

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], at: torch.Tensor | None
    ) -> torch.Tensor:
        """``[batch, length, width]`` to the same; with ``at`` at that position of the cache."""
        q, k, v = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (_rotated(y, *(a.to(y.dtype) for a in angles)) for y in (q, k))
        mask = None
        if at is not None:
            k, v = self.keys.index_copy_(2, at, k), self.values.index_copy_(2, at, v)
            mask = torch.arange(CACHED, device=x.device)[None] <= at[:, None]
        attended = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, enable_gqa=True
        )
        return self.out(attended.transpose(1, 2).flatten(2))


class LlamaBlock(nn.Module):
    """Attention and a gated feed-forward layer, each after a norm and around a residual."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.attention = LlamaAttention(cached)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angles: Any, at: torch.Tensor | None) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        x = x + self.attention(self.norm1(x), angles, at)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Tokens to logits."""

    def __init__(self, cached: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([LlamaBlock(cached) for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH, 1e-6)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        """``[batch, length]`` int64 to ``[batch, length, vocabulary]``; ``at`` as the blocks."""
        x = self.token(tokens)
        positions = torch.arange(tokens.shape[1], device=x.device) if at is None else at
        angles = _angles(positions)
        for block in self.blocks:
            x = block(x, angles, at)
        return self.head(self.norm(x))


def llama_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the ones that follow them, each ``[batch, length]`` int64, on the CPU."""
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _rms_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    found = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (found * p[f"{name}.weight"].astype(jnp.float32)).astype(x.dtype)


def _jax_rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """``[batch, length, heads, head]`` turned by its positions."""
    angles = positions[:, None] * 10000.0 ** (-jnp.arange(0, HEAD, 2, dtype=jnp.float32) / HEAD)
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _llama_block(p: Params, b: str, x: jax.Array, positions: jax.Array, cache: Any) -> Any:
    """The block's output, and its cache with this position written."""
    y = _rms_norm(p, f"{b}.norm1", x)
    q, k, v = (_bare(p, f"{b}.attention.{n}", y).reshape(*x.shape[:2], -1, HEAD) for n in "qkv")
    q, k = _jax_rotated(q, positions), _jax_rotated(k, positions)
    if cache is None:
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    else:
        attended, cache = _cached_attention(q, k, v, positions[0], cache)
    x = x + _bare(p, f"{b}.attention.out", attended.reshape(*x.shape[:2], -1))
    y = _rms_norm(p, f"{b}.norm2", x)
    gated = jax.nn.silu(_bare(p, f"{b}.gate", y)) * _bare(p, f"{b}.up", y)
    return x + _bare(p, f"{b}.down", gated), cache


def _cached_attention(q: Any, k: Any, v: Any, at: jax.Array, cache: Any) -> Any:
    """Attention of one position to a cache ``[batch, heads, cached, head]``, and the new cache."""
    cache = keys, values = tuple(
        lax.dynamic_update_slice_in_dim(old, new.swapaxes(1, 2), at, axis=2)
        for old, new in zip(cache, (k, v), strict=True)
    )
    q = q.reshape(len(q), KEY_HEADS, -1, HEAD)
    scores = jnp.einsum("bkgd,bksd->bkgs", q, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(jnp.arange(keys.shape[2]) <= at, scores / HEAD**0.5, -jnp.inf)
    weights = jax.nn.softmax(scores).astype(q.dtype)
    return jnp.einsum("bkgs,bksd->bkgd", weights, values), cache


def _bare(p: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.weight"].T


def llama_forward(p: Params, tokens: jax.Array) -> jax.Array:
    """``[batch, length]`` int32 to ``[batch, length, vocabulary]``."""
    x = p["token.weight"][tokens]
    for i in range(LAYERS):
        x, _ = _llama_block(p, f"blocks.{i}", x, jnp.arange(tokens.shape[1]), None)
    return _bare(p, "head", _rms_norm(p, "norm", x))


def llama_decode(caches: list[Any], p: Params, tokens: jax.Array, at: jax.Array) -> Any:
    """The logits of one token, and the caches with its keys and values."""
    x, written = p["token.weight"][tokens], []
    for i, cache in enumerate(caches):
        x, cache = _llama_block(p, f"blocks.{i}", x, at, cache)
        written.append(cache)
    return _bare(p, "head", _rms_norm(p, "norm", x)), written


# ---- video transformer ------------------------------------------------------------------------

VIDEO_HEADS, FEED, FRAMES, PLACES, WORDS = 8, 4096, 3, 16, 128


def _video_rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out


class VideoAttention(nn.Module):
    """Attention to a context, with norms of queries and keys over all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)

    def forward(self, x: torch.Tensor, context: torch.Tensor, angles: Any = None) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        q, k = self.norm_q(self.q(x)), self.norm_k(self.k(context))
        q, k, v = (y.unflatten(-1, (VIDEO_HEADS, -1)) for y in (q, k, self.v(context)))
        if angles is not None:
            q, k = _video_rotated(q, *angles), _video_rotated(k, *angles)
        attended = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)))
        return self.out(attended.transpose(1, 2).flatten(2))


class VideoBlock(nn.Module):
    """Self-attention, cross-attention and a feed-forward layer, modulated by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.cross = VideoAttention(), VideoAttention()
        self.norm = nn.LayerNorm(WIDTH, 1e-6)
        self.up, self.down = nn.Linear(WIDTH, FEED), nn.Linear(FEED, WIDTH)
        self.modulation = nn.Parameter(torch.randn(1, 6, WIDTH) / WIDTH**0.5)

    def forward(
        self, x: torch.Tensor, text: torch.Tensor, time: torch.Tensor, angles: Any
    ) -> torch.Tensor:
        """``[batch, length, width]`` to the same; ``time`` is ``[batch, 6, width]``."""
        parts = (self.modulation + time.float()).chunk(6, dim=1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        y = (self._standard(x) * (1 + scale1) + shift1).type_as(x)
        x = (x.float() + self.attention(y, y, angles) * gate1).type_as(x)
        x = x + self.cross(self.norm(x), text)
        y = (self._standard(x) * (1 + scale2) + shift2).type_as(x)
        y = self.down(F.gelu(self.up(y), approximate="tanh"))
        return (x.float() + y.float() * gate2).type_as(x)

    def _standard(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), (WIDTH,), eps=1e-6)


class Video(nn.Module):
    """A stack of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([VideoBlock() for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor, text: torch.Tensor, time: torch.Tensor, *angles: Any) -> Any:
        """``[batch, length, width]`` to the same."""
        for block in self.blocks:
            x = block(x, text, time, angles)
        return x


def video_inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Tokens of a video and a text, the time, and rotary positions' cosines and sines."""
    length = FRAMES * PLACES**2
    angles = torch.rand(length, 1, WIDTH // VIDEO_HEADS // 2) * 6
    given = (torch.randn(1, n, WIDTH) for n in (length, WORDS, 6))
    return tuple(x.to(dtype) for x in (*given, angles.cos(), angles.sin()))


def _video_attention(p: Params, b: str, x: jax.Array, context: jax.Array, angles: Any) -> jax.Array:
    q = _rms_norm(p, f"{b}.norm_q", linear(p, f"{b}.q", x))
    k = _rms_norm(p, f"{b}.norm_k", linear(p, f"{b}.k", context))
    v = linear(p, f"{b}.v", context)
    q, k, v = (y.reshape(*y.shape[:2], VIDEO_HEADS, -1) for y in (q, k, v))
    if angles is not None:
        q, k = _jax_video_rotated(q, *angles), _jax_video_rotated(k, *angles)
    attended = jax.nn.dot_product_attention(q, k, v)
    return linear(p, f"{b}.out", attended.reshape(x.shape))


def _jax_video_rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack([first * cos - second * sin, first * sin + second * cos], -1)
    return turned.reshape(x.shape)


def _standard(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)


def video_forward(
    p: Params, x: jax.Array, text: jax.Array, time: jax.Array, *angles: jax.Array
) -> jax.Array:
    """``[batch, length, width]`` to the same."""
    for i in range(LAYERS):
        b = f"blocks.{i}"
        parts = jnp.split(p[f"{b}.modulation"] + time.astype(jnp.float32), 6, 1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        y = (_standard(x) * (1 + scale1) + shift1).astype(x.dtype)
        attended = _video_attention(p, f"{b}.attention", y, y, angles)
        x = (x + attended * gate1).astype(x.dtype)
        y = _standard(x) * p[f"{b}.norm.weight"] + p[f"{b}.norm.bias"]
        x = x + _video_attention(p, f"{b}.cross", y.astype(x.dtype), text, None)
        y = (_standard(x) * (1 + scale2) + shift2).astype(x.dtype)
        y = linear(p, f"{b}.down", jax.nn.gelu(linear(p, f"{b}.up", y)))
        x = (x + y * gate2).astype(x.dtype)
    return x


# ---- programs ---------------------------------------------------------------------------------


def _trained(model: Any, batch: Any, forward: Callable[..., jax.Array]) -> Case:
    """A model in PyTorch and its ``forward`` by hand, trained by AdamW in bfloat16."""
    step = functools.partial(train_step, forward, jnp.bfloat16, reference.adamw)
    start = reference.adamw_init
    return Case(model, batch, adamw, cross_entropy, forward, step, start, torch.bfloat16)


def gpt(sizes: models.GptSizes) -> Case:
    """A GPT of some sizes."""
    return _trained(
        lambda: models.Gpt(sizes), lambda: models.gpt_batch(sizes), reference.gpt_forward
    )


TRAINED = {
    "vit-bf16": _trained(Vit, vit_batch, vit_forward),
    "llama-bf16": _trained(Llama, llama_batch, llama_forward),
    "gpt-bf16": gpt(models.GPT),
}


def vit(dtype: torch.dtype) -> Made:
    """A ViT with its images, and the same by hand."""
    model, (images, targets) = TRAINED["vit-bf16"].made()
    model, images = model.to(dtype), images.to(dtype)
    arrays = reference.batch_of((images, targets))
    return (model, (images,)), (vit_forward, (reference.params_of(model), arrays[0]))


def decoding(dtype: torch.dtype) -> Made:
    """A Llama that decodes a token in the middle of its cache, and the same by hand."""
    torch.manual_seed(0)
    model = Llama(cached=True).to(dtype)
    tokens, at = torch.randint(0, VOCABULARY, (BATCH, 1)), torch.tensor([CACHED // 2])
    params = reference.params_of(model)
    zeros = jnp.zeros((BATCH, KEY_HEADS, CACHED, HEAD), params["head.weight"].dtype)
    caches = [(zeros, zeros) for _ in range(LAYERS)]
    arrays = (jnp.asarray(x.numpy(), jnp.int32) for x in (tokens, at))
    return (model, (tokens, at)), (llama_decode, (caches, params, *arrays))


def video(dtype: torch.dtype) -> Made:
    """A video transformer with its inputs, and the same by hand."""
    torch.manual_seed(0)
    model, given = Video().to(dtype), video_inputs(dtype)
    arrays = (reference.array_of(x) for x in given)
    return (model, given), (video_forward, (reference.params_of(model), *arrays))


# ---- the check --------------------------------------------------------------------------------


def _difference(made: Made) -> float:
    """The largest difference of a forward pass by hand from PyTorch's."""
    (model, given), (function, arrays) = made
    with torch.no_grad():
        expected = reference.array_of(model(*given))
    return float(abs(jax.tree.leaves(jax.jit(function)(*arrays))[0] - expected).max())


def _gradients_difference(case: Case) -> float:
    """The largest difference of the gradients of one example, in float32.

    Gradient descent shows them. AdamW would not: its first step goes as far by a gradient that is
    rounding errors and no more, as that of keys' biases, as by any other.
    """
    step = functools.partial(train_step, case.jax_forward, jnp.float32, reference.sgd)
    one = case._replace(
        batch=lambda: tuple(x[:1] for x in case.batch()),
        optimizer=cases.sgd,
        jax_step=step,
        jax_init=reference.sgd_init,
    )
    return cases.difference(one) / reference.SGD["lr"]


if __name__ == "__main__":
    differences = {name: _gradients_difference(case) for name, case in TRAINED.items()}
    differences["llama-decoding"] = _difference(decoding(torch.float32))
    differences["video-forward"] = _difference(video(torch.float32))
    print(*(f"{name}: max difference {d:.1e}" for name, d in differences.items()), sep="\n")
    assert max(differences.values()) < 1e-4, differences
