"""Loops as people write them in PyTorch: the time of the first run, and the programs it compiles.

Each program runs once on each device in a process of its own, without a cache on disk, so that all
compiling is in the time; the device has been woken before, by one small operator.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torch_jax

PROGRAMS: dict[str, Callable[[str], Any]] = {}


def program(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Enter a program, a function of the device that returns what it computed."""
    PROGRAMS[function.__name__] = function
    return function


def _draw(device: str, *size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(*size, generator=generator).to(device)


# --- slices that begin elsewhere at each step -----------------------------------------------------


@program
def sum_of_rows(device):
    """``s = s + x[i]``, 300 times."""
    x, s = _draw(device, 300, 16), torch.zeros(16, device=device)
    for i in range(300):
        s = s + x[i]
    return s


@program
def reduce_each_row(device):
    """``for r in x: r.sum()``, 200 rows."""
    return [r.sum() for r in _draw(device, 200, 16)]


@program
def write_each_row(device):
    """``x[i] = i``, 100 times."""
    x = torch.zeros(100, 8, device=device)
    for i in range(100):
        x[i] = i
    return x


@program
def minibatches(device):
    """``x[i*32:(i+1)*32] @ w``, 30 times."""
    x, w = _draw(device, 960, 16), _draw(device, 16, 8)
    return [x[i * 32 : (i + 1) * 32] @ w for i in range(30)]


@program
def minibatches_with_gradients(device):
    """A linear model's gradient for each of 30 minibatches of one tensor."""
    x, w = _draw(device, 960, 16), _draw(device, 16, 8).requires_grad_()
    return [torch.autograd.grad((x[i : i + 32] @ w).sum(), w)[0] for i in range(0, 960, 32)]


@program
def gradient_of_rows(device):
    """The gradient of a sum over rows, read one by one."""
    x = _draw(device, 100, 16).requires_grad_()
    loss = torch.zeros((), device=device)
    for i in range(100):
        loss = loss + (x[i] ** 2).sum()
    loss.backward()
    return x.grad


@program
def select_by_index(device):
    """``x.index_select(0, idx[i:i+1])``, 100 times."""
    x, idx = _draw(device, 50, 16), (torch.arange(100) % 50).to(device)
    return [x.index_select(0, idx[i : i + 1]) for i in range(100)]


@program
def stack_of_parts(device):
    """``torch.stack([a*2 for a in x.split(1)])``, 64 parts."""
    return torch.stack([a * 2 for a in _draw(device, 64, 16).split(1)])


@program
def recurrent_cell(device):
    """``h = GRUCell(seq[:, i], h)``, 50 steps."""
    torch.manual_seed(0)
    cell, seq = nn.GRUCell(8, 16).to(device), _draw(device, 4, 50, 8)
    h = torch.zeros(4, 16, device=device)
    with torch.no_grad():
        for i in range(50):
            h = cell(seq[:, i], h)
    return h


@program
def audio_windows(device):
    """``conv1d`` of 40 windows of a signal."""
    signal, kernel = _draw(device, 1, 1, 8000), _draw(device, 4, 1, 9)
    return [F.conv1d(signal[..., i * 160 : i * 160 + 400], kernel) for i in range(40)]


@program
def add_to_columns(device):
    """``buf[:, i] += 1``, 64 columns."""
    buf = torch.zeros(16, 64, device=device)
    for i in range(64):
        buf[:, i] += 1
    return buf


@program
def strided_columns(device):
    """``x[:, i::4]`` read and written, 40 times."""
    x = _draw(device, 8, 80)
    for i in range(40):
        x[:, i % 4 :: 4] *= 0.5
    return x


@program
def sliding_sum(device):
    """Windows of a sequence, added up; written to the middle of another tensor."""
    x, y = _draw(device, 128), torch.zeros(128, device=device)
    for i in range(100):
        y[i + 8] = x[i : i + 16].sum()
    return y


# --- sizes that differ at each step ---------------------------------------------------------------


@program
def boolean_masks(device):
    """``x[mask]`` for 30 masks of different counts."""
    x = _draw(device, 100)
    return [x[x > i / 15 - 1] for i in range(30)]


@program
def softmax_at_lengths(device):
    """``softmax`` at 30 sequence lengths."""
    return [torch.softmax(_draw(device, 4, n), -1) for n in range(10, 40)]


@program
def grown_by_cat(device):
    """``x = torch.cat([x, new], 1)``, 60 times."""
    x, new = _draw(device, 2, 1, 8), _draw(device, 2, 1, 8)
    for _ in range(60):
        x = torch.cat([x, new], 1)
    return x


@program
def dynamic_cache(device):
    """Keys and values grow by a token; attention over all of them; 10 tokens."""
    keys = values = _draw(device, 1, 2, 4, 8)
    outputs = []
    for i in range(10):
        q, k, v = (_draw(device, 1, 2, 1, 8) * (i + 1) for _ in range(3))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        outputs.append(F.scaled_dot_product_attention(q, keys, values))
    return outputs


@program
def roll_each(device):
    """``x.roll(i)``, 40 times."""
    x = _draw(device, 64)
    return [x.roll(i) for i in range(40)]


@program
def topk_each(device):
    """``x.topk(k)``, k from 1 to 20."""
    x = _draw(device, 64)
    return [x.topk(k).values for k in range(1, 21)]


@program
def arange_each(device):
    """``torch.arange(n)``, n from 1 to 40."""
    return [torch.arange(n, device=device) for n in range(1, 41)]


# --- whole small programs -------------------------------------------------------------------------


@program
def beam_search(device):
    """Four beams, 12 steps over a bigram table."""
    table = torch.log_softmax(_draw(device, 32, 32), -1)
    beams = torch.zeros(4, 1, dtype=torch.long, device=device)
    scores = torch.tensor([0.0, -90.0, -91.0, -92.0], device=device)
    for _ in range(12):
        total = 0.9 * scores[:, None] + table[beams[:, -1]]
        scores, flat = total.view(-1).topk(4)
        beams = torch.cat([beams[flat // 32], (flat % 32)[:, None]], 1)
    return beams


@program
def past_so_far(device):
    """Attention of each position over ``past[:, :n]``."""
    past = _draw(device, 2, 20, 8)
    outputs = []
    for n in range(1, 21):
        weights = torch.softmax(past[:, n - 1 : n] @ past[:, :n].transpose(1, 2), -1)
        outputs.append(weights @ past[:, :n])
    return torch.cat(outputs, 1)


@program
def non_maximum_suppression(device):
    """The textbook loop: keep the best box, drop what overlaps it."""
    corner, extent = _draw(device, 40, 2) * 4, _draw(device, 40, 2).abs() + 1
    boxes, scores = torch.cat([corner, corner + extent], 1), _draw(device, 40)
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        best = order[0]
        keep.append(best.item())
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        inter = (high - low).clamp(min=0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = order[inter / (area[best] + area[order] - inter) < 0.3]
    return torch.tensor(keep, device=device)


@program
def tokenizer_loop(device):
    """Byte pairs merged while the most frequent one repeats."""
    text = torch.tensor(list(b"the cat sat on the mat and the rat sat on the cat" * 2)).to(device)
    for new in range(256, 266):
        pairs = text[:-1] * 1000 + text[1:]
        found, counts = pairs.unique(return_counts=True)
        best = found[counts.argmax()]
        hit = torch.nonzero(pairs == best).flatten().tolist()
        ids = text.tolist()
        for at in reversed(hit):
            if at + 1 < len(ids) and ids[at] * 1000 + ids[at + 1] == best.item():
                ids[at : at + 2] = [new]
        text = torch.tensor(ids, device=device)
    return text


@program
def greedy_decoding(device):
    """A token at a time into a buffer of fixed length."""
    table, out = _draw(device, 64, 64), torch.zeros(1, 41, dtype=torch.long, device=device)
    for i in range(40):
        out[:, i + 1] = table[out[:, i]].argmax(-1)
    return out


@program
def k_means(device):
    """Clusters by boolean masks of changing counts, 6 rounds of 4."""
    x = _draw(device, 120, 2)
    centres = x[:4].clone()
    for _ in range(6):
        nearest = torch.cdist(x, centres).argmin(1)
        for k in range(4):
            members = x[nearest == k]
            if len(members):
                centres[k] = members.mean(0)
    return centres


@program
def levenshtein(device):
    """A dynamic program over a table, cell by cell."""
    a, b = torch.arange(12) * 7 % 5, torch.arange(14) * 3 % 5
    table = torch.zeros(13, 15, device=device)
    table[:, 0], table[0, :] = torch.arange(13.0), torch.arange(15.0)
    for i in range(1, 13):
        for j in range(1, 15):
            cost = float(a[i - 1] != b[j - 1])
            ways = (table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + cost)
            table[i, j] = torch.stack(ways).min()
    return table


@program
def padded_batches(device):
    """Sentences of 15 lengths, padded and averaged under a mask."""
    table, outputs = _draw(device, 50, 8), []
    for n in range(5, 20):
        ids = (torch.arange(3 * n).view(3, n) % 50).to(device)
        mask = (ids % 7 != 0)[..., None]
        outputs.append((table[ids] * mask).sum(1) / mask.sum(1))
    return torch.stack(outputs)


@program
def cumulative_reward(device):
    """Discounted returns, from the last step back."""
    rewards, total = _draw(device, 64), torch.zeros((), device=device)
    returns = torch.empty(64, device=device)
    for t in reversed(range(64)):
        total = rewards[t] + 0.9 * total
        returns[t] = total
    return returns


@program
def sinkhorn_rows_and_columns(device):
    """Rows and columns normalised in place, one at a time."""
    x = _draw(device, 12, 10).abs()
    for i in range(12):
        x[i] /= x[i].sum()
    for j in range(10):
        x[:, j].div_(x[:, j].sum())
    return x


# --- whole programs -------------------------------------------------------------------------------


@program
def sampling_without_a_cache(device):
    """60 tokens of a small GPT, which reads all of the text again for each."""
    torch.manual_seed(0)
    model = CharGPT(device, layers=4, width=128).eval()
    ids = torch.zeros(1, 1, dtype=torch.long, device=device)
    with torch.no_grad():
        for _ in range(60):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids


@program
def pyramid_of_sizes(device):
    """A convolutional network over an image in 12 sizes."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.PReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.PReLU(),
        nn.Conv2d(32, 6, 1), nn.Softmax(1),
    ).to(device)  # fmt: skip
    image, found = _draw(device, 1, 3, 240, 240), []
    with torch.no_grad():
        for n in range(12):
            scores = net(F.interpolate(image, scale_factor=0.9**n, mode="bilinear"))
            found.append((scores > 0.3).nonzero().float().mean(0))
    return found


@program
def policy_rollouts(device):
    """A policy that is asked for one action at a time, and a step of policy gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    state, losses = torch.zeros(4), []
    for _ in range(5):
        logits, actions = [], []
        for _ in range(40):
            logits.append(net(state.to(device)))
            actions.append(int(logits[-1].argmax()))
            state = (state * 0.9 + actions[-1] - 0.4).clamp(-1, 1)
        optimizer.zero_grad()
        loss = F.cross_entropy(torch.stack(logits), torch.tensor(actions, device=device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class CharGPT(nn.Module):
    """A GPT of bytes."""

    def __init__(self, device: str, layers: int, width: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", norm_first=True)
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(64, width)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.to(device)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``[1, length, 256]``."""
        length = ids.shape[1]
        x = (self.embed(ids) + self.place(torch.arange(length, device=ids.device))).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        return self.head(self.body(x, mask=mask, is_causal=True)).transpose(0, 1)


# --- measuring ------------------------------------------------------------------------------------


def measure(name: str, device: str) -> dict[str, Any]:
    """Seconds and compiled programs of one run, in this process."""
    (torch.ones(3, device=device) + 1).cpu()
    before, start = _compiled(device), time.perf_counter()
    _wait(PROGRAMS[name](device))
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "compiled": _compiled(device) - before}


def _compiled(device: str) -> int:
    return torch_jax.metrics()["compiles"] if device == "jax" else 0


def _wait(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.cpu()
    else:
        for one in value:
            _wait(one)


def _in_a_process(name: str, device: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.loops", name, device]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"TORCH_JAX_CACHE": "0"}
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rows(names: list[str], rounds: int = 3) -> Iterator[str]:
    """A line of the table for each program."""
    for name in names:
        runs: dict[str, list[dict]] = {"cpu": [], "jax": []}
        for _ in range(rounds):
            for device, found in runs.items():
                found.append(_in_a_process(name, device))
        cpu, jax = (statistics.median(r["seconds"] for r in runs[d]) for d in ("cpu", "jax"))
        yield (
            f"{name:28} {1e3 * jax:8.0f} ms  {1e3 * cpu:8.1f} ms  {jax / cpu:8.1f}x"
            f"  {runs['jax'][0]['compiled']:4} compiled"
        )


def run(names: list[str] | None = None) -> None:
    """Print the table: of the programs named, or of all."""
    print(f"{'first run':28} {'jax':>11}  {'cpu':>11}  {'ratio':>9}")
    for line in rows(names or list(PROGRAMS)):
        print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in ("cpu", "jax"):
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        run(sys.argv[1:])
