"""A node-graph application: every step of a video is a node, every node runs on a worker thread.

Models wait on the CPU. A graph loads each one when it is needed and offloads it afterwards, always
on another thread than the one that used it, and loads the VAE while the transformer still denoises.
Nothing here knows ``torch_jax``; the device is an argument.
"""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import WanPipeline
from diffusers.video_processor import VideoProcessor
from torch import Tensor, nn

from examples.video_pipeline.models import Models


@dataclass(frozen=True)
class Request:
    """What a user asks for. ``interrupt_after`` is the step after which the user presses stop."""

    prompt: str
    negative: str = "blurred, static"
    seed: int = 0
    steps: int = 4
    frames: int = 5
    size: int = 32
    length: int = 48  # tokens, up to which prompts are padded
    interrupt_after: int | None = None


class Interrupted(Exception):
    """The user pressed stop."""


@dataclass
class Result:
    """What a graph leaves behind, all of it on the CPU.

    ``stages`` has the prompt embeddings, the latents after each step and the frames, ``seconds``
    and ``threads`` what each node took and where it ran.
    """

    stages: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    threads: dict[str, str] = field(default_factory=dict)


# --- threads --------------------------------------------------------------------------------------


class Workers:
    """Threads with a queue each, which take turns.

    Loading, using and offloading a model are on three threads, and on others in the next run.
    """

    def __init__(self, count: int = 4) -> None:
        names = (f"worker-{i}" for i in range(count))
        self.threads = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in names]
        self._turns = itertools.cycle(self.threads)

    def submit(self, function: Callable[..., Any], *inputs: Any) -> Future:
        """Run a node on the next thread, when those of its inputs that are nodes are done."""
        return next(self._turns).submit(_when_ready, function, inputs)

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown()


def _when_ready(function: Callable[..., Any], inputs: tuple) -> Any:
    """Wait for the inputs; raises what one of them raised.

    Nodes are submitted after their inputs and queues keep their order, so no two wait for another.
    """
    return function(*(i.result() if isinstance(i, Future) else i for i in inputs))


# --- nodes ----------------------------------------------------------------------------------------


def load(model: nn.Module, device: torch.device, _after: Any = None) -> nn.Module:
    """Move a model to the device."""
    return model.to(device)


def offload(model: nn.Module, _after: Any = None) -> None:
    """Move a model back to the CPU."""
    model.to("cpu")


def encode(text_encoder: nn.Module, models: Models, request: Request, result: Result) -> tuple:
    """The embeddings of the prompt and of the negative prompt, [1, length, width]."""
    pipe = pipeline(models, tokenizer=models.tokenizer, text_encoder=text_encoder)
    embeddings = pipe.encode_prompt(
        request.prompt, request.negative, max_sequence_length=request.length
    )
    result.stages["prompt embeddings"], result.stages["negative embeddings"] = (
        embedding.cpu() for embedding in embeddings
    )
    return embeddings


def denoise(
    transformer: nn.Module, embeddings: tuple, models: Models, request: Request, result: Result
) -> Tensor:
    """Latents [1, 16, t, h, w]; they start as the same noise of a CPU generator on any device."""

    def after_step(_pipe: Any, step: int, _time: Tensor, values: dict) -> dict:
        result.stages[f"latents {step + 1}"] = values["latents"].cpu()
        if step == request.interrupt_after:
            raise Interrupted(f"stopped after step {step + 1}")
        return values

    prompt, negative = embeddings
    return pipeline(models, transformer=transformer)(
        prompt_embeds=prompt, negative_prompt_embeds=negative, num_inference_steps=request.steps,
        height=request.size, width=request.size, num_frames=request.frames,
        generator=torch.Generator().manual_seed(request.seed), output_type="latent",
        callback_on_step_end=after_step,
    ).frames  # fmt: skip


def decode(vae: nn.Module, latents: Tensor, result: Result) -> Tensor:
    """Frames [1, frames, 3, size, size] in 0..1, on the CPU."""
    mean, std = (
        torch.tensor(values, device=latents.device).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    video = vae.decode(latents * std + mean, return_dict=False)[0]
    frames = VideoProcessor().postprocess_video(video, output_type="pt").cpu()
    result.stages["frames"] = frames
    return frames


def pipeline(models: Models, **parts: Any) -> WanPipeline:
    """A pipeline of some of the parts; it runs where its models are."""
    missing = dict.fromkeys(("tokenizer", "text_encoder", "vae", "transformer"))
    pipe = WanPipeline(**{**missing, **parts}, scheduler=models.scheduler)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# --- the graph ------------------------------------------------------------------------------------


def make_video(
    workers: Workers, models: Models, request: Request, device: torch.device | str
) -> Result:
    """Run the graph. Raises :class:`Interrupted`; models then stay wherever they were."""
    result = Result()
    nodes: list[Future] = []

    def node(name: str, function: Callable[..., Any], *inputs: Any) -> Future:
        def run(*values: Any) -> Any:
            start = time.perf_counter()
            with torch.inference_mode():  # which is on for one thread, as PyTorch's modes are
                value = function(*values)
            result.seconds[name] = time.perf_counter() - start
            result.threads[name] = threading.current_thread().name
            return value

        nodes.append(workers.submit(run, *inputs))
        return nodes[-1]

    encoder = node("load text encoder", load, models.text_encoder, device)
    embeddings = node("encode", encode, encoder, models, request, result)
    node("offload text encoder", offload, encoder, embeddings)
    transformer = node("load transformer", load, models.transformer, device, embeddings)
    latents = node("denoise", denoise, transformer, embeddings, models, request, result)
    vae = node("load vae", load, models.vae, device, transformer)
    node("offload transformer", offload, transformer, latents)
    frames = node("decode", decode, vae, latents, result)
    node("offload vae", offload, vae, frames)
    wait(nodes)
    for done in nodes:
        done.result()  # raises what a node raised
    return result
