"""Recurrent layers against the CPU."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import torch_jax
from tests.support.compare import assert_same


def compare(module, *inputs):
    """Outputs and gradients of a module and of its copy on jax."""
    other = copy.deepcopy(module).to("jax")
    results = []
    for m, device in ((module, "cpu"), (other, "jax")):
        args = [move(x, device) for x in inputs]
        outputs = tensors(m(*args))
        sum((o * o).sum() for o in outputs).backward()
        results.append((outputs, [p.grad for p in m.parameters()], [x.grad for x in tensors(args)]))
    assert_same(results[1], results[0], strides=False, scale=2)


def move(value, device):
    if isinstance(value, tuple) and not isinstance(value, rnn.PackedSequence):
        return tuple(move(v, device) for v in value)
    if isinstance(value, rnn.PackedSequence):
        return value.to(device)
    return value.detach().to(device).requires_grad_(True)


def tensors(value):
    if isinstance(value, rnn.PackedSequence):
        return [value.data]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return [value]


LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
    ],
)
@pytest.mark.slow
def test_layers(kind, options):
    torch.manual_seed(0)
    compare(LAYERS[kind](3, 4, **options), torch.randn(2, 5, 3))


@pytest.mark.slow
def test_lstm_with_projection():
    torch.manual_seed(0)
    compare(nn.LSTM(3, 4, proj_size=2), torch.randn(2, 5, 3))


@pytest.mark.slow
def test_relu_and_double_precision():
    torch.manual_seed(0)
    compare(nn.RNN(3, 4, nonlinearity="relu"), torch.randn(2, 5, 3))
    compare(nn.LSTM(3, 4).double(), torch.randn(2, 5, 3).double())


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.slow
def test_unbatched_with_initial_state(kind):
    torch.manual_seed(0)
    h = torch.randn(1, 4)
    state = (h, torch.randn(1, 4)) if kind == "lstm" else h
    compare(LAYERS[kind](3, 4), torch.randn(5, 3), state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences(kind):
    torch.manual_seed(0)
    lengths = torch.tensor([2, 4, 3])
    packed = rnn.pack_padded_sequence(torch.randn(4, 3, 3), lengths, enforce_sorted=False)
    compare(LAYERS[kind](3, 4, bidirectional=True), packed)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_one_operator_however_long_a_sequence_is(kind):
    layer, counts = LAYERS[kind](3, 4).to("jax"), []
    for steps in (2, 9):
        before = torch_jax.metrics()["operators"]
        layer(torch.ones(steps, 2, 3, device="jax"))
        counts.append(torch_jax.metrics()["operators"] - before)
    assert counts[0] == counts[1]


def test_other_lengths_compile_nothing():
    layer = nn.GRU(3, 4).to("jax")

    run = torch_jax.jit(lambda packed: layer(packed)[0].data)
    for lengths in ([4, 2, 2], [4, 3, 1], [4, 1, 3]):
        before = torch_jax.metrics()["compiles"]
        x = torch.randn(4, 3, 3)
        packed = rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
        actual = run(packed.to("jax"))
        compiled = torch_jax.metrics()["compiles"] - before
        assert_same(actual, copy.deepcopy(layer).cpu()(packed)[0].data, strides=False)
    assert not compiled


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_gradients(kind):
    torch.manual_seed(0)
    module, results = LAYERS[kind](3, 4), []
    for device in ("cpu", "jax"):
        layer = copy.deepcopy(module).to(device)
        x = torch.linspace(-1, 1, 30).view(5, 2, 3).to(device).requires_grad_()
        (grad,) = torch.autograd.grad(layer(x)[0].pow(2).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        results.append([grad, x.grad, *(p.grad for p in layer.parameters())])
    assert_same(results[1], results[0], strides=False, scale=2)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_by_a_transform(kind):
    def loss(values, x):
        return torch.func.functional_call(module, values, x)[0].pow(2).sum()

    torch.manual_seed(0)
    module, x = LAYERS[kind](3, 4), torch.linspace(-1, 1, 30).view(5, 2, 3)
    results = []
    for device in ("cpu", "jax"):
        values = {name: one.detach().to(device) for name, one in module.named_parameters()}
        gradients, of_x = torch.func.grad(loss, (0, 1))(values, x.to(device))
        results.append([*gradients.values(), of_x])
    assert_same(results[1], results[0])


def test_packing_on_the_device():
    x, lengths = torch.randn(4, 3, 2), torch.tensor([4, 3, 2])
    expected = rnn.pack_padded_sequence(x, lengths)
    actual = rnn.pack_padded_sequence(x.to("jax"), lengths)
    assert_same(actual.data, expected.data)
    padded, sizes = rnn.pad_packed_sequence(actual)
    assert_same(padded, rnn.pad_packed_sequence(expected)[0])
    assert sizes.tolist() == [4, 3, 2]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    torch.manual_seed(0)
    compare(kind(3, 4), torch.randn(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.LSTM, nn.GRU])
def test_half_cells_and_layers_are_close_to_float(kind, dtype):
    torch.manual_seed(0)
    x, cell = torch.randn(2, 3), kind(3, 4)
    exact = tensors(cell(x))[0]
    half = tensors(cell.to("jax", dtype)(x.to("jax", dtype)))[0]
    assert half.dtype == dtype
    torch.testing.assert_close(half.float().cpu(), exact, rtol=2e-2, atol=2e-2)
