"""``torch_jax.optim.Optax``: a transformation of optax as an optimizer of PyTorch.

A step is one program: gradients, state and hyperparameters go in, new parameters and new state come
out. The state is kept in ``Optimizer.state`` as tensors, where all code finds it that saves, moves
or counts the state of an optimizer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import jax
import torch
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from torch_jax._private import dynamo, jax_core, pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.core.errors import require
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.interop import optax_state
from torch_jax.interop.optax_state import Leaf, Tree, in_groups
from torch_jax.memory import dtypes, sharding, storage


class Optax(Optimizer):
    """Steps parameters on device ``jax`` by a transformation of optax.

    Args:
      params: parameters, named parameters, or groups of them, as for other optimizers. optax sees
        those of a group as a dict from names to arrays; without names they are ``"0"``, ``"1"`` …
      tx: an ``optax.GradientTransformation``; or a function that makes one, such as
        ``optax.adamw``, with its ``hyperparameters``. A group may have a ``"tx"`` of its own.
      hyperparameters: arguments of the function ``tx``; ``lr`` is its ``learning_rate``. Floats
        are stored in the groups: each group may have its own, and it may change from step to
        step. Functions are schedules of optax's, by its own count of steps.

    A parameter without gradient is skipped, and has no state before its first one. A transformation
    of norms, such as ``optax.clip_by_global_norm``, sees the gradients of its group.

    >>> import optax
    >>> model = torch.nn.Linear(2, 1, device="jax")
    >>> optimizer = Optax(model.named_parameters(), optax.adamw, lr=1e-3, weight_decay=0.1)
    >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    >>> model(torch.ones(4, 2, device="jax")).sum().backward()
    >>> optimizer.step()
    >>> scheduler.step()
    >>> optimizer.param_groups[0]["lr"], sorted(optimizer.state[model.bias])
    (0.0009000000000000001, ['inner_state.0.mu', 'inner_state.0.nu'])
    """

    def __init__(self, params: Any, tx: Any, **hyperparameters: Any):
        """See the class."""
        require("optax", 'torch_jax.optim needs optax: pip install "torch_jax[optax]"')
        self._tx, self._hyperparameters = tx, hyperparameters
        self._transformations: list[Any] = []  # of each group
        self._known: list[frozenset[str]] = []  # the hyperparameters of each group
        self._fixed: list[frozenset[str]] = []  # the other arguments of its transformation
        self._trees: dict[Any, Tree] = {}
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._numbers: dict[Any, tuple[Any, torch.Tensor]] = {}
        super().__init__(params, {})

    # --- groups -----------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with a ``"tx"`` or hyperparameters of its own, if it has any."""
        group = _Group(param_group)
        tx = group.pop("tx", self._tx)
        given = dict(self._hyperparameters) if tx is self._tx else {}
        given.update({key: group.pop(key) for key in list(group) if key in _arguments(tx)})
        given = {in_groups(key): value for key, value in given.items()}
        made = transformation(tx, given)
        super().add_param_group(group)
        try:
            numbers = self._tree_of(made, group, group["params"]).numbers()
        except BaseException:
            self.param_groups.pop()
            raise
        self._transformations.append(made)
        exact = {key: float(given[key]) for key in numbers if _is_number(given.get(key))}
        group.update({**numbers, **exact})  # not rounded to float32
        self._known.append(frozenset(numbers))
        self._fixed.append((_arguments(tx) | {"lr"}) - numbers.keys())

    def _tree_of(self, tx: Any, group: dict[str, Any], parameters: Sequence[Any]) -> Tree:
        """Return the form of the state for some parameters of a group."""
        wanted = set(map(id, parameters))
        named = zip(group["params"], _names(group), strict=True)
        names = tuple(name for parameter, name in named if id(parameter) in wanted)
        forms = tuple((parameter.shape, parameter.dtype) for parameter in parameters)
        key = id(tx), names, forms, jax_core.x64_setting()
        if (found := self._trees.get(key)) is None:
            shapes = [jax.ShapeDtypeStruct(tuple(s), dtypes.to_jax(d)) for s, d in forms]
            found = self._trees[key] = Tree(tx, names, shapes)  # it keeps ``tx``, and its id
        return found

    def _part(self, at: int, group: dict[str, Any], active: list[Any]) -> _Part:
        return _Part(at, group, active, self._tree_of(self._transformations[at], group, active))

    # --- steps ------------------------------------------------------------------------------------

    @torch.no_grad()
    @dynamo.unseen
    def step(self, closure: Callable[[], Any] | None = None, **extra: Any) -> Any:
        """Move the parameters that have gradients.

        Args:
          closure: computes the loss and the gradients again, and returns the loss.
          extra: further arguments of the transformation: ``value=loss`` for
            ``optax.contrib.reduce_on_plateau``; ``value_fn``, a function of JAX from the dict of
            parameters to the loss, for the line search of ``optax.lbfgs``. The result of
            ``closure`` is the ``value``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            extra.setdefault("value", loss)
        moved = []
        for at, group in enumerate(self.param_groups):
            if active := _active(group):
                self._check(at, group)
                self._init_group(group)
                moved.append(self._part(at, group, active))
        if moved:
            self._move(moved, {key: _detached(value) for key, value in extra.items()})
        return loss

    def _move(self, moved: list[_Part], extra: dict[str, Any]) -> None:
        """Run one program for all groups."""
        trees = [part.tree for part in moved]
        key = tuple(map(id, trees))
        if (program := self._programs.get(key)) is None:
            program = self._programs[key] = jax_function(optax_state.program(trees))
        active = [part.active for part in moved]
        gradients = [[parameter.grad for parameter in part.active] for part in moved]
        kept = [[self.state[p][leaf.key] for p, leaf in part.places()] for part in moved]
        numbers = [
            {name: self._number(part, name) for name in sorted(self._known[part.at])}
            for part in moved
        ]
        try:
            news, states = program(active, gradients, kept, numbers, extra)
        except TypeError as error:
            if "required keyword-only" not in str(error):
                raise
            raise TypeError(
                f"the transformation of optax needs more than gradients: {error}. Give it to the "
                "step: optimizer.step(value=loss), or for a line search optimizer.step(closure, "
                "value_fn=function), a function of JAX from the dict of parameters to the loss; "
                "optax.lbfgs(1.0, linesearch=None) needs none"
            ) from error
        _write(list(chain(*active, *kept)), list(chain(*news, *states)))

    def _number(self, part: _Part, name: str) -> torch.Tensor:
        """Return a group's hyperparameter as a tensor: that of the last step, if it is the same."""
        value = part.group[name]
        spec = next(leaf.spec for leaf in part.tree.leaves if leaf.number == name)
        dtype = dtypes.to_torch(spec.dtype)
        if isinstance(value, torch.Tensor):
            return value.detach().to(pytorch.DEVICE_TYPE, dtype).reshape(spec.shape)
        if ACTIVE.observer is not None:  # so that each call reads the number
            return torch.full(spec.shape, value, dtype=dtype, device=pytorch.DEVICE_TYPE)
        known = self._numbers.get((part.at, name, dtype))
        if known is None or known[0] != value:
            made = torch.tensor(value, dtype=dtype).expand(spec.shape).to(pytorch.DEVICE_TYPE)
            known = self._numbers[part.at, name, dtype] = (value, made)
        return known[1]

    def _check(self, at: int, group: dict[str, Any]) -> None:
        """Raise if a parameter cannot be stepped, or a number would have no effect."""
        for name, parameter in zip(_names(group), group["params"], strict=True):
            if parameter.grad is None:
                continue
            if not storage.is_jax(parameter):
                raise RuntimeError(
                    f"Optax steps parameters on device 'jax', and {name!r}, "
                    f"{parameter.dtype}{list(parameter.shape)}, is on {str(parameter.device)!r}: "
                    f'move the model first, model.to("jax")'
                )
            if parameter.grad.layout != torch.strided:
                raise RuntimeError(f"Optax does not support sparse gradients; {name!r} has one")
        for key in sorted(group.keys() & self._fixed[at]):
            raise ValueError(f"{key} of parameter group {at} has no effect: {_FIXED}")

    # --- state ------------------------------------------------------------------------------------

    def _init_group(self, group: dict[str, Any], *_lists: Any) -> None:
        """Make the state that is missing; in a trace, outside of the program."""
        at = next(i for i, one in enumerate(self.param_groups) if one is group)
        part = self._part(at, group, _active(group))
        places = part.places()
        if all(leaf.key in self.state.get(p, ()) for p, leaf in places):
            return
        made = jax_function(part.tree.start)(*part.active)
        for (parameter, leaf), new in zip(places, made, strict=True):
            if leaf.key not in self.state[parameter]:
                if sharding.Use.begun and leaf.owner is not None:
                    sharding.follow(new, parameter)
                self.state[parameter][leaf.key] = new

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`, on any device; dtypes stay as they were saved.

        Raises:
          ValueError: it is the state of another transformation, or of other shapes.
        """
        wrap = self.register_load_state_dict_pre_hook(_wrapped)  # the last of these hooks
        try:
            super().load_state_dict(state_dict)
        finally:
            wrap.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state that ``load_state_dict`` and copies of the optimizer end with."""
        groups = [_Group(group) for group in state["param_groups"]]
        for parameter, values in state["state"].items():
            for key, value in values.items():
                if isinstance(value, functools.partial):  # of ``_wrapped``
                    values[key] = value(parameter)
        if "_tx" not in state:
            self._compare(groups, state["state"])
        super().__setstate__({**state, "param_groups": groups})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trees": {}, "_programs": {}, "_numbers": {}}

    def _compare(self, groups: Sequence[dict], state: dict[Any, dict[str, Any]]) -> None:
        """Raise if a state is not one of this optimizer's transformations."""
        for at, group in enumerate(groups):
            if missing := self._known[at] - group.keys():
                raise ValueError(
                    f"the state has no {', '.join(sorted(missing))} in parameter group {at}: "
                    "it is of another transformation"
                )
            part = self._part(at, group, group["params"])
            wanted: dict[Any, dict[str, Leaf]] = {}
            for parameter, leaf in part.places():
                wanted.setdefault(parameter, {})[leaf.key] = leaf
            for name, parameter in zip(_names(group), group["params"], strict=True):
                _compare(name, wanted.get(parameter, {}), state.get(parameter, {}))


_FIXED = (
    "the transformation of optax has this number fixed, or takes it of a schedule of its own. "
    "Have it in the group: Optax(params, optax.adamw, lr=1e-3), or "
    "Optax(params, optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3))"
)


class _Part(NamedTuple):
    """The part of a group that a step moves: the parameters with gradients, and their tree."""

    at: int
    group: dict[str, Any]
    active: list[Any]
    tree: Tree

    def places(self) -> list[tuple[Any, Leaf]]:
        """Return each leaf of the state with the parameter at which it is stored.

        A group's shared leaves are stored at its first parameter, as in ``torch.optim.LBFGS``, for
        programs that save or shard the state of optimizers parameter by parameter.
        """
        first = self.group["params"][0]
        by_name = dict(zip(self.tree.names, self.active, strict=True))
        return [
            (first if leaf.owner is None else by_name[leaf.owner], leaf) for leaf in self.tree.kept
        ]


class _Group(dict):
    """A parameter group, whose error for a missing ``lr`` says that the learning rate is fixed."""

    def __missing__(self, key: str) -> Any:
        if key == "lr":
            raise KeyError(f"there is no 'lr' in this group of Optax: {_FIXED}")
        raise KeyError(key)


def _wrapped(_optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Put functions of parameters in place of tensors, whose dtypes PyTorch would change."""

    def wrap(value: Any) -> Any:
        return functools.partial(_like, value) if isinstance(value, torch.Tensor) else value

    state = {
        at: {key: wrap(value) for key, value in values.items()}
        for at, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _like(saved: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a copy of a saved tensor, on the device of its parameter and split as that is."""
    new = saved.detach().to(parameter.device, copy=True)
    if sharding.Use.begun and storage.is_jax(parameter) and storage.is_jax(new):
        sharding.follow(new, parameter)
    return new


def _compare(name: str, wanted: dict[str, Leaf], found: dict[str, torch.Tensor]) -> None:
    """Raise if the state found for a parameter is not of its transformation."""
    own = {key for key, leaf in wanted.items() if leaf.owner is not None}
    is_whole = own <= found.keys() or not own & found.keys()  # none before the first gradient
    if found and not (found.keys() <= wanted.keys() and is_whole):
        raise ValueError(
            f"the state of {name!r} has {sorted(found)}, and its transformation of optax keeps "
            f"{sorted(wanted)}"
        )
    for key, value in found.items():
        if tuple(value.shape) != tuple(wanted[key].spec.shape):
            raise ValueError(
                f"{key} of {name!r} has shape {list(value.shape)} in the state, and "
                f"{list(wanted[key].spec.shape)} in its transformation of optax"
            )


def transformation(tx: Any, hyperparameters: dict[str, Any]) -> Any:
    """Return a transformation of optax, or the one that a function makes of hyperparameters.

    Floats become numbers of the state, by ``optax.inject_hyperparams``; the function's defaults and
    all other arguments are fixed.
    """
    import optax

    if hasattr(tx, "init") and hasattr(tx, "update"):
        if hyperparameters:
            raise TypeError(
                f"{', '.join(hyperparameters)}: a transformation that is made has its numbers; "
                "give the function that makes it, Optax(params, optax.adamw, lr=1e-3)"
            )
        return optax.with_extra_args_support(tx)
    if not callable(tx):
        raise TypeError(
            f"tx is no transformation of optax, nor a function that makes one, but a {type(tx)}"
        )
    given = dict(hyperparameters)
    if "lr" in given and "lr" not in inspect.signature(tx).parameters:
        given["learning_rate"] = given.pop("lr")
    given = {
        key: float(v) if key == "learning_rate" and _is_number(v) else v for key, v in given.items()
    }
    lifted = {key for key, v in given.items() if type(v) is float or callable(v)}
    fixed = [key for key in inspect.signature(tx).parameters if key not in lifted]
    return optax.inject_hyperparams(tx, static_args=fixed)(**given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _arguments(tx: Any) -> frozenset[str]:
    """Return the hyperparameters of a function that makes a transformation, else none."""
    if hasattr(tx, "update") or not callable(tx):
        return frozenset()
    return frozenset(("lr", *inspect.signature(tx).parameters))


def _active(group: dict[str, Any]) -> list[torch.Tensor]:
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def _names(group: dict[str, Any]) -> list[str]:
    return group.get("param_names") or [str(at) for at in range(len(group["params"]))]


def _write(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Write values into tensors; whole memories are replaced at once, with the effect of writes."""
    if ACTIVE.tracer is None and ACTIVE.recorder is None:
        whole = [_are_whole(t, v) for t, v in zip(targets, values, strict=True)]
        owners: list[Any] = [t.untyped_storage() for t in compress(targets, whole)]
        before = [storage.memory_in(owner) for owner in owners]
        after = [storage.memory_of(value) for value in compress(values, whole)]
        if storage.put_back(owners, before, after):
            increment_version(list(compress(targets, whole)))
            others = [not one for one in whole]
            targets, values = list(compress(targets, others)), list(compress(values, others))
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def _are_whole(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether the memory of a value may become that of the tensor that takes it."""
    return (
        target.dtype == value.dtype
        and target.shape == value.shape
        and storage.is_whole(target, storage.memory_of(target))
        and storage.is_whole(value, storage.memory_of(value))
    )


def _detached(value: Any) -> Any:
    """Return an extra argument: a number as a tensor of the device, a function unchanged."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(pytorch.DEVICE_TYPE)
    if _is_number(value):
        return torch.tensor(value, dtype=torch.get_default_dtype()).to(pytorch.DEVICE_TYPE)
    return value
