"""``torch_jax.MasterWeights``: parameters of low precision, and an optimizer of copies of high.

A step of an optimizer is often too small to change a parameter in bfloat16. So the optimizer moves
*masters*, in float32, and each parameter is its master, rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.optim import Optimizer


class MasterWeights(Optimizer):
    """An optimizer whose parameters of low precision have masters of high; on any device.

    ``param_groups``, ``state``, ``defaults`` are those of the optimizer within, over the masters,
    so schedulers, hooks and ``load_state_dict`` work as usual. ``zero_grad`` is the parameters'.
    If a program changes a parameter by itself, ``load_state_dict`` or :meth:`take_parameters`
    updates the master. On a mesh, masters lie as the state of optimizers does.

    Args:
      optimizer: any of ``torch.optim``, made over the parameters; only this class steps it from now
        on.
      dtype: of the masters.

    >>> model = torch.nn.Linear(2, 2).to("jax", torch.bfloat16)
    >>> optimizer = MasterWeights(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(2, 2, dtype=torch.bfloat16, device="jax")).sum().backward()
    >>> optimizer.step()
    >>> model.weight.dtype, optimizer.masters[model.weight].dtype
    (torch.bfloat16, torch.float32)
    """

    def __init__(self, optimizer: Optimizer, dtype: torch.dtype = torch.float32):
        """Make the masters, and give them to the optimizer."""
        self.optimizer, self.dtype = optimizer, dtype
        self.masters: dict[torch.Tensor, torch.Tensor] = {}
        # lists that are modules: a trace sees their ``zero_grad``
        self.given, self._moved = torch.nn.ParameterList(), torch.nn.ParameterList()
        for group in optimizer.param_groups:
            group["params"] = [*map(self._master_of, group["params"])]
        for parameter, master in self.masters.items():
            if parameter in optimizer.state:
                optimizer.state[master] = self._raised(optimizer.state.pop(parameter))
        super().__setstate__({})  # as ``Optimizer.__init__``, but for groups and state

    def _master_of(self, parameter: Any) -> torch.Tensor:
        """Return the optimizer's tensor for a parameter: itself if its precision is high enough."""
        self.given.append(parameter)
        if not parameter.is_floating_point() or parameter.dtype.itemsize >= self.dtype.itemsize:
            return parameter
        made = torch.zeros_like(parameter, dtype=self.dtype, requires_grad=False)
        master = torch.nn.Parameter(made.copy_(parameter.detach()), requires_grad=False)
        self._moved.append(master)
        self.masters[parameter] = master
        return master

    def _raised(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state that was made for a parameter, in the dtype of its master."""
        return {
            key: value.to(self.dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point() and key != "step"
            else value
            for key, value in state.items()
        }

    param_groups: Any = property(attrgetter("optimizer.param_groups"))
    state: Any = property(attrgetter("optimizer.state"))
    defaults: Any = property(attrgetter("optimizer.defaults"))
    # hooks see the masters as parameters; a model's parameters follow them after those of a step
    register_step_pre_hook: Any = property(attrgetter("optimizer.register_step_pre_hook"))
    register_step_post_hook: Any = property(attrgetter("optimizer.register_step_post_hook"))
    register_load_state_dict_post_hook: Any = property(
        attrgetter("optimizer.register_load_state_dict_post_hook")
    )

    def __repr__(self) -> str:
        return f"MasterWeights({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with masters of their own."""
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else params
        self.optimizer.add_param_group({**param_group, "params": [*map(self._master_of, params)]})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the parameters."""
        self.given.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the masters by the gradients of their parameters, and round them into these."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [(p, p.grad, m) for p, m in self.masters.items() if p.grad is not None]
        self._moved.zero_grad()  # masters have gradients in a step only
        with torch.no_grad():
            for _, gradient, master in moved:
                master.grad = gradient.to(master.dtype)
            try:
                self.optimizer.step()
            finally:
                self._moved.zero_grad()
            for parameter, _, master in moved:
                parameter.copy_(master)
        return loss

    # The optimizer within runs the hooks of a step, and schedulers count its steps.
    step.hooked = True  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer within, and ``masters`` in the order of parameters."""
        return {**self.optimizer.state_dict(), "masters": list(self.masters.values())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the parameters become the masters, rounded.

        A state without ``masters``, of an optimizer that had none, takes the values of parameters.

        Raises:
          ValueError: there are other masters than parameters.
        """
        inner = dict(state_dict)
        found = inner.pop("masters", None)
        own = [tuple(m.shape) for m in self.masters.values()]
        if found is not None and [tuple(m.shape) for m in found] != own:
            raise ValueError(
                f"the state has masters of {len(found)} parameters, and the optimizer "
                f"{len(own)} of low precision, or of other shapes"
            )
        self.optimizer.load_state_dict(inner)
        if found is None:
            self.take_parameters()
            return
        with torch.no_grad():
            for (parameter, master), saved in zip(self.masters.items(), found, strict=True):
                parameter.copy_(master.copy_(saved))

    @torch.no_grad()
    def take_parameters(self) -> None:
        """Update the masters of parameters that a program has changed."""
        for parameter, master in self.masters.items():
            master.copy_(parameter)


def kept_for(optimizer: Optimizer | None, parameter: torch.Tensor) -> dict[str, Any]:
    """Return an optimizer's tensors for a parameter, by name: state, and the master if any."""
    if optimizer is None:
        return {}
    if (master := getattr(optimizer, "masters", {}).get(parameter)) is None:
        return dict(optimizer.state.get(parameter, {}))
    return {"master": master, **optimizer.state.get(master, {})}


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters that an optimizer was made with."""
    if isinstance(optimizer, MasterWeights):
        return list(optimizer.given)
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
