"""Norms of batches, layers, groups, instances, vectors and channels."""

from __future__ import annotations

from random import Random

from tests.calls.call import FLOATS, Call, T, call, chance, size, sizes, some, tensor, within


def layer(r: Random) -> Call:
    """``layer_norm`` and ``rms_norm`` over some of the last dims."""
    shape, dtype = sizes(r, r.randint(1, 4), 4), r.choice(FLOATS)
    normalized = shape[-r.randint(1, len(shape)) :]
    root = chance(r, 0.4)
    parameters = {name: tensor(r, normalized, _other(r, dtype)) for name in ("weight", "bias")}
    if root:
        del parameters["bias"]
    return call(
        "F.rms_norm" if root else "F.layer_norm",
        tensor(r, shape, dtype),
        normalized,
        within=within(r),
        **some(r, **parameters, eps=r.choice((1e-5, 0.1))),
    )


def _other(r: Random, dtype: str) -> str:
    """Seldom another dtype, which is refused or taken."""
    return "float32" if chance(r, 0.1) else dtype


def batch(r: Random) -> Call:
    """``batch_norm``, training or not, with running averages or without."""
    channels, dtype = size(r, 4), r.choice(FLOATS)
    shape = (size(r, 4), channels, *sizes(r, r.randint(0, 3), 3))
    training = chance(r, 0.6)
    averages = (
        (T((channels,), dtype), T((channels,), dtype, values="positive"))
        if not training or chance(r, 0.5)
        else (None, None)
    )
    parameters = {name: tensor(r, (channels,), dtype) for name in ("weight", "bias")}
    return call(
        "F.batch_norm",
        tensor(r, shape, dtype),
        *averages,
        training=training,
        within=within(r),
        **some(r, **parameters, momentum=r.choice((0.0, 0.1, 1.0)), eps=r.choice((1e-5, 0.1))),
    )


def module(r: Random) -> Call:
    """Batch norms as modules, with their buffers."""
    rank = r.choice((1, 2, 3))
    shape = (size(r, 4), 3, *sizes(r, rank, 3))
    options = some(r, momentum=r.choice((None, 0.3)), affine=False, track_running_stats=False)
    return call(
        "module",
        f"{r.choice(('BatchNorm', 'InstanceNorm'))}{rank}d",
        {"num_features": 3, **options},
        tensor(r, shape, r.choice(("float32", "float64"))),
        train=chance(r, 0.6),
        within=within(r),
    )


def group(r: Random) -> Call:
    """``group_norm``; now and then groups that do not divide the channels."""
    groups, dtype = r.choice((1, 2, 3)), r.choice(FLOATS)
    channels = groups * r.randint(1, 3) + (1 if chance(r, 0.05) else 0)
    shape = (size(r, 3), channels, *sizes(r, r.randint(0, 3), 3))
    parameters = {name: tensor(r, (channels,), dtype) for name in ("weight", "bias")}
    options = some(r, **parameters, eps=r.choice((1e-5, 0.1)))
    input = tensor(r, shape, dtype)
    if input.layout == "channels_last":  # else PyTorch's CPU may end with a segmentation fault
        input = input._replace(grad=True)
    return call("F.group_norm", input, groups, within=within(r), **options)


def instance(r: Random) -> Call:
    """``instance_norm`` from the input, or from running averages."""
    channels, dtype = size(r, 3), r.choice(FLOATS)
    shape = (size(r, 3), channels, *sizes(r, r.randint(1, 3), 4))
    averages = {}
    if chance(r, 0.4):
        averages = {
            "running_mean": T((channels,), dtype),
            "running_var": T((channels,), dtype, values="positive"),
        }
    parameters = {name: tensor(r, (channels,), dtype) for name in ("weight", "bias")}
    return call(
        "F.instance_norm",
        tensor(r, shape, dtype),
        within=within(r),
        **averages,
        **some(r, **parameters, use_input_stats=chance(r, 0.7), momentum=0.3),
    )


def vector(r: Random) -> Call:
    """Norms of vectors, and what is divided by them."""
    shape, dtype = sizes(r, r.randint(0, 3), 4), r.choice((*FLOATS, "complex64"))
    dim = r.choice((None, -1, 0, tuple(range(len(shape)))))
    if chance(r, 0.3):
        options = some(r, p=r.choice((1.0, 2.0, 3.0)), dim=r.choice((0, -1)), eps=0.1)
        return call("F.normalize", tensor(r, shape, dtype), within=within(r), **options)
    order = r.choice((0, 1, 2, 3, 0.5, -1, float("inf"), -float("inf")))
    options = {"dim": dim, **some(r, keepdim=chance(r, 0.5))}
    return call(
        "torch.linalg.vector_norm", tensor(r, shape, dtype), order, within=within(r), **options
    )


def response(r: Random) -> Call:
    """``local_response_norm``."""
    shape = (size(r, 3), size(r, 5), *sizes(r, r.randint(1, 2), 3))
    options = some(r, alpha=0.5, beta=0.75, k=2.0)
    return call(
        "F.local_response_norm", tensor(r, shape), r.randint(1, 4), within=within(r), **options
    )


CALLS = (layer, layer, batch, batch, module, group, group, instance, vector, response)
