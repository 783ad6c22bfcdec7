"""Lists, dicts, sets, deques and their kin: changed, reordered, replaced, subclassed."""

from __future__ import annotations

from collections import defaultdict, deque

from tests.programs.writing import CALLS, program, t


@program
def a_list_is_replaced_element_by_element(compile):
    items = [t(1), t(2)]

    def step(x):
        y = x + items[1]
        items[1] = items[0]
        items[0] = x * 1
        return y

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), items


@program
def two_elements_of_a_list_swap(compile):
    items = [t(1), t(5)]

    def step(x):
        items[0], items[1] = items[1], items[0]
        return x * items[0]

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k)), items


@program
def a_list_is_returned(compile):
    items = [t(1)]
    f = compile(lambda x: (items, x * 2))
    for k in range(CALLS):
        out, y = f(t(k))
        yield out, out is items, y
        items[0] = t(k)
        if k == 3:
            items.append(t(9))


@program
def a_list_argument_is_appended_to(compile):
    def step(x, log):
        log.append(x * 2)
        return x + len(log)

    f, log = compile(step), []
    for k in range(CALLS):
        yield f(t(k), log), log


@program
def a_list_grows_inside(compile):
    log = []

    def step(x):
        log.append(x * 2)
        return x + len(log)

    f = compile(step)
    for k in range(8):
        yield f(t(k)), log
        if k == 4:
            log.clear()


@program
def a_list_keeps_numbers(compile):
    log = []

    def step(x):
        log.append(float(len(log)))
        return x * log[-1]

    f = compile(step)
    for k in range(8):
        yield f(t(k)), log


@program
def a_list_is_reversed_outside(compile):
    items = [t(1), t(4), t(9)]
    f = compile(lambda x: x * items[0] - items[-1])
    for k in range(7):
        yield f(t(k))
        items.reverse()
        if k == 3:
            items.pop(0)


@program
def a_list_is_sorted_inside(compile):
    items = [3.0, 1.0, 2.0]

    def step(x):
        items.sort()
        return x * items[0] + items[-1]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), items
        items.insert(0, 5.0 - k)


@program
def a_slice_of_a_list_is_set(compile):
    items = [1.0, 2.0, 3.0]

    def step(x):
        items[:2] = [items[2], items[0], 0.5]
        return x * sum(items)

    f = compile(step)
    for k in range(7):
        yield f(t(k)), items


@program
def a_deque_turns(compile):
    items = deque([t(1), t(2), t(3)], maxlen=3)

    def step(x):
        items.rotate(1)
        items.append(x * 1)
        return items[0] + items[-1]

    f = compile(step)
    for k in range(8):
        yield f(t(k)), list(items)


@program
def a_deque_is_popped(compile):
    items = deque(float(k) for k in range(20))
    f = compile(lambda x: x * items.popleft())
    for k in range(8):
        yield f(t(k)), list(items)


@program
def a_queue_of_tensors_of_a_bound(compile):
    items = deque(maxlen=2)

    def step(x):
        items.append(x + 1)
        return sum(items)

    f = compile(step)
    for k in range(8):
        yield f(t(k)), list(items)


@program
def a_dict_gets_keys(compile):
    d = {"a": t(1)}
    f = compile(lambda x: sum(d.values(), x))
    for k in range(8):
        yield f(t(k))
        d[f"k{k}"] = t(k)
        if k == 4:
            del d["a"]


@program
def the_order_of_a_dict_changes(compile):
    d = {"a": 2.0, "b": 3.0}

    def step(x):
        for v in d.values():
            x = x * v + 1
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(k))
        d["a"] = d.pop("a")
        d["b"] = d.pop("b") if k % 3 == 0 else d["b"]


@program
def the_order_of_a_dict_argument_changes(compile):
    def step(d):
        y = 0
        for v in d.values():
            y = y * 2 + v
        return y, list(d)

    f = compile(step)
    for k in range(8):
        d = {"a": t(k), "b": t(k + 1)}
        yield f(d if k % 2 else dict(reversed(d.items())))


