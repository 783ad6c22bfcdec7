"""Calls of ``jit(pure=True)``: Python runs once for each kind of call, and is skipped from then on.

::

    call ─▶ arguments → a key ─▶ a program of this key whose guards hold?
              │ yes                                    │ no
              ▼                                        ▼
            due for an audit? ── yes ─▶ OBSERVE, and compare      OBSERVE, and keep
              │ no
              ▼
            run the program
"""

from __future__ import annotations

import operator
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from torch_jax import config
from torch_jax.capture import audit, keys, outer_backward
from torch_jax.capture.arguments import Arguments, SortedCall
from torch_jax.capture.guards import SHARES
from torch_jax.capture.history import History
from torch_jax.capture.keys import CallKey
from torch_jax.capture.left_behind import LeftBehind, describe
from torch_jax.capture.observer import Observer, Refusal, raise_failed_checks
from torch_jax.capture.pullback import Pullback
from torch_jax.capture.replay import Replay
from torch_jax.capture.tape import Changed
from torch_jax.core import compilations, forks, trees
from torch_jax.memory.form import Form
from torch_jax.memory.storage import is_jax_tensor, memory_of
from torch_jax.recorded.lazy import observed


class Observed(NamedTuple):
    """A call that was observed: what it returned, and how later calls repeat it."""

    result: Any
    replay: Replay | None  # the program for later calls; None where they cannot be repeated
    refusal: Refusal | None  # why Python has to run at each call from now on; None: it need not


