"""Containers of other kinds: ordered, counting, chained, weak, packed, nested, of tensors."""

from __future__ import annotations

import array
import collections
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList

from tests.programs.writing import Bag, attempt, program, t


@program
def an_ordered_dict_is_moved(compile):
    d = OrderedDict(a=2.0, b=5.0, c=7.0)

    def step(x):
        d.move_to_end(next(iter(d)))
        for v in d.values():
            x = x * v - 1
        return x

    f = compile(step)
    for k in range(7):
        yield f(t(k)), d


@program
def an_ordered_dict_as_lru(compile):
    cache = OrderedDict()

    def step(x, key):
        if key in cache:
            cache.move_to_end(key)
        else:
            cache[key] = x * 2
            if len(cache) > 2:
                cache.popitem(last=False)
        return cache[key] + x

    f = compile(step)
    for key in "aabcabdda":
        yield f(t(len(cache)), key), cache


@program
def a_counter_counts(compile):
    counts = Counter()

    def step(x, word):
        counts[word] += 1
        return x * counts.most_common(1)[0][1]

    f = compile(step)
    for word in "aababbbab":
        yield f(t(1), word), counts


@program
def a_chain_map_hides_and_shows(compile):
    low, high = {"k": 1.0}, {}
    settings = ChainMap(high, low)
    f = compile(lambda x: x * settings["k"])
    for k in range(8):
        yield f(t(k))
        if k == 2:
            high["k"] = 5.0
        if k == 4:
            low["k"] = 9.0
        if k == 5:
            high.clear()


@program
def a_user_dict_changes(compile):
    d = UserDict(k=1.0)
    f = compile(lambda x: x * d["k"] + len(d))
    for k in range(8):
        yield f(t(k))
        d["k"] = float(k)
        d[f"n{k // 3}"] = 0


@program
def a_user_list_changes(compile):
    items = UserList([1.0])
    f = compile(lambda x: x * items[-1])
    for k in range(8):
        yield f(t(k))
        items.append(float(k))


@program
def a_mapping_proxy_shows_its_dict(compile):
    d = {"k": 1.0}
    proxy = types.MappingProxyType(d)
    f = compile(lambda x: x * proxy["k"])
    for k in range(8):
        yield f(t(k))
        d["k"] = float(k)


@program
def a_view_of_keys_is_kept(compile):
    d = {"a": 1.0}
    keys, values = d.keys(), d.values()
    f = compile(lambda x: x * len(keys) + sum(values))
    for k in range(8):
        yield f(t(k))
        d[f"k{k // 2}"] = float(k)


@program
def a_kept_bound_method_of_a_dict(compile):
    d = {"k": 1.0}
    get = d.get
    f = compile(lambda x: x * get("k", 0.5))
    for k in range(8):
        yield f(t(k))
        d["k"] = float(k)
        if k == 5:
            d.clear()


@program
def a_kept_bound_method_of_a_list(compile):
    items = [1.0, 2.0, 1.0]
    count, pop = items.count, items.pop
    f = compile(lambda x: x * count(1.0))
    g = compile(lambda x: x * pop())
    for k in range(6):
        yield f(t(k)), items
        items.append(1.0)
        if k % 3 == 2:
            yield g(t(k)), items


@program
def a_set_is_asked(compile):
    names = {"a"}
    f = compile(lambda x, name: x * 2 if name in names else x * 3)
    for k in range(9):
        yield f(t(k), "abc"[k % 3])
        if k == 3:
            names.add("b")
        if k == 6:
            names.discard("a")


@program
def a_set_grows_inside(compile):
    seen = set()

    def step(x, name):
        new = name not in seen
        seen.add(name)
        return x + len(seen) if new else x - 1

    f = compile(step)
    for k, name in enumerate("abacbda"):
        yield f(t(k), name), seen


@program
def a_frozen_set_is_replaced(compile):
    s = Bag(names=frozenset("ab"))
    f = compile(lambda x: x * len(s.names) + ("c" in s.names))
    for k in range(7):
        yield f(t(k))
        s.names = s.names | {"cde"[k % 3]}


@program
def tensors_as_keys(compile):
    a, b = t(1), t(2)
    scales = {a: 2.0, b: 3.0}
    f = compile(lambda x: x * scales[a] + scales.get(b, 0.0))
    for k in range(8):
        yield f(t(k))
        scales[a] = float(k)
        if k == 5:
            del scales[b]


@program
def a_set_of_tensors(compile):
    a, b = t(1), t(2)
    chosen = {a}
    f = compile(lambda x: x + sum(w for w in (a, b) if w in chosen))
    for k in range(8):
        yield f(t(k))
        chosen ^= {(a, b)[k % 2]}


@program
def nan_as_a_key(compile):
    nan = float("nan")
    d = {nan: 2.0}
    s = Bag(key=nan)
    f = compile(lambda x: x * d.get(s.key, 1.0))
    for k in range(6):
        yield f(t(k))
        s.key = float("nan") if k % 2 else nan


@program
def one_and_true_and_one_point_zero_are_one_key(compile):
    d = {1: 5.0}

    def step(x, key):
        d[key] = d.get(key, 0.0) + 1
        return x * d[key], [type(k).__name__ for k in d]

    f = compile(step)
    for key in (1, 1, True, 1.0, 0, False, -0.0, 1):
        yield f(t(1), key), d


