"""Train a small GPT-2 of transformers for a moment, and let it write, on the CPU and on the device.

The device writes by ``generate()`` as it is, and with the whole loop as one program.
"""

import copy
import time
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.optim import AdamW

from demo import corpus, train
from demo.report import Row, Timing, progress

PROMPT = "The "
CONTEXT = 128


def model_of(vocabulary: int) -> Any:
    """A GPT-2 of three layers over characters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=CONTEXT,
        n_embd=96,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def trained(model: Any, steps: int, device: torch.device) -> float:
    """Train in place on stretches of text; returns the last loss."""
    text, _ = corpus.characters()
    generator = torch.Generator().manual_seed(0)
    model.to(device).train()
    optimizer = AdamW(model.parameters(), lr=2e-3)

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = train.one_executable(step) if device.type == "jax" else step
    loss = torch.tensor(0.0)
    for _ in progress(range(steps), steps, f"steps, {device}"):
        starts = torch.randint(len(text) - 64, (16, 1), generator=generator)
        loss = run(text[starts + torch.arange(64)].to(device))
    return loss.item()


def ways(model: Any, device: torch.device) -> dict[str, Callable[..., torch.Tensor]]:
    """What writes: the model on the CPU first, then on the device."""
    on_device = copy.deepcopy(model).to(device)
    found: dict[str, Callable[..., torch.Tensor]] = {
        "CPU": model.generate,
        f"{device} generate()": lambda **given: on_device.generate(
            **{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        ).cpu(),
    }
    if device.type == "jax":
        import torch_jax

        plain = found[f"{device} generate()"]
        found[f"{device} loop"] = lambda **given: plain(
            **given, custom_generate=torch_jax.generate_loop
        )
    return found


def run(device: torch.device, steps: int, tokens: int) -> Row:
    """Train, write in each way, and hold the text against the CPU's."""
    characters = sorted(set("\n".join(topics.values())))
    model = model_of(len(characters))
    loss = trained(model, steps, device)
    model.cpu().eval()
    ids = torch.tensor([[characters.index(c) for c in PROMPT]])
    asked = {"do_sample": False, "repetition_penalty": 1.2, "pad_token_id": 0}
    asked |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": tokens}
    timings, texts = {}, {}
    for name, write in ways(model, device).items():
        timing = timings[name] = Timing()
        for kind in (timing.first, timing.steady, timing.steady):
            start = time.perf_counter()
            texts[name] = write(**asked)
            kind.append(time.perf_counter() - start)
        print(f"  {name}: {tokens / timing.steady[-1]:.0f} characters a second")
    print("  " + repr("".join(characters[i] for i in texts["CPU"][0].tolist())))
    failures = [
        f"GPT-2 writes, {name}: another text than the CPU's"
        for name, text in texts.items()
        if not text.equal(texts["CPU"])
    ]
    equal = "other text" if failures else "equal text"
    return Row(f"GPT-2 writes {tokens} characters", f"loss {loss:.2f}", equal, timings, failures)
