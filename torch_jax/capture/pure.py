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

import inspect
import operator
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import torch

from torch_jax import config
from torch_jax.capture import audit, keys
from torch_jax.capture.arguments import Arguments, SortedCall
from torch_jax.capture.guards import SHARES
from torch_jax.capture.history import History
from torch_jax.capture.keys import Forms
from torch_jax.capture.observer import OF_OTHERS, Observer, Refusal, raise_failed_checks
from torch_jax.capture.pullback import Pullback, await_gradients
from torch_jax.capture.replay import Replay
from torch_jax.capture.results import LeftBehind, describe
from torch_jax.capture.tape import Changed
from torch_jax.core import compilations, forks, trees
from torch_jax.memory.forms import Form
from torch_jax.memory.storage import is_jax_tensor, memory_of
from torch_jax.recorded.lazy import observed
from torch_jax.recorded.one_by_one import compile_nothing


class Observed(NamedTuple):
    """A call that was observed: what it returned, and how later calls repeat it."""

    result: Any
    replay: Replay | None  # the program for later calls; None where they cannot be repeated
    refusal: Refusal | None  # why Python has to run at each call from now on; None: it need not


class _Kind:
    """The calls of one key."""

    def __init__(self) -> None:
        self.replays: list[Replay] = []  # one for each form of the tensors, the latest first
        self.is_whole = False  # whether no argument is given by value
        self.forgiven: list[Forms] = []  # whose first call may have been unlike later ones

    def forgives(self, call: SortedCall) -> bool:
        """Return, once for each form, True: the first may make what all others find."""
        is_known = any(forms.fit(call) for forms in self.forgiven)
        self.forgiven.append(Forms(call))
        return not is_known


