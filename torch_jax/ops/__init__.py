"""The table of operators, one file per family."""

import importlib
import pkgutil


def load() -> None:
    """Import every family, which fills :data:`torch_jax.ops.registry.TABLE`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
