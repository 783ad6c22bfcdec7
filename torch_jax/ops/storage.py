"""Reads of views and writes into storages, for copies."""

from jax import ad_checkpoint

from torch_jax.ops.promotion import convert
from torch_jax.ops.registry import op


@op("torch_jax::copy", meta=False)
def copy(self, dtype):
    """Return a copy in a dtype; the executor reads ``self`` out of its memory."""
    return convert(self, dtype)


@op("torch_jax::write_", meta=False)
def write_(self, source):
    """Broadcast and cast ``source`` into ``self``; the executor does both."""
    return source


@op("torch_jax::checkpoint_name", static=("name",), meta=False)
def checkpoint_name(self, name):
    return ad_checkpoint.checkpoint_name(self, name)
