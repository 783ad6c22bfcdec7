"""A pipeline of diffusers on the device: a program for each model, and images of the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_jax
from tests.support.ledger import programs

diffusers = pytest.importorskip("diffusers")


def _pipeline() -> Any:
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    vae = diffusers.AutoencoderKL(block_out_channels=(8,), latent_channels=4, norm_num_groups=4)
    scheduler = diffusers.DDIMScheduler(clip_sample=False, steps_offset=1)
    return diffusers.StableDiffusionPipeline(
        vae, None, None, unet, scheduler, None, None, requires_safety_checker=False
    )


@pytest.mark.slow
def test_a_pipeline_compiles_each_model_once(capsys):
    words = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(2))
    steps: list[int] = []

    def noted(pipe: Any, step: int, time: Any, given: dict) -> dict:
        steps.append(step)
        return given

    def images(pipe: Any, device: str) -> torch.Tensor:
        return pipe(
            prompt_embeds=words.to(device),
            negative_prompt_embeds=-words.to(device),
            latents=noise.to(device).clone(),
            num_inference_steps=4,
            output_type="pt",
            callback_on_step_end=noted,
        ).images.detach()

    expected = images(_pipeline(), "cpu")
    pipe = _pipeline().to("jax")
    pipe.unet = torch.compile(pipe.unet, backend="jax")
    pipe.vae.decode = torch.compile(pipe.vae.decode, backend="jax")
    torch.testing.assert_close(images(pipe, "jax").cpu(), expected, atol=1e-4, rtol=1e-4)
    capsys.readouterr()
    before = programs()
    images(pipe, "jax")
    drawn = [
        pipe(
            prompt_embeds=words.to("jax"),
            negative_prompt_embeds=-words.to("jax"),
            generator=torch.Generator("jax").manual_seed(5),
            num_inference_steps=2,
            output_type="pt",
        ).images
        for _ in range(2)
    ]
    assert torch.equal(*drawn)
    assert programs() - before <= 12  # of the random numbers
    assert steps == [0, 1, 2, 3] * 3
    assert "4/4" in capsys.readouterr().err  # the progress bar
    assert torch_jax.is_jax_module(pipe.vae)
