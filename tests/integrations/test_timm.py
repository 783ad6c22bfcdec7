"""Models of timm: they compute and learn the same as on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support import compare, stand_in_torchvision


@pytest.fixture(scope="module")
def timm():
    stand_in_torchvision.install()
    try:
        yield pytest.importorskip("timm")
    finally:
        stand_in_torchvision.take_away()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {}), ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8})],
)
def test_a_model_is_trained_as_on_the_cpu(timm, name, options):
    torch.manual_seed(0)
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    model = timm.create_model(name, num_classes=10, **options)
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def losses(device: str) -> list[float]:
        model.load_state_dict(state)
        model.train().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        for _ in range(3):
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses("cpu")
    scores = model.eval()(images)
    assert losses("jax") == pytest.approx(expected, rel=1e-3)
    compare.assert_same(model.eval()(images.to("jax")), scores, scale=100)
