"""The operators of ``torch.amp.GradScaler``."""

from __future__ import annotations

import jax.numpy as jnp

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


@op("_amp_foreach_non_finite_check_and_unscale", meta=False)
def non_finite_check_and_unscale(self, found_inf, inv_scale):
    """Multiply gradients by ``inv_scale``; ``found_inf`` becomes 1 where one is not finite."""
    bad = found_inf != 0
    scaled = []
    for grad in self:
        bad = bad | ~jnp.all(jnp.isfinite(grad))
        wide = opmath(grad.dtype)
        scaled.append((grad.astype(wide) * inv_scale.astype(wide)).astype(grad.dtype))
    return scaled, jnp.where(bad, 1, found_inf).astype(found_inf.dtype)


@op("_amp_update_scale", meta=False)
def update_scale(
    self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval
):
    """Grow the scale after so many finite steps in a row, unless it would become infinite."""
    overflowed = found_inf != 0
    successes = growth_tracker + 1
    grows = successes == growth_interval
    grown = self * scale_growth_factor
    grown = jnp.where(grows & jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflowed, self * scale_backoff_factor, grown)
    tracker = jnp.where(overflowed | grows, 0, successes)
    return scale.astype(self.dtype), tracker.astype(growth_tracker.dtype)