@program
def a_tuple_attribute_is_replaced(compile):
    s = Bag(pair=(1.0, t(1)))
    f = compile(lambda x: x * s.pair[0] + s.pair[1])
    for k in range(7):
        yield f(t(k))
        s.pair = (float(k), t(k) if k % 2 else s.pair[1])


@program
def a_bytearray_is_written(compile):
    counts = bytearray(3)

    def step(x, k):
        counts[k % 3] += 1
        return x * counts[k % 3]

    f = compile(step)
    for k in range(8):
        yield f(t(k), k), counts


@program
def a_bytearray_is_read(compile):
    flags = bytearray(b"\x01\x02")
    f = compile(lambda x: x * flags[0] + len(flags))
    for k in range(8):
        yield f(t(k))
        flags[0] = k
        flags.append(k)


@program
def a_memoryview_shows_its_bytes(compile):
    flags = bytearray(4)
    view = memoryview(flags)[1:]
    f = compile(lambda x: x + view[0])
    for k in range(8):
        yield f(t(k))
        flags[1] = k * 2


@program
def an_array_of_numbers(compile):
    numbers = array.array("d", [1.0, 2.0])

    def step(x):
        numbers[0] += 1
        return x * numbers[0]

    f = compile(step)
    for k in range(8):
        yield f(t(k)), list(numbers)
        if k == 4:
            numbers[0] = 0.0


@program
def a_weak_value_dictionary_loses(compile):
    class Thing:
        pass

    things = [Thing(), Thing()]
    weak = weakref.WeakValueDictionary(enumerate(things))
    f = compile(lambda x: x * len(weak))
    for k in range(7):
        yield f(t(k))
        if k == 3:
            things.pop()


@program
def a_weak_key_dictionary_holds_scales(compile):
    class Thing:
        pass

    one = Thing()
    weak = weakref.WeakKeyDictionary({one: 2.0})
    f = compile(lambda x: x * weak.get(one, 1.0))
    for k in range(7):
        yield f(t(k))
        weak[one] = float(k)
        if k == 5:
            del weak[one]


@program
def a_weak_set_is_asked(compile):
    class Thing:
        pass

    one, other = Thing(), Thing()
    weak = weakref.WeakSet([one])
    f = compile(lambda x: x + 1 if other in weak else x - 1)
    for k in range(7):
        yield f(t(k))
        (weak.add if k % 2 else weak.discard)(other)


@program
def a_weak_reference_dies(compile):
    class Thing:
        k = 2.0

    things = [Thing()]
    ref = weakref.ref(things[0])
    f = compile(lambda x: x * (ref().k if ref() is not None else 0.5))
    for k in range(7):
        yield f(t(k))
        if k == 3:
            things.clear()


@program
def what_a_weak_reference_leads_to_changes(compile):
    thing = Bag(k=1.0)
    ref = weakref.ref(thing)
    f = compile(lambda x: x * ref().k)
    for k in range(7):
        yield f(t(1))
        thing.k = float(k)


@program
def nested_containers_change_deep_inside(compile):
    d = {"a": [{"k": 1.0}, (t(1), [2.0])]}
    f = compile(lambda x: x * d["a"][0]["k"] + d["a"][1][0] * d["a"][1][1][0])
    for k in range(8):
        yield f(t(k))
        d["a"][0]["k"] += 1
        d["a"][1][1][0] = float(k)
        if k == 4:
            d["a"][1] = (t(5), [0.0])


@program
def a_list_of_lists_shares_its_rows(compile):
    row = [1.0]
    rows = [row, row]

    def step(x):
        rows[0].append(2.0)
        return x * sum(rows[1])

    f = compile(step)
    for k in range(8):
        yield f(t(k)), rows
        if k == 4:
            rows[1] = [0.5]


@program
def a_container_that_holds_itself(compile):
    items = [1.0]
    items.append(items)
    f = compile(lambda x: x * items[1][1][0])
    for k in range(7):
        yield f(t(k))
        items[0] = float(k)


@program
def a_pop_from_an_empty_list(compile):
    items = [1.0, 2.0, 3.0]

    def step(x):
        try:
            return x * items.pop()
        except IndexError:
            items.extend([4.0, 5.0])
            return x

    f = compile(step)
    for k in range(9):
        yield f(t(k)), items


@program
def in_finds_by_equality_of_its_own(compile):
    class Fuzzy:
        def __init__(self, k, slack):
            self.k, self.slack = k, slack

        def __eq__(self, other):
            return abs(self.k - other) <= self.slack

        __hash__ = None

    items = [Fuzzy(1, 0)]
    f = compile(lambda x: x + 1 if 2 in items else x - 1)
    for k in range(7):
        yield f(t(k))
        items[0].slack = k % 3


@program
def a_dict_changes_while_it_is_read(compile):
    d = {"a": 1.0}

    def step(x):
        for key in d:
            x = x + d[key]
            if len(d) < 3:
                d[f"k{len(d)}"] = 2.0
        return x

    f = compile(step)
    for k in range(6):
        yield attempt(f, t(k)), d


@program
def kept_named_tuples(compile):
    Pair = collections.namedtuple("Pair", "a b")
    s = Bag(pair=Pair(t(1), 2.0))

    def step(x):
        s.pair = s.pair._replace(a=x + s.pair.a, b=s.pair.b + 1)
        return s.pair.a * s.pair.b

    f = compile(step)
    for k in range(8):
        yield f(t(k)), s.pair
