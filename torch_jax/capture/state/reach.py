"""How far the state that a function can reach is followed: attributes of which names."""

from __future__ import annotations

import functools

import torch

from torch_jax.capture.state.bytecode import Names, file_of, is_watched_file


class Reach:
    """How far a walk goes: attributes of these names, or of all names."""

    def __init__(self, names: frozenset[str], probes: frozenset[str], everything: bool):
        self.names, self.probes, self.everything = names, probes, everything
        self.key = (names, everything)
        self._on_class: dict[type, list[str]] = {}

    def on_class(self, kind: type) -> list[str]:
        """Those of the names that a user's class, or a base of one, knows."""
        if kind not in self._on_class:
            known = {
                name
                for base in kind.__mro__
                if is_watched_file(file_of(base))
                for name in self.names & vars(base).keys()
            }
            if issubclass(kind, torch.nn.Module):
                known.add("forward")  # PyTorch calls it, and users replace it
            self._on_class[kind] = sorted(known)
        return self._on_class[kind]


NOTHING = Reach(frozenset(), frozenset(), False)


@functools.cache
def reach_of(names: Names) -> Reach:
    """A walk along the attributes that a piece of code names."""
    return Reach(names.followed, names.probes, names.everything)


@functools.lru_cache(4096)
def union(reach: Reach, names: Names) -> Reach:
    """A walk that goes as far as both."""
    if names.followed <= reach.names and names.everything <= reach.everything:
        return reach
    return Reach(
        reach.names | names.followed,
        reach.probes | names.probes,
        reach.everything or names.everything,
    )
