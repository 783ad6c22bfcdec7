"""CUDA graphs where they can be had, and the plain loop elsewhere."""

import torch

torch.manual_seed(0)
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
layer = torch.nn.Linear(4, 4).to(device)
static_input = torch.randn(2, 4).to(device)
try:
    if not cuda:
        raise RuntimeError("no graphs")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        static_output = layer(static_input)
    g.replay()
except RuntimeError as error:
    assert "torch_jax.jit" in str(error) or not cuda
    static_output = layer(static_input)
print(f"{static_output.sum().item():.4f}")
if cuda:
    assert not torch.cuda.is_current_stream_capturing()
    layer = torch.cuda.make_graphed_callables(layer, (static_input,))
print(f"{layer(static_input).square().sum().item():.4f}")
