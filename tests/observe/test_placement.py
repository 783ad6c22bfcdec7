"""``torch_jax.is_jax_module`` and ``where_is``: a model's tensors, and their devices."""

import pytest
import torch
from torch import nn

import torch_jax


class Tied(nn.Module):
    """An embedding that is the output layer too, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool))


def rows(*args, **kwargs):
    return {row.name: row for row in torch_jax.where_is(*args, **kwargs).rows}


@pytest.mark.parametrize("device", ["cpu", "jax", "meta"])
def test_every_submodule_has_a_row_and_ties_count_once(device):
    with torch.device(device):
        model = Tied()
    found = rows(model)
    assert list(found) == ["Tied", "embed", "body", "body.0", "head"]
    shown = str(torch.empty(0, device=device).device)
    assert {row.devices for row in found.values()} == {(shown,)}
    assert found["Tied"].bytes == (40 + 16 + 4) * 4 + 5
    assert found["Tied"].tensors == 4
    assert found["Tied"].dtypes == ("bool", "float32")
    assert found["embed"].bytes == found["head"].bytes == 160
    assert found["body"] == found["body.0"]._replace(name="body")


def test_is_jax_module():
    model = Tied()
    assert not torch_jax.is_jax_module(model)
    assert torch_jax.is_jax_module(model.to("jax"))
    model.mask = model.mask.cpu()  # a buffer that was left behind
    assert not torch_jax.is_jax_module(model)
    assert not torch_jax.is_jax_module(nn.ReLU())  # on no device
    assert not torch_jax.is_jax_module(Tied().to("meta"))


@pytest.mark.slow
def test_a_model_on_several_devices():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64, device="jax"))
    found = rows(model)
    assert found["Sequential"].devices == ("cpu", "jax:0")
    assert found["Sequential"].dtypes == ("float32", "float64")
    assert found["0"].devices == ("cpu",) and found["0"].bytes == 24
    assert found["1"].devices == ("jax:0",) and found["1"].bytes == 48


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_lazy_modules_have_no_memory_yet(device):
    model = nn.Sequential(nn.LazyLinear(3, device=device), nn.Linear(3, 1, device=device))
    found = rows(model)
    assert found["0"].bytes == 0 and found["0"].tensors == 2
    assert found["Sequential"].bytes == found["1"].bytes == 16
    assert torch_jax.is_jax_module(model) == (device == "jax")


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_views_of_one_memory_count_once(device):
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            whole = torch.zeros(8, device=device)
            self.a, self.b = nn.Parameter(whole[:4]), nn.Parameter(whole[4:])

    assert rows(Halves())["Halves"] == ("Halves", (str(torch.zeros(0, device=device).device),),
                                        ("float32",), 2, 32)  # fmt: skip


@pytest.mark.slow
def test_the_state_of_an_optimizer():
    model = nn.Linear(4, 4).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    assert rows(model, optimizer)["state of Adam"].tensors == 0
    model(torch.ones(1, 4, device="jax")).sum().backward()
    optimizer.step()
    state = rows(model, optimizer)["state of Adam"]
    assert (state.tensors, state.bytes) == (6, 2 * (80 + 4))
    assert state.devices == ("jax:0",)


def test_depth():
    assert list(rows(Tied(), depth=0)) == ["Tied"]
    assert list(rows(Tied(), depth=1)) == ["Tied", "embed", "body", "head"]


@pytest.mark.slow
def test_the_table():
    model = nn.Sequential(nn.Linear(1000, 1000, device="jax"), nn.ReLU())
    assert str(torch_jax.where_is(model)).splitlines() == [
        "module      devices  dtypes   tensors  memory",
        "Sequential  jax:0    float32  2        3.8 MiB",
        "0           jax:0    float32  2        3.8 MiB",
    ]


def test_sparse_parameters():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adjacency", torch.eye(3).to_sparse())

    assert rows(Sparse())["Sparse"].devices == ("cpu",)


@pytest.mark.parametrize("function", [torch_jax.is_jax_module, torch_jax.where_is])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(TypeError, match=r"nn\.Module"):
        function([torch.nn.Linear(2, 2)])