@program
def the_order_of_a_dict_in_a_list_changes(compile):
    def step(dicts):
        y = 0
        for v in dicts[0].values():
            y = y * 2 + v
        return y

    f = compile(step)
    for k in range(8):
        d = {"a": t(k), "b": t(k + 1)}
        yield f([d if k % 2 else dict(reversed(d.items()))])


@program
def a_dict_get_with_a_default(compile):
    d = {}
    f = compile(lambda x: x * d.get("k", 1.0))
    for k in range(8):
        yield f(t(k))
        if k == 2:
            d["k"] = 4.0
        if k == 5:
            del d["k"]


@program
def a_key_is_asked_for(compile):
    d = {}
    f = compile(lambda x: x + 1 if "k" in d else x - 1)
    for k in range(8):
        yield f(t(k))
        if k == 2:
            d["k"] = None
        if k == 5:
            d.clear()


@program
def a_key_error_decides(compile):
    d = {}

    def step(x):
        try:
            return x * d["k"]
        except KeyError:
            d["k"] = 2.0
            return x

    f = compile(step)
    for k in range(8):
        yield f(t(k)), d
        if k == 4:
            d.clear()


@program
def setdefault_makes_once(compile):
    d = {}
    f = compile(lambda x: d.setdefault("w", x * 2) + x)
    for k in range(8):
        yield f(t(k)), d
        if k == 4:
            d.pop("w")


@program
def a_defaultdict_counts(compile):
    d = defaultdict(float)

    def step(x, key):
        d[key] += 1
        return x * d[key]

    f = compile(step)
    for k in range(8):
        yield f(t(k), "ab"[k % 2]), d


@program
def a_dict_with_missing(compile):
    class Squares(dict):
        def __missing__(self, key):
            self[key] = key * key
            return self[key]

    d = Squares()
    f = compile(lambda x, key: x * d[key])
    for k in range(8):
        yield f(t(k), k % 3), d
        if k == 5:
            d[1] = 10


@program
def a_dict_subclass_with_getitem(compile):
    class Scaled(dict):
        factor = 2.0

        def __getitem__(self, key):
            return dict.__getitem__(self, key) * self.factor

    d = Scaled(k=3.0)
    f = compile(lambda x: x * d["k"])
    for k in range(8):
        yield f(t(k))
        d.factor = float(k)
        if k == 4:
            d["k"] = 1.0


@program
def attributes_of_a_dict_subclass(compile):
    class D(dict):
        pass

    d = D(a=1.0)
    d.bias = 2.0
    f = compile(lambda x: x * d["a"] + d.bias)
    for k in range(7):
        yield f(t(k))
        d.bias += 1


@program
def attributes_of_a_list_subclass(compile):
    class L(list):
        scale = 1.0

    items = L([1.0, 2.0])
    f = compile(lambda x: x * sum(items) * items.scale)
    for k in range(7):
        yield f(t(k))
        items.scale = k + 0.5
        if k == 3:
            items.append(3.0)


@program
def a_list_subclass_that_computes_its_length(compile):
    class L(list):
        extra = 0

        def __len__(self):
            return list.__len__(self) + self.extra

    items = L([1, 2])
    f = compile(lambda x: x * len(items))
    for k in range(7):
        yield f(t(k))
        items.extra = k


@program
def attributes_of_an_int_subclass(compile):
    class Level(int):
        pass

    level = Level(3)
    level.note = 1.0
    f = compile(lambda x: x * level.note + level)
    for k in range(7):
        yield f(t(k))
        level.note = float(k)


@program
def a_str_subclass_as_key(compile):
    class Key(str):
        weight = 1.0

    key = Key("a")
    d = {key: 2.0}
    f = compile(lambda x: sum(x * d[k] * getattr(k, "weight", 0.5) for k in d))
    for k in range(7):
        yield f(t(k))
        key.weight = float(k)
        if k == 4:
            d[Key("a")] = 3.0
