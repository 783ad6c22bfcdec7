"""Writing into storages: the one op that copies need."""

from torch_jax.ops.registry import op


@op("torch_jax::write_", meta=False)
def write_(self, source):
    """Broadcast and cast ``source`` into ``self``; the executor does both."""
    return source
