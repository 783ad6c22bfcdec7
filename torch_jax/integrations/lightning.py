"""For users of Lightning: a callback, and the strategy over a mesh with rules of its own.

>>> from torch_jax.integrations.lightning import WholeStep  # doctest: +SKIP
>>> Trainer(callbacks=[WholeStep()])  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from torch_jax.integrations.adapt.lightning import STRATEGY
from torch_jax.integrations.whole_step import Step

if TYPE_CHECKING or importlib.util.find_spec("lightning") is not None:
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.pytorch import Callback
    from lightning.pytorch.strategies import StrategyRegistry
else:  # the same, in two packages
    from lightning_fabric.strategies import STRATEGY_REGISTRY
    from pytorch_lightning import Callback
    from pytorch_lightning.strategies import StrategyRegistry

JaxSpmdStrategy = StrategyRegistry[STRATEGY]["strategy"]
FabricJaxSpmdStrategy = STRATEGY_REGISTRY[STRATEGY]["strategy"]


class WholeStep(Callback):
    """Each batch as one program: forward, backward, clipping, and the optimizer where it steps.

    With ``precision="16-mixed"`` a step is two programs, since its scaler looks whether gradients
    are finite.
    """

    def __init__(self) -> None:
        self._step = Step()

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Begin a step before a batch is computed."""
        self._step.begin()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """End the step: the optimizer has stepped if it was due, or an exception came first."""
        self._step.close()

    on_exception = on_train_batch_end
