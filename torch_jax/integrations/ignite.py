"""For users of ignite: a step of an engine as one program.

>>> from torch_jax.integrations.ignite import whole_step  # doctest: +SKIP
>>> trainer = whole_step(create_supervised_trainer(model, optimizer, loss))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any, TypeVar

from ignite.engine import Engine

from torch_jax.recorded import lazy

E = TypeVar("E", bound=Engine)


def whole_step(engine: E) -> E:
    """Return the engine, whose process function runs as one program from now on.

    It returns tensors, as with ``create_supervised_trainer(..., output_transform=lambda x, y,
    y_pred, loss: loss)``: ``loss.item()``, the default, ends the program at that line.
    """
    process = engine._process_function

    def recorded(engine: Engine, batch: Any) -> Any:
        with lazy.lazy():
            return process(engine, batch)

    engine._process_function = recorded
    return engine
