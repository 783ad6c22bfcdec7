"""PEFT: the adapters of LoRA are trained, and the model stands still."""

from __future__ import annotations

import functools

from examples.trainers import with_transformers

main = functools.partial(with_transformers.main, lora=True)
