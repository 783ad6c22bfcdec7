"""For users of the ``Trainer`` of transformers, and of TRL: a callback.

>>> from torch_jax.integrations.transformers import WholeStep  # doctest: +SKIP
>>> Trainer(model, arguments, train_dataset=data, callbacks=[WholeStep()])  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from torch_jax.integrations.whole_step import Step


class WholeStep(TrainerCallback):
    """Each step as one program: forward, backward, clipping, optimizer, all accumulated batches.

    The trainer reads the loss of each batch to keep NaN out of its logs
    (``logging_nan_inf_filter``), which would end the program there: while it trains, this is off.
    With ``fp16=True`` the step is two programs: the scaler reads whether gradients are finite.
    """

    def __init__(self) -> None:
        self._step = Step()
        self._filter = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Turn off the filter that reads the loss."""
        self._filter, args.logging_nan_inf_filter = args.logging_nan_inf_filter, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a step before its first batch is computed."""
        self._step.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step: the optimizer has stepped."""
        self._step.close()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step, and restore the filter."""
        self._step.close()
        args.logging_nan_inf_filter = self._filter
