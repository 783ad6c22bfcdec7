"""Every change in a library that trains is needed: without it the fault shows, with it none."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from torch_jax.core import patching
from torch_jax.integrations import install

ROOTS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
DEVICE = torch.device("jax", 0)


def module(name: str) -> Any:
    return importlib.import_module(name)


def draws_again(keep: Callable[[str], Any], restore: Callable[[str], Any]) -> bool:
    """Whether the device's random numbers come again after what is kept in a folder is restored."""
    with tempfile.TemporaryDirectory() as folder:
        keep(folder)
        expected = torch.rand(3, device="jax")
        restore(folder)
        return torch.equal(torch.rand(3, device="jax"), expected)


# --- Accelerate -----------------------------------------------------------------------------------


def accelerator(**options: Any) -> Any:
    module("accelerate.state").AcceleratorState._reset_state(True)
    return module("accelerate").Accelerator(**options)


def process_of_many() -> bool:
    """What a process that torchrun has started is told, before it joins the others."""
    state = object.__new__(module("accelerate.state").PartialState)
    state.__dict__ = {"device": None}
    with mock.patch.dict(os.environ, LOCAL_RANK="1"):
        backend, kind = state._prepare_backend()
        found = backend, kind.value, state.device
    return found == ("jax", "MULTI_GPU", DEVICE)


def accelerate_draws_again() -> bool:
    made = accelerator()
    return draws_again(made.save_state, made.load_state)


_ACCELERATOR = "accelerate.accelerator"
ACCELERATE: dict[str, Callable[[], bool]] = {
    "accelerate.state.PartialState.default_device": lambda: accelerator().device == DEVICE,
    "accelerate.state.PartialState._prepare_backend": process_of_many,
    f"{_ACCELERATOR}.Accelerator.__init__": lambda: (
        accelerator(mixed_precision="fp16").scaler is not None
    ),
    f"{_ACCELERATOR}.get_grad_scaler": lambda: (
        accelerator(mixed_precision="fp16").scaler._device == "jax"
    ),
    f"{_ACCELERATOR}.save_accelerator_state": accelerate_draws_again,
    f"{_ACCELERATOR}.load_accelerator_state": accelerate_draws_again,
    "accelerate.utils.dataclasses.DynamoBackend": lambda: (
        accelerator(dynamo_backend="jax").state.dynamo_plugin.backend.value == "JAX"
    ),
}

# --- the Trainer of transformers ------------------------------------------------------------------


def arguments(**options: Any) -> Any:
    made = module("transformers").TrainingArguments(tempfile.gettempdir(), **options)
    return made


def trainer_draws_again() -> bool:
    trainer, given = module("transformers").Trainer, SimpleNamespace(args=arguments())
    return draws_again(
        lambda folder: trainer._save_rng_state(given, folder),
        lambda folder: trainer._load_rng_state(given, folder),
    )


_ARGUMENTS = "transformers.training_args"
TRAINER: dict[str, Callable[[], bool]] = {
    f"{_ARGUMENTS}.TrainingArguments._setup_devices": lambda: arguments().device == DEVICE,
    f"{_ARGUMENTS}.TrainingArguments.__post_init__": lambda: (
        arguments(torch_compile=True).torch_compile_backend == "jax"
    ),
    f"{_ARGUMENTS}.is_torch_bf16_gpu_available": lambda: arguments(bf16=True).bf16,
    "transformers.trainer.Trainer._save_rng_state": trainer_draws_again,
    "transformers.trainer.Trainer._load_rng_state": trainer_draws_again,
}

# --- Lightning ------------------------------------------------------------------------------------


def lightning(root: str) -> dict[str, Callable[[], bool]]:
    """What is changed in one of the four packages."""
    is_trainer = "pytorch" in root
    connector, name = ("connector", "_Connector")
    ids = f"{'' if is_trainer else '_'}determine_ddp_device_ids"
    accelerators, strategies = ("ACCELERATOR_REGISTRY", "STRATEGY_REGISTRY")
    if is_trainer:
        connector, name = ("trainer.connectors.accelerator_connector", "_AcceleratorConnector")
        accelerators, strategies = ("AcceleratorRegistry", "StrategyRegistry")

    def connected(**options: Any) -> Any:
        return getattr(module(f"{root}.{connector}"), name)(accelerator="jax", **options)

    def chosen(how: str) -> str:
        return getattr(getattr(module(f"{root}.{connector}"), name), how)()

    def precision() -> bool:
        made = connected(precision="bf16-mixed")
        return (made.precision_plugin if is_trainer else made.precision).device == "jax"

    def device_ids() -> bool:
        strategy = module(f"{root}.strategies.ddp").DDPStrategy
        return getattr(strategy, ids)(SimpleNamespace(root_device=DEVICE)) is None

    def isolated() -> bool:
        seeds, kept = module(f"{root}.utilities.seed"), []
        return draws_again(
            lambda _: kept.append(seeds._collect_rng_states()),
            lambda _: seeds._set_rng_states(kept[0]),
        )

    rows = {
        f"accelerators.{accelerators}": lambda: connected().accelerator.name() == "jax",
        f"strategies.{strategies}": lambda: (
            connected(strategy="jax_spmd").strategy.root_device == DEVICE
        ),
        f"strategies.ddp.DDPStrategy.{ids}": device_ids,
        f"{connector}.{name}._choose_auto_accelerator": lambda: (
            chosen("_choose_auto_accelerator") == "jax"
        ),
        f"{connector}.{name}._choose_gpu_accelerator_backend": lambda: (
            chosen("_choose_gpu_accelerator_backend") == "jax"
        ),
        f"{connector}.{name}._choose_strategy": lambda: connected().strategy.root_device == DEVICE,
        f"{connector}.{name}._check_and_init_precision": precision,
    }
    if not is_trainer:
        rows |= dict.fromkeys(
            ("utilities.seed._collect_rng_states", "utilities.seed._set_rng_states"), isolated
        )
    return {f"{root}.{target}": works for target, works in rows.items()}


LIGHTNING = {target: works for root in ROOTS for target, works in lightning(root).items()}
NEEDS = ACCELERATE | TRAINER | LIGHTNING
SLOW = (*TRAINER, *(target for target in LIGHTNING if not target.startswith("lightning.")))


@pytest.fixture(autouse=True)
def fresh():
    yield
    module("accelerate.state").AcceleratorState._reset_state(True)
    os.environ.pop("ACCELERATE_BYPASS_DEVICE_MAP", None)


def fails(works: Callable[[], bool]) -> bool:
    try:
        return not works()
    except Exception:
        return True


@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NEEDS],
)
def test_a_change_is_needed(target):
    assert NEEDS[target]()
    with patching.without(target):
        assert fails(NEEDS[target]), f"{target} works without its replacement: drop it"
    assert NEEDS[target]()


def test_every_row_is_in_place_and_tested():
    rows = {name: row for name, row in patching.PATCHES.items() if row.when in install.FILES}
    for name, row in rows.items():
        assert row.why and row.since and name in NEEDS, row
        assert row.when not in sys.modules or name in patching.in_place(), name


def test_a_release_that_is_not_understood_is_left_as_it_is():
    from torch_jax.patches import imports

    with (
        mock.patch.dict(imports._files, {"json": ["torch_jax.integrations.adapt.no_such_file"]}),
        pytest.warns(UserWarning, match="does not understand this release of json"),
    ):
        imports._patch("json")
