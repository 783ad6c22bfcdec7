"""``F.cross_entropy``: one operator gives its gradient, which has a gradient too."""

import pytest
import torch
import torch.nn.functional as F

import torch_jax
from torch_jax import config

ROWS = {"target": [0, 2, 1, 2], "shape": (4, 3)}
IMAGES = {"target": [[[0, 2]], [[1, 2]]], "shape": (2, 3, 1, 2)}


def both_gradients(device, target, shape, weighted=False, **how):
    """The loss, its gradient, and the gradient of that one's square."""
    x = torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape).to(device)
    weight = torch.tensor([1.0, 0.5, 2.0], device=device) if weighted else None
    target = torch.tensor(target, device=device)

    def run(x):
        loss = F.cross_entropy(x, target, weight, **how)
        (grad,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
        return loss, grad, *torch.autograd.grad((grad * grad).sum() + loss.sum(), x)

    run = torch_jax.jit(run) if device == "jax" and config.get("eager_on_cpu") == "xla" else run
    return [found.detach().cpu() for found in run(x.requires_grad_())]


@pytest.mark.parametrize("way", ["torch", "xla"])
@pytest.mark.parametrize(
    "call",
    [ROWS, ROWS | {"reduction": "none", "ignore_index": 2}, IMAGES | {"weighted": True}],
    ids=["rows", "ignored", "images"],
)
def test_gradients_are_those_of_the_cpu(call, way):
    with config.temporarily("eager_on_cpu", way):
        torch.testing.assert_close(both_gradients("jax", **call), both_gradients("cpu", **call))


def test_smoothed_labels_with_weights_look_at_no_value():
    given = torch.randn(5, 3), torch.tensor([0, 2, 1, 2, 0]), torch.tensor([1.0, 0.5, 2.0])

    def loss(*given):
        return F.cross_entropy(*given, ignore_index=1, label_smoothing=0.1)

    run, on_device = torch_jax.jit(loss), [one.to("jax") for one in given]
    for _ in range(3):
        torch_jax.reset_metrics()
        torch.testing.assert_close(run(*on_device).cpu(), loss(*given))
    assert torch_jax.metrics()["early_syncs"] == {}


def test_an_ignored_class_of_infinite_loss_has_no_gradient():
    found = []
    for device in ("cpu", "jax"):
        logits = torch.tensor([[0.0, -torch.inf], [0.0, 1.0]], device=device, requires_grad=True)
        target = torch.tensor([1, 0], device=device)
        torch_jax.jit(F.cross_entropy)(logits, target, ignore_index=1).backward()
        found.append(logits.grad.cpu())
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("dtype", "of_weight"),
    [(torch.float64, None), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)],
)
def test_autocast_casts_as_without_a_gradient(dtype, of_weight):
    x = torch.ones(2, 3, device="jax", dtype=dtype, requires_grad=True)
    weight = None if of_weight is None else torch.ones(3, device="jax", dtype=of_weight)
    target = torch.tensor([0, 1], device="jax")
    with torch.autocast("jax", torch.bfloat16):
        loss = F.cross_entropy(x, target, weight)
        with torch.no_grad():
            assert loss.dtype == F.cross_entropy(x, target, weight).dtype
    loss.backward()
    assert x.grad.dtype == dtype


def test_one_operator_gives_the_gradient(eager_by_xla):
    x = torch.ones(2, 3, device="jax", requires_grad=True)
    target = torch.tensor([0, 1], device="jax")
    with torch_jax.trace_ops() as trace, torch.autocast("jax", torch.bfloat16):
        loss = F.cross_entropy(x.bfloat16(), target)
    with trace:
        loss.backward()
    assert loss.dtype == torch.float32
    assert "torch_jax.cross_entropy_backward" in str(trace)
    assert "nll_loss_backward" not in str(trace)
