"""The example's node graph: a video pipeline whose models move between threads, held to the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import torch_jax
from examples.video_pipeline import __main__ as program
from examples.video_pipeline import training
from examples.video_pipeline.application import (
    Interrupted,
    Result,
    Workers,
    encode,
    load,
    make_video,
    offload,
)
from examples.video_pipeline.compare import KINDS, LIMIT, differences, failures, kind
from examples.video_pipeline.models import Models, build
from tests.support.compare import assert_same

pytestmark = pytest.mark.xdist_group("video_pipeline")
REQUESTS = program.requests(quick=True)  # the second one is interrupted
STAGES = {"text encoder": "encode", "transformer": "denoise", "vae": "decode"}
Run = tuple[program.Session, Models]


@pytest.fixture
def workers():
    made = Workers()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cpu() -> program.Session:
    return program.run(REQUESTS, "cpu")[0]


@pytest.fixture(scope="module")
def eager() -> Run:
    return program.run(REQUESTS, "jax")


@pytest.fixture(scope="module")
def compiled() -> Run:
    return program.run(REQUESTS, "jax", compiled=True)


def assert_held(session: program.Session, expected: program.Session) -> None:
    """Every stage of every run that was not interrupted is the CPU's, but for rounding."""
    assert [r is None for r in session.results] == [r.interrupt_after is not None for r in REQUESTS]
    for ours, theirs in zip(session.finished, expected.finished, strict=True):
        assert failures(ours, theirs) == []


# --- the graph and the comparison themselves, on the CPU ------------------------------------------


def test_models_are_loaded_used_and_offloaded_on_three_threads_and_on_others_next_time(cpu):
    for session in cpu.finished:
        for model, use in STAGES.items():
            nodes = (f"load {model}", use, f"offload {model}")
            assert len({session.threads[node] for node in nodes}) == 3
    runs = [[session.threads[node] for node in STAGES.values()] for session in cpu.finished]
    assert all(map(str.__ne__, runs[0], runs[1]))


@pytest.mark.slow
def test_an_interrupted_run_stops_in_the_loop_and_leaves_its_models_loaded(workers):
    models = build()
    with pytest.raises(Interrupted, match="after step 2"):
        make_video(workers, models, replace(REQUESTS[0], interrupt_after=1), "jax")
    where = [model.device.type for model in models.modules.values()]
    assert where == ["cpu", "jax", "jax"]


@pytest.mark.parametrize("change", ["prompt", "weights", "seed"])
def test_the_comparison_sees_what_is_not_rounding(workers, cpu, change):
    models, request = build(), REQUESTS[0]
    if change == "weights":
        for model in models.modules.values():
            for weight in model.parameters():
                weight.data = weight.data.bfloat16().float()
    elif change == "prompt":
        request = replace(request, prompt="a bat cakes a bake")
    else:
        request = replace(request, seed=7)
    found = differences(make_video(workers, models, request, "cpu"), cpu.results[0])
    assert found["frames"] > 20 * LIMIT
    assert found["latents 1"] > 20 * LIMIT
    assert change == "seed" or found["prompt embeddings"] > 20 * LIMIT


def test_a_stage_that_is_missing_differs(cpu):
    theirs = cpu.results[0]
    less = {stage: value for stage, value in theirs.stages.items() if stage != "latents 2"}
    assert differences(replace(theirs, stages=less), theirs)["latents 2"] == float("inf")
    assert {kind(stage) for stage in theirs.stages} == set(KINDS)


# --- on device jax --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_prompt_is_encoded_by_a_model_that_another_thread_loaded(workers, cpu):
    models, result = build(), Result()
    encoder = workers.submit(load, models.text_encoder, "jax")
    run = torch.inference_mode()(encode)
    embeddings = workers.submit(run, encoder, models, REQUESTS[0], result)
    workers.submit(offload, encoder, embeddings).result()
    assert {embedding.device.type for embedding in embeddings.result()} == {"jax"}
    for stage, actual in result.stages.items():
        torch.testing.assert_close(actual, cpu.results[0].stages[stage], rtol=0, atol=LIMIT)


@pytest.mark.slow
def test_an_eager_graph_is_the_cpus(eager, cpu):
    assert torch_jax.config.get("cpu_fallback") == "error"
    assert_held(eager[0], cpu)


@pytest.mark.slow
def test_a_compiled_graph_is_the_cpus(compiled, cpu):
    assert_held(compiled[0], cpu)


@pytest.mark.slow
def test_no_model_is_compiled_again_for_later_steps_and_reloads(compiled):
    session, _ = compiled
    for name, counts in session.counts("recorded").items():
        assert counts[-1] > counts[0] > 0, (name, session.told[-1])
    for name, counts in session.counts("compiles").items():
        assert counts[-1] == counts[0], (name, session.told[-1])


@pytest.mark.slow
def test_the_table_has_a_line_for_each_stage(eager, compiled, cpu):
    lines = program.table(cpu, eager[0], compiled[0]).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", *KINDS]


@pytest.mark.slow
def test_graphs_at_the_same_time_do_not_disturb_one_another(eager, compiled, cpu):
    both = [eager[1], compiled[1]] * 3
    requests = [REQUESTS[0], REQUESTS[0], REQUESTS[1], REQUESTS[1], REQUESTS[2], REQUESTS[2]]

    def work(which: int) -> list:
        workers, results = Workers(), []
        for models, request in list(zip(both, requests, strict=True))[which::2]:
            try:
                results.append(make_video(workers, models, request, "jax"))
            except Interrupted:
                results.append(None)
        workers.close()
        return results

    with ThreadPoolExecutor(2) as pool:
        for cat, stopped, dogs in pool.map(work, range(2)):
            assert stopped is None
            assert failures(cat, cpu.results[0]) == []
            assert failures(dogs, cpu.results[2]) == []


# --- training mode --------------------------------------------------------------------------------


def gradients(models: Models, device: str, seed: int) -> list[torch.Tensor]:
    """Of the text encoder's loss, in the mode that it is in."""
    encoder = models.text_encoder.to(device)
    encoder.zero_grad()
    torch.manual_seed(seed)
    training.loss(encoder, training.tokens(models.tokenizer, "a cat", device)).backward()
    return [weight.grad.clone() for weight in encoder.parameters()]


@pytest.mark.slow
def test_every_dropout_of_the_text_encoder_drops_its_share(workers):
    models = build()
    ids = training.tokens(models.tokenizer, "a cat bakes a cake " * 10, "jax")
    encoder = models.text_encoder.to("jax")
    layers = workers.submit(training.dropped, encoder, ids).result()
    assert len(layers) == 8
    assert training.failures(layers) == []
    assert training.failures([replace(layers[0], zeros=0)])
    assert training.failures([replace(layers[0], wrong=1)])


@pytest.mark.slow
def test_gradients_with_dropout_on_hang_on_the_seed_alone(workers):
    models = build()
    models.text_encoder.train()
    first, again, other = (
        workers.submit(gradients, models, "jax", seed).result() for seed in (0, 0, 1)
    )
    torch_jax.jit(models.text_encoder)
    compiled = workers.submit(gradients, models, "jax", 0).result()
    for a, b, c, d in zip(first, again, other, compiled, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0)
        torch.testing.assert_close(d, a, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(c, a, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_gradients_with_dropout_off_are_the_cpus(workers):
    expected = workers.submit(gradients, build(), "cpu", 0).result()
    actual = workers.submit(gradients, build(), "jax", 0).result()
    assert_same(actual, expected)
