"""The device for transformers' own tests: ``TRANSFORMERS_TEST_DEVICE_SPEC``.

transformers imports this file by its plain name: run tests in this folder, or have it in
``PYTHONPATH`` (https://huggingface.co/docs/transformers/testing has the page of its test suite).
"""

import torch

DEVICE_NAME = "jax"
MANUAL_SEED_FN = torch.jax.manual_seed
EMPTY_CACHE_FN = torch.jax.empty_cache
DEVICE_COUNT_FN = torch.jax.device_count
