"""Trees at the border: the containers, and no effect on other users of pytrees."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

import torch_jax
from torch_jax.core import trees

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Batch:
    tokens: Any
    mask: Any = None
    name: str = dataclasses.field(default="train", metadata={"static": True})

    def __post_init__(self) -> None:
        self.seen = [self.name]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any = 3


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def dynamic_cache(steps: int = 1, device: str = "cpu") -> DynamicCache:
    cache = DynamicCache()
    for layer in range(2):
        for _ in range(steps):
            cache.update(*torch.ones(2, 1, 2, 1, 4, device=device), layer)
    return cache


def static_cache() -> StaticCache:
    config = LlamaConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    cache = StaticCache(config, max_cache_len=4)
    for layer in range(2):
        cache.update(*torch.ones(2, 1, 2, 1, 4), layer)
    return cache


TREES: dict[str, tuple[Any, int]] = {  # and how many leaves there are
    "leaf": (1, 1),
    "none": (None, 0),
    "dict": ({"b": 1, "a": {"d": 2, "c": 3}}, 3),
    "keys_that_do_not_sort": ({"b": 1, 2: 3, (4,): 5, None: 6}, 4),
    "ordered": (OrderedDict(b=1, a=2), 2),
    "default": (defaultdict(list, {"b": 1, 2: 3}), 2),
    "deque": (deque([1, (2, 3)], maxlen=4), 3),
    "namedtuple": (Point(1, [2, 3]), 3),
    "size": (torch.Size([2, 3]), 2),
    "return_types": (torch.arange(6.0).view(2, 3).max(1), 2),
    "dataclass": (Batch(ones(2)), 1),
    "frozen": (Frozen(ones(2), {"z": 1}), 2),
    "nested": ([Batch((ones(2), Frozen(ones(1)))), None], 3),
    "optax": (optax.adam(0.1).init({"w": jnp.ones(2)}), 3),
    "output": (CausalLMOutputWithPast(logits=ones(2), hidden_states=(ones(1), ones(1))), 3),
    "dynamic_cache": (dynamic_cache(), 4),
    "empty_cache": (DynamicCache(), 0),
    "static_cache": (static_cache(), 6),
    "two_caches": (EncoderDecoderCache(dynamic_cache(), dynamic_cache()), 8),
    "output_with_cache": (BaseModelOutputWithPast(ones(1), dynamic_cache()), 5),
}
LEAVES: dict[str, Any] = {
    "module": torch.nn.Linear(1, 1),
    "dataclass_without_values": Settings(),
    "sparse": ones(2).to_sparse(),
    "nested": torch.nested.nested_tensor([ones(1), ones(2)], layout=torch.jagged),
    "string": "abc",
    "class": Batch,
    "dtype": torch.float32,
    "set": {1, 2},
}


def state(value: Any) -> Any:
    """Whatever two containers must share: their types, orders and attributes."""
    if isinstance(value, torch.Tensor | jax.Array):
        return value.tolist()
    if isinstance(value, dict) and not hasattr(value, "__dict__"):
        return type(value), [(key, state(element)) for key, element in value.items()]
    if isinstance(value, tuple | list | deque):
        return type(value), [state(element) for element in value]
    if hasattr(value, "__dict__"):
        items = list(value.items()) if isinstance(value, dict) else []
        return type(value), state(dict(items)), state(vars(value))
    return value


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back(name):
    tree, count = TREES[name]
    leaves, structure = trees.flatten(tree)
    assert len(leaves) == count
    assert state(trees.unflatten(structure, leaves)) == state(tree)
    assert len(trees.flatten_with_paths(tree)[0]) == count


@pytest.mark.parametrize("name", TREES)
def test_structures_are_keys(name):
    tree, count = TREES[name]
    _, structure = trees.flatten(tree)
    _, again = trees.flatten(trees.map(lambda leaf: leaf, tree))
    assert structure == again and hash(structure) == hash(again)
    assert {structure: 1}[again] == 1
    _, other = trees.flatten([tree])
    assert structure != other


@pytest.mark.parametrize("name", TREES)
def test_leaves_may_become_anything(name):
    tree, count = TREES[name]
    for other in ("a", None, (1, 2), object()):
        made = trees.unflatten(trees.flatten(tree)[1], [other] * count)
        assert type(made) is type(tree) or name in ("leaf", "size")


@pytest.mark.parametrize("name", LEAVES)
def test_leaves(name):
    assert trees.flatten(LEAVES[name])[0][0] is LEAVES[name]
    assert trees.flatten({"a": LEAVES[name]})[0][0] is LEAVES[name]


def test_the_order_of_dicts_is_a_part_of_the_structure():
    _, one = trees.flatten({"a": 1, "b": 2})
    leaves, other = trees.flatten({"b": 2, "a": 1})
    assert leaves == [2, 1] and one != other
    assert list(trees.map(str, {"b": 2, "a": 1})) == ["b", "a"]


def test_static_fields_tell_structures_apart():
    assert trees.flatten(Batch(ones(1)))[1] != trees.flatten(Batch(ones(1), name="test"))[1]
    assert trees.map(str, Batch(1.0, name="test")).name == "test"


def test_paths_name_attributes_and_keys():
    output = BaseModelOutputWithPast(ones(1), dynamic_cache())
    paths = [path for path, _ in trees.flatten_with_paths({"out": output})[0]]
    assert paths[:2] == ["['out'].last_hidden_state", "['out'].cache.layers[0].keys"]


def test_functions_that_return_containers_stand_under_jax_jit():
    for tree in (CausalLMOutputWithPast(logits=ones(2)), Batch(ones(2)), dynamic_cache()):
        trees.flatten(tree)
        arrays = trees.map(lambda leaf: jnp.asarray(leaf.numpy()), tree)
        found = jax.jit(lambda t: jax.tree.map(lambda a: a * 2, t))(arrays)
        assert type(found) is type(tree)
        assert all(leaf.ravel()[0] == 2 for leaf in jax.tree.leaves(found))


# --- users who register their classes -------------------------------------------------------------


def test_a_class_that_a_user_has_registered_is_his():
    @dataclasses.dataclass
    class Mine:
        a: Any
        b: Any

    jax.tree_util.register_dataclass(Mine, ["b"], ["a"])
    leaves, structure = trees.flatten([Mine(1, ones(1))])
    assert len(leaves) == 1
    assert trees.unflatten(structure, [5])[0] == Mine(1, 5)


# --- torch_jax.jit takes containers as objects ----------------------------------------------------


def appended(batch: Batch, cache: DynamicCache, x: torch.Tensor) -> torch.Tensor:
    batch.tokens = batch.tokens + x
    batch.seen.append("more")
    cache.update(x[None, None], x[None, None], 0)
    return batch.tokens.sum()


def played(device: str) -> Any:
    batch, cache = Batch(torch.ones(2, 2, device=device)), dynamic_cache(0, device)
    x = torch.ones(2, 2, device=device)
    function = torch_jax.jit(appended) if device == "jax" else appended
    sums = [function(batch, cache, x).item() for _ in range(8)]
    return sums, batch.tokens.tolist(), batch.seen, cache.get_seq_length()


def test_registered_classes_are_the_same_to_jit():
    wanted = played("cpu")
    trees.flatten((Batch(ones(1)), dynamic_cache(), ones(2).max(0), torch.Size([1])))
    assert all(map(jax.tree_util.default_registry.is_node, (Batch, DynamicCache)))
    assert played("jax") == wanted


def test_jit_flattens_what_a_user_has_registered():
    @dataclasses.dataclass
    class Pair:
        a: Any
        b: Any

    @torch_jax.jit(pure=True)
    def total(pair, sizes):
        return pair.a * sizes[0] + pair.b

    jax.tree_util.register_dataclass(Pair, ["a", "b"], [])
    for i in range(6):
        pair = Pair(torch.full((2,), float(i), device="jax"), torch.ones(2, device="jax"))
        assert total(pair, torch.Size([3])).tolist() == [3.0 * i + 1] * 2
    assert total.explain().observed == 1