class Pure:
    """The programs of one function."""

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, history: History, audits: str
    ):
        """Take the function; ``audits`` is "warn" or "error"."""
        self._function, self._arguments, self.history = function, arguments, history
        self._audits = audits
        self._replays: OrderedDict[CallKey, list[Replay]] = OrderedDict()  # the latest last
        self._whole: set[CallKey] = set()  # calls that take no argument by value
        self._forgiven: set[CallKey] = set()  # calls whose first may have been unlike later ones
        self.is_broken = False  # whether Python runs at each call, since the promise did not hold

    def clear(self) -> None:
        """Forget every program."""
        self._replays.clear()
        self._whole.clear()
        self._forgiven.clear()
        self.is_broken = False

    def give_up(self, why: str, stacklevel: int = 6) -> None:
        """Have Python run at each call from now on, and say so."""
        self.is_broken = True
        self._replays.clear()
        self.history.note(f"Python runs at each call: {why}")
        warnings.warn(why, stacklevel=stacklevel)

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the program of a call, or the function, observed."""
        call = self._arguments.sort(args, kwargs)
        if call.parts and call.key in self._whole:
            call = self._arguments.sort(args, kwargs, whole=True)
        replays = self._replays.get(call.key, ())
        reason, shares = None, False
        if self._replays and not replays:
            reason = keys.difference(next(reversed(self._replays)), call.key)
        for replay in replays:
            reason = replay.changed(call.leaves) or _writes_parts(replay, call)
            if reason is not None:
                shares |= reason is SHARES
                continue
            if replay.is_due(call.leaves):
                return self._audit(replay, call)
            try:
                with forks.RUNNING:
                    result = replay(call.leaves)
                with suppress(KeyError):  # another thread may have cleared them
                    self._replays.move_to_end(call.key)
                return result
            except Changed as changed:
                reason = str(changed)
        return self._observe(call, reason, keeps=not shares)

    def _observe(self, call: SortedCall, reason: str | None, keeps: bool) -> Any:
        """Run the function, and keep how to repeat it if ``keeps``."""
        start, before = time.perf_counter(), compilations.here()
        found = self._observed(call)
        seconds, programs = time.perf_counter() - start, compilations.here().minus(before)
        self.history.note_observed(reason, found.replay, seconds, programs)
        refusal = found.refusal
        if refusal is None:
            if found.replay is not None and keeps:
                self._keep(call.key, found.replay)
        elif not (refusal.is_of_first and self._forgives(call.key)):  # it may have filled a cache
            self.give_up(f"{self.history.name} cannot skip its Python: {refusal.why}")
        return found.result

    def _observed(self, call: SortedCall) -> Observed:
        before = {at: memory_of(call.leaves[at]) for at in call.parts}
        with call.by_value() as own:
            found = observe(self._function, call, own, self._graded(call))
            outside = {at for at in own if _is_reached(call, at, found.result)}
            at_home = {at for at in own if call.parts[at].is_set_to(own[at])}
        for at, old in before.items():
            if memory_of(call.leaves[at]) is not old:
                outside.add(at)
                if at not in at_home:
                    own[at].copy_(call.leaves[at])  # the part has counted the write
        if outside:
            self._whole.add(call.key)
            found = found._replace(result=_with_parts(found.result, call), replay=None)
        outer_backward.await_gradients(found.result)
        return found

    def _graded(self, call: SortedCall) -> list[torch.Tensor]:
        """Return whose ``.grad`` earlier calls replaced: ``p.grad = None`` is no operator."""
        replays = self._replays.get(call.key, ())
        found = [known for replay in replays for known, _ in replay.left.gradients]
        return [one.tensor if one.place is None else call.leaves[one.place] for one in found]

    def _audit(self, replay: Replay, call: SortedCall) -> Any:
        """Run the function, and compare what it did with what was kept."""
        numbers = {read: read.now() for read in replay.read}
        with self.history.recorded_call():
            found = self._observed(call)
        new, why = found.replay, None if found.refusal is None else found.refusal.why
        for read, value in new.read.items() if new is not None else ():
            if numbers.get(read, value) not in (value,):
                new, why = None, read.refusal
        if why is None and new is not None:
            why = audit.difference(replay, new)
        if why is None:
            return found.result
        if new is not None and replay.calls == 2 and self._forgives(call.key):
            self._replays[call.key].remove(replay)
            self._keep(call.key, new)
            return found.result
        text = (
            f"{self.history.name} is not pure, as jit(pure=True) promises: {why}. Results since "
            "the last audit may be wrong. Drop pure=True, or have the function read nothing that "
            "changes but tensors"
        )
        if self._audits == "error":
            self._replays.clear()
            raise audit.VerificationError(text)
        self.give_up(f"{text}. Its Python runs at each call from now on")
        return found.result

    def _forgives(self, key: CallKey) -> bool:
        """Return, once for each kind of call, True: the first may make what all others find."""
        forgives = key not in self._forgiven
        self._forgiven.add(key)
        return forgives

    def _keep(self, key: CallKey, replay: Replay) -> None:
        self._replays[key] = [replay, *self._replays.pop(key, ())]
        while sum(map(len, self._replays.values())) > config.get("jit_cache_size"):
            oldest = next(iter(self._replays))
            self._replays[oldest].pop()
            if not self._replays[oldest]:
                del self._replays[oldest]


def observe(
    function: Callable[..., Any],
    call: SortedCall,
    own: dict[int, torch.Tensor],
    graded: Iterable[torch.Tensor],
) -> Observed:
    """Call a function, and find out how to repeat the call without its Python.

    ``own`` are tensors that see the memories of the call's parts, by place; ``graded`` are those
    whose ``.grad`` the call may replace.
    """
    leaves = [call.parts.get(at, leaf) for at, leaf in enumerate(call.leaves)]
    observer, world = Observer(leaves, own), keys.world()
    for tensor in graded:
        observer.optimizers.note_gradient(tensor)
    torch.clear_autocast_cache()  # it has casts of parameters, which later calls have to make again
    with observed(observer):
        with observer.watching():
            args, kwargs = call.given
            try:
                result = [function(*args, **kwargs)]
            except RuntimeError as error:
                if observer.raised is None or "TorchScript interpreter" not in str(error):
                    raise
                raise observer.raised from error  # TorchScript loses the type, and often the words
        torch.clear_autocast_cache()
        observer.optimizers.notice_set_numbers()
        after, form = trees.flatten(call.given)
        if form != call.key.form or any(map(operator.is_not, after, leaves)):
            observer.refuse("it changes a list or dict among its arguments: return the new value")
        left = describe(observer, result)
        observer.is_over = True
    raise_failed_checks((flag.get(), *error) for flag, *error in observer.checks)
    if keys.world() != world:
        observer.refuse("it leaves a mode or a setting other than it was")
    replay = _replay(observer, left)
    observer.leaves = []
    return Observed(result[0], replay, observer.refusal)


def _replay(observer: Observer, left: LeftBehind) -> Replay | None:
    if len(observer.graphs) > 1:
        observer.refuse("a value is looked at while it runs")
    if observer.refusal or observer.makes_state or not observer.graphs:
        return None
    if observer.graphs[0].program is None:
        return None
    backward = Pullback(observer, left) if left.connected and observer.wanted else None
    left = left._replace(connected=[])  # which hold the whole graph of this call
    return None if observer.refusal else Replay(observer, left, backward)


# --- arguments that were given by value -----------------------------------------------------------


def _writes_parts(replay: Replay, call: SortedCall) -> str | None:
    if any(replay.memories.is_fixed(replay.written, part) for part in call.parts.values()):
        return "it writes into what an argument is a part of"
    return None


def _is_reached(call: SortedCall, at: int, result: Any) -> bool:
    """Return whether a part sees its own memory again, or the result has a tensor over its copy."""
    copied = call.leaves[at].untyped_storage()
    leaves = filter(is_jax_tensor, (call.parts[at], *trees.flatten(result)[0]))
    own, *others = (leaf.untyped_storage() for leaf in leaves)
    return own is not copied or any(one is copied for one in others)


def _with_parts(result: Any, call: SortedCall) -> Any:
    """Return the result with views of the parts in place of views of their copies."""
    parts = {id(call.leaves[at].untyped_storage()): part for at, part in call.parts.items()}

    def replaced(leaf: Any) -> Any:
        part = parts.get(id(leaf.untyped_storage())) if is_jax_tensor(leaf) else None
        return leaf if part is None else _view_of(part, leaf)

    return trees.map(replaced, result)


def _view_of(part: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return the view of a part that corresponds to ``view``, a view of the part's copy."""
    offset = int(part.storage_offset()) * part.element_size() // view.element_size()
    form = Form.of(view)._replace(offset=offset + int(view.storage_offset()))
    return form.over(part.untyped_storage())
