"""Run the tests as a user's programs run, never on the CPU unasked, cheaply compiled.

Settings have the user's defaults, but for three: an operator that would fall back to the CPU
raises, since one warning an operator and process shows in one test only; programs are kept apart
from the user's cache; and recorded graphs are compiled in their first run, as on accelerators,
since few tests run one three times. Tests of the runs before ask for ``compiled_later``.

Nearly all the time of the tests goes into compiling thousands of tiny programs, each run once or
twice. Where ``TORCH_JAX_TEST_XLA`` is ``fast``, as it is if nothing is said, XLA optimizes little:
that is three to four times as quick. ``default`` leaves XLA as it is; the tests that are marked
``xla_default``, about memory and what XLA optimizes, run only so.
"""

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator

import pytest

FAST_XLA: tuple[str, ...] = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
if importlib.metadata.version("jaxlib") < "0.11":  # later ones end the process over the flag
    FAST_XLA += ("--xla_cpu_use_fusion_emitters=false",)
PROFILE = os.environ.setdefault("TORCH_JAX_TEST_XLA", "fast")
if PROFILE not in ("fast", "default"):
    raise pytest.UsageError(f"TORCH_JAX_TEST_XLA is {PROFILE!r}, neither 'fast' nor 'default'")

os.environ.setdefault("TORCH_JAX_CPU_FALLBACK", "error")
os.environ.setdefault("TORCH_JAX_COMPILED_FROM_RUN", "1")
os.environ.setdefault("TORCH_JAX_CACHE", "0")  # `make` gives the tests a cache of their own

# The processes of xdist inherit the variable, with the flags in it.
if PROFILE == "fast" and FAST_XLA[0] not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FAST_XLA)).strip()

import hypothesis  # noqa: E402
import torch  # noqa: E402, before any library that it looks for among those imported

# The same examples at every run, so that what fails is the change's own fault; with
# HYPOTHESIS_PROFILE=default they are drawn anew, to look for what no run has met.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

_MAIN, _HOOK = sys.modules["__main__"], sys.excepthook

pytest_plugins = ["tests.support.ledger", "tests.support.selected"]


@pytest.fixture(autouse=True, scope="module")
def _a_file_begins_as_a_process_does() -> None:
    """Forget what tests of other files have compiled, counted and put on meshes: in any order.

    Tests about what is remembered ask for this each: :func:`nothing_is_remembered`.
    What stays is left out of later garbage collections: after some thousand tests each would look
    through millions of objects, which took seconds, and there are hundreds of them.
    """
    _forget()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _the_interpreter_stays_as_it_was() -> Iterator[None]:
    """Take back what a script or PyTorch sets for the whole process.

    A script becomes ``__main__``, which forks would import; ``init_process_group`` puts the rank
    before each line of a traceback.
    """
    yield
    sys.modules["__main__"], sys.excepthook = _MAIN, _HOOK


@pytest.fixture
def nothing_is_remembered() -> None:
    """Begin as a new process does: no program, no path, no count is known."""
    _forget()


@pytest.fixture
def eager_by_xla() -> Iterator[None]:
    """Have XLA run eager operators, as on accelerators: what the table of operators is for."""
    from torch_jax import config

    with config.temporarily("eager_on_cpu", "xla"):
        yield


@pytest.fixture
def compiled_later() -> Iterator[None]:
    """Have recorded graphs run one by one at first, as a user's do where JAX is on the CPU.

    The next test does not hear of programs that are still being compiled.
    """
    from torch_jax import config
    from torch_jax.compiler.worker import WORKER

    with config.temporarily("compiled_from_run", 3):
        yield
    WORKER.submit(len, ((),)).wait()


def _forget() -> None:
    if "torch_jax.core.waking" in sys.modules and sys.modules["torch_jax.core.waking"].is_awake():
        from torch_jax import config
        from torch_jax.memory import sharding
        from torch_jax.observe import metrics

        sharding.Use.begun = False
        config.forget()
        metrics.reset_metrics()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # which compiles a function a few times only


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