class Pure:
    """The programs of one function."""

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, history: History, audits: str = ""
    ):
        """Take the function; ``audits`` is "warn" or "error", or none where it cannot differ."""
        self._function, self._arguments, self.history = function, arguments, history
        self._audits = audits
        self._kinds: dict[keys.CallKey, _Kind] = {}  # the latest last
        self._used: OrderedDict[Replay, keys.CallKey] = OrderedDict()  # the last used last
        self._visits: Counter[int] = Counter()  # calls of forms that are not kept
        self._wait = self._waited = 0  # calls to record, since others disturbed those observed
        self.is_broken = False  # whether Python runs at each call, since the promise did not hold

    def clear(self) -> None:
        for known in (self._kinds, self._used, self._visits):
            known.clear()
        self.is_broken = False

    def give_up(self, why: str, stacklevel: int = 6) -> None:
        """Have Python run at each call from now on, and say so."""
        self.clear()
        self.is_broken = True
        self.history.gives_up(why, stacklevel + 1)

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the program of a call, or the function, observed."""
        call = self._arguments.sort(args, kwargs)
        if (kind := self._kinds.get(call.key)) is None:
            known = next(reversed(self._kinds), None)  # the key observed last
            return self._observe(call, None if known is None else keys.difference(known, call.key))
        if call.parts and kind.is_whole:
            call = self._arguments.sort(args, kwargs, whole=True)
        reason, shares = None, False
        for replay in kind.replays:
            if not replay.forms.fit(call):
                continue
            if (reason := replay.changed(call)) is not None:
                shares |= reason is SHARES
                continue
            if self._audits and replay.is_due(call):
                return self._audit(kind, replay, call)
            try:
                with forks.RUNNING:
                    result = replay(call)
                self._note_use(kind, replay)
                return result
            except Changed as changed:
                reason = str(changed)
        if kind.replays and reason is None:
            reason = kind.replays[0].forms.difference(call)
        return self._observe(call, reason, keeps=not shares)

    def _note_use(self, kind: _Kind, replay: Replay) -> None:
        with suppress(KeyError, ValueError):  # another thread may have dropped it
            self._used.move_to_end(replay)
            if kind.replays[:1] != [replay]:
                kind.replays.remove(replay)
                kind.replays.insert(0, replay)

    def _observe(self, call: SortedCall, reason: str | None, keeps: bool = True) -> Any:
        """Run the function, and keep how to repeat it if ``keeps``."""
        start, before = time.perf_counter(), compilations.here()
        kind = self._kinds.get(call.key) or _Kind()
        visits = self._visits_of_new(kind, call)
        if visits <= 1:
            self.history.note_rerun(reason)
        if 0 < visits < config.get("compiled_from_run") or self._waited < self._wait:
            self._waited += 1
            return recorded(self._function, self.history, *call.given)
        found = self._observed(kind, call)
        seconds, programs = time.perf_counter() - start, compilations.here().minus(before)
        self.history.note_observed(reason, found.replay, seconds, programs)
        refusal = found.refusal
        self._wait, self._waited = (2 * self._wait + 1 if refusal is OF_OTHERS else 0), 0
        if refusal is OF_OTHERS:
            self.history.note_rerun(refusal.why)
        elif refusal is None and found.replay is not None and keeps:
            self._keep(call.key, kind, found.replay)
        elif refusal is None or refusal.is_of_first and kind.forgives(call):
            if kind.is_whole or kind.forgiven:
                self._kinds[call.key] = kind
        else:
            self.give_up(f"{self.history.name} cannot skip its Python: {refusal.why}")
        return found.result

    def _visits_of_new(self, kind: _Kind, call: SortedCall) -> int:
        """Return how many calls had the forms of this one, if others are kept; else 0.

        One of many lengths is recorded until it comes again, so that nothing is compiled for it.
        """
        is_first = not any(one.replays for one in self._kinds.values())
        if is_first or not compile_nothing() or any(one.forms.fit(call) for one in kind.replays):
            return 0
        if len(self._visits) > config.get("jit_cache_size"):
            self._visits.clear()
        form = hash((call.key, *((tensor.shape, tensor.dtype) for tensor in call.tensors)))
        self._visits[form] += 1
        return self._visits[form]

    def _observed(self, kind: _Kind, call: SortedCall) -> Observed:
        before = {at: memory_of(call.leaves[at]) for at in call.parts}
        with call.by_value() as own:
            observer = Observer(call.originals(), own, self.history)
            for known, _ in chain.from_iterable(one.left.gradients for one in kind.replays):
                # earlier calls replaced its ``.grad``: ``p.grad = None`` is no operator
                tensor = known.tensor if known.place is None else call.leaves[known.place]
                observer.optimizers.note_gradient(tensor)
            found = observe(observer, self._function, call)
            outside = {at for at in own if _is_reached(call, at, found.result)}
            at_home = {at for at in own if call.parts[at].is_set_to(own[at])}
        for at, old in before.items():
            if memory_of(call.leaves[at]) is not old:
                outside.add(at)
                if at not in at_home:
                    own[at].copy_(call.leaves[at])  # the part has counted the write
        if outside:
            kind.is_whole = True
            found = found._replace(result=_with_parts(found.result, call), replay=None)
        if found.replay is None:
            await_gradients(found.result)
        return found

    def _audit(self, kind: _Kind, replay: Replay, call: SortedCall) -> Any:
        """Run the function, and compare what it did with what was kept."""
        numbers = {read: read.now() for read in replay.guards.numbers}
        self._note_use(kind, replay)
        with self.history.recorded_call():
            found = self._observed(kind, call)
        if found.refusal is OF_OTHERS:
            return found.result
        new, why = found.replay, None if found.refusal is None else found.refusal.why
        for read, value in new.guards.numbers.items() if new is not None else ():
            if numbers.get(read, value) not in (value,):
                new, why = None, read.refusal
        if why is None and new is not None:
            why = audit.difference(replay, new)
        is_first, replay.is_audited = not replay.is_audited, True
        if why is None:
            return found.result
        if new is not None and is_first and kind.forgives(call):
            kind.replays.remove(replay)
            self._used.pop(replay, None)
            self._keep(call.key, kind, new)
            return found.result
        text = (
            f"{self.history.name} is not pure, as jit(pure=True) promises: {why}. Results since "
            "the last audit may be wrong. Drop pure=True, or have the function read nothing that "
            "changes but tensors"
        )
        if self._audits == "error":
            self.clear()
            raise audit.VerificationError(text)
        self.give_up(f"{text}. Its Python runs at each call from now on")
        return found.result

    def _keep(self, key: keys.CallKey, kind: _Kind, replay: Replay) -> None:
        """Keep a program, and forget those that were not used for longest, if they are too many."""
        self._kinds.pop(key, None)
        self._kinds[key] = kind
        kind.replays.insert(0, replay)
        self._used[replay] = key
        while len(self._used) > config.get("jit_cache_size"):
            with suppress(KeyError, ValueError):  # another thread may have dropped it
                oldest, at = self._used.popitem(last=False)
                self._kinds[at].replays.remove(oldest)
                if not self._kinds[at].replays:
                    del self._kinds[at]


def recorded(function: Any, history: History, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function, and record it; its Python runs."""
    with history.recorded_call(), observed(history):
        result = function(*args, **kwargs)
    await_gradients(result)
    return result


