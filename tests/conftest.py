"""How the tests run: never on the CPU unasked, apart from the user's cache, cheaply compiled.

Nearly all the time of the tests goes into compiling thousands of tiny programs, each run once or
twice. Where ``TORCH_JAX_TEST_XLA`` is ``fast``, as it is if nothing is said, XLA optimizes little:
that is three to four times as quick. ``default`` leaves XLA as it is; the tests that are marked
``xla_default``, about memory and what XLA optimizes, run only so.
"""

import os

import pytest

FAST_XLA = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_llvm_disable_expensive_passes=true",
)
PROFILE = os.environ.setdefault("TORCH_JAX_TEST_XLA", "fast")
if PROFILE not in ("fast", "default"):
    raise pytest.UsageError(f"TORCH_JAX_TEST_XLA is {PROFILE!r}, neither 'fast' nor 'default'")

os.environ.setdefault("TORCH_JAX_CPU_FALLBACK", "error")
# What is tested of torch_jax.jit is the trace, where a test does not say otherwise.
os.environ.setdefault("TORCH_JAX_JIT_RECORDED_CALLS", "0")
os.environ.setdefault("TORCH_JAX_JIT_FALLBACK", "error")
os.environ.setdefault("TORCH_JAX_CACHE", "0")  # `make` gives the tests a cache of their own

# The processes of xdist inherit the variable, with the flags in it.
if PROFILE == "fast" and FAST_XLA[0] not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FAST_XLA)).strip()

import hypothesis  # noqa: E402
import torch  # noqa: E402, F401, before any library that it looks for among those imported

# The same examples at every run, so that what fails is the change's own fault; with
# HYPOTHESIS_PROFILE=default they are drawn anew, to look for what no run has met.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = ["tests.support.ledger"]


def pytest_report_header() -> str:
    """Which XLA the tests see."""
    left_out = "; tests marked xla_default are left out" if PROFILE == "fast" else ""
    return f"TORCH_JAX_TEST_XLA: {PROFILE}{left_out}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure when it happens: pytest does at the end, which may be an hour later."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})", flush=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about XLA's optimizations where there are none."""
    if PROFILE != "fast":
        return
    left_out = [item for item in items if item.get_closest_marker("xla_default")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("xla_default")]
