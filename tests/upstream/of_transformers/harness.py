"""Parts for transformers' harness, which does not know the device, as a plugin of pytest.

Its comparisons of attention look tolerances up by device, and a device that has none gets 1e-7 and
1e-4, in float16 too: here the device joins those that get CUDA's. Source packages of PyPI carry the
common tests without the folders that these import: empty mixins stand in for those.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any

_LISTED = 'torch_device in ["hpu", "npu", "tpu"]'  # which get those of CUDA
_ABSENT = {
    "tests.exporters.test_export": ("ExportTesterMixin",),
    "tests.generation.test_utils": ("GenerationTesterMixin",),
}


def pytest_configure(config: Any) -> None:
    """Before tests are collected; their folder is that of ``TRANSFORMERS_TESTS``."""
    tests = sys.modules["tests"] = ModuleType("tests")  # theirs, which may have no __init__.py
    tests.__path__ = [os.environ["TRANSFORMERS_TESTS"]]
    for name, classes in _ABSENT.items():
        _stand_in(name, classes)
    _give_tolerances(importlib.import_module("tests.test_modeling_common"))


def _stand_in(name: str, classes: tuple[str, ...]) -> None:
    package = name.rpartition(".")[0]
    if importlib.util.find_spec(package) is not None:
        return
    sys.modules[package] = ModuleType(package)
    module = sys.modules[name] = ModuleType(name)
    for each in classes:
        setattr(module, each, type(each, (), {}))


def _give_tolerances(common: ModuleType) -> None:
    """Make the comparison anew, of its own source, with the device in a list of its."""
    source = inspect.getsource(common._test_eager_matches_sdpa_inference)
    if _LISTED not in source:
        raise RuntimeError(
            f"this transformers picks tolerances otherwise: no {_LISTED} in {common}"
        )
    exec(source.replace(_LISTED, _LISTED.replace("]", ', "jax"]')), vars(common))