def observe(observer: Observer, function: Callable[..., Any], call: SortedCall) -> Observed:
    """Call a function, and find out how to repeat the call without its Python."""
    world, forms = keys.world(), Forms(call)
    for one in (getattr(inspect.unwrap(function), "__self__", None), *observer.leaves):
        if isinstance(one, torch.nn.Module):  # a method may read its flags; no hook sees the call
            observer.modules[id(one)] = one
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
        if form != call.key.form or any(map(operator.is_not, after, observer.leaves)):
            observer.refuse("it changes a list or dict among its arguments: return the new value")
        left = None if observer.is_disturbed() else describe(observer, result)
        observer.is_over = True
    failed = ((flag.get(), *error) for flag, *error in observer.checks)
    raise_failed_checks(failed, observer.history.where)
    if keys.world() != world:
        observer.refuse("it leaves a mode or a setting other than it was")
    replay = _replay(forms, observer, left) if left is not None else None
    observer.leaves, left = [], None
    if replay is not None and observer.history.is_differentiable:  # a graph keeps nothing
        result = [replay.of_observed(call, observer, result)]
    observer.outputs = []  # which a cycle of references would hold
    return Observed(result[0], replay if observer.refusal is None else None, observer.refusal)


def _replay(forms: Forms, observer: Observer, left: LeftBehind) -> Replay | None:
    graphs = observer.graphs
    if len(graphs) > 1:
        observer.refuse("a value is looked at while it runs")
    if observer.refusal or observer.makes_state or not graphs or graphs[0].program is None:
        return None
    backward = Pullback(observer, left) if left.connected and observer.wanted else None
    left = left._replace(connected=[])  # which hold the whole graph of this call
    return None if observer.refusal else Replay(forms, observer, left, backward)


# --- arguments that were given by value -----------------------------------------------------------


def _is_reached(call: SortedCall, at: int, result: Any) -> bool:
    """Return whether a part sees its own memory again, or the result has a view of its copy."""
    copied, part = call.leaves[at].untyped_storage(), call.parts[at]
    parts = set(map(id, call.parts.values()))
    others = [t for t in filter(is_jax_tensor, trees.flatten(result)[0]) if id(t) not in parts]
    sees_own = part.untyped_storage() is not copied
    return sees_own or any(one.untyped_storage() is copied for one in others)


def _with_parts(result: Any, call: SortedCall) -> Any:
    """Return the result with views of the parts in place of views of their copies."""
    copies = {id(call.leaves[at].untyped_storage()): at for at in call.parts}

    def replaced(leaf: Any) -> Any:
        at = copies.get(id(leaf.untyped_storage())) if is_jax_tensor(leaf) else None
        return leaf if at is None else _view_of(call.parts[at], call.leaves[at], leaf)

    return trees.map(replaced, result)


def _view_of(part: torch.Tensor, copy: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return the view of a part's memory that corresponds to a view of the copy's."""
    elements = int(part.storage_offset()) - int(copy.storage_offset())
    offset = elements * part.element_size() // view.element_size() + int(view.storage_offset())
    return Form.of(view)._replace(offset=offset).over(part.untyped_storage())
