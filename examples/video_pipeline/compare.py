"""How far a run may lie from the same run on the CPU."""

from torch import Tensor

from examples.video_pipeline.application import Result

# The largest absolute difference, in float32. XLA and PyTorch sum in different orders, and the
# limit is three times what rounding does: CPU PyTorch against itself, with each weight moved by its
# last bit, differs by 2.1e-6 in the embeddings (whose values reach 3.6), by 2.7e-6 in the latents
# (4.2) and by 3.5e-6 in the frames (1.0). Weights rounded to bfloat16 differ by 1.2e-2, 6e-3 and
# 6e-3 at least, another prompt by 4, 0.5 and 0.2.
LIMIT = 1e-5
KINDS = ("embeddings", "latents", "frames")


def differences(actual: Result, expected: Result) -> dict[str, float]:
    """The largest difference in each stage; infinite where one is missing or has another form."""
    stages = dict.fromkeys((*expected.stages, *actual.stages))
    return {
        stage: _difference(actual.stages.get(stage), expected.stages.get(stage)) for stage in stages
    }


def _difference(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return float("inf")
    return (one - other).abs().max().item()


def kind(stage: str) -> str:
    """What a stage is of: "latents 2" are latents."""
    return next(kind for kind in KINDS if kind in stage)


def failures(actual: Result, expected: Result) -> list[str]:
    """The stages that differ by more than rounding."""
    found = differences(actual, expected).items()
    # `not <=` instead of `>`, so that a NaN fails.
    return [f"{stage} differ by {d:.1e} > {LIMIT:.0e}" for stage, d in found if not d <= LIMIT]
