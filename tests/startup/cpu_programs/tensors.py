"""Tensors, modules and optimizers."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.startup.cpu_programs import model, program


@program
def params_util():
    m = model()
    nn.utils.parameters_to_vector(m.parameters())
    m[0] = nn.utils.parametrizations.weight_norm(m[0])
    nn.utils.prune.l1_unstructured(m[2], "weight", 0.5)
    m(torch.ones(1, 4)).sum().backward()
    return (
        nn.utils.clip_grad_norm_(m.parameters(), 1.0),
        m.state_dict(),
        nn.utils.rnn.pad_sequence([torch.ones(2), torch.ones(3)]),
    )


@program
def spectral():
    torch.manual_seed(0)
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    o = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    return (m(torch.ones(1, 3)), o(torch.ones(1, 3)))


@program
def skip_init():
    return nn.utils.skip_init(nn.Linear, 2, 2).weight.device


@program
def testing_close():
    torch.testing.assert_close(torch.ones(2), torch.zeros(2))


@program
def quantized():
    m = torch.ao.quantization.quantize_dynamic(model(), {nn.Linear}, dtype=torch.qint8)
    return (
        m(torch.ones(1, 4)),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        torch.fake_quantize_per_tensor_affine(torch.ones(2), 0.1, 0, 0, 255),
    )


@program
def sparse():
    i = torch.tensor([[0, 1], [1, 0]])
    s = torch.sparse_coo_tensor(i, torch.ones(2), (2, 2))
    return (
        s,
        s.to_dense(),
        s @ torch.ones(2, 2),
        s.coalesce().indices(),
        s.to_sparse_csr(),
        torch.ones(2, 2).to_sparse(),
    )


@program
def sparse_embedding():
    e = nn.Embedding(4, 2, sparse=True)
    o = torch.optim.SparseAdam(e.parameters())
    e(torch.tensor([1, 1])).sum().backward()
    o.step()
    return e.weight.grad


@program
def semi_structured():
    from torch.sparse import to_sparse_semi_structured

    return to_sparse_semi_structured(torch.ones(32, 32).half())


@program
def nested():
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    j = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    return (n.to_padded_tensor(0.0), j.to_padded_tensor(0.0), j.sin().values())


@program
def nested_sdpa():
    j = (
        torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)], layout=torch.jagged)
        .unflatten(-1, (2, 2))
        .transpose(1, 2)
    )
    return nn.functional.scaled_dot_product_attention(j, j, j).values()


@program
def named():
    x = torch.ones(2, 3, names=("a", "b"))
    return (x.sum("a"), x.align_to("b", "a"), repr(x))


@program
def benchmark():
    import torch.utils.benchmark as b

    t = b.Timer("x+1", globals={"x": torch.ones(2)})
    return (type(t.timeit(2)).__name__, type(t.blocked_autorange(min_run_time=0.001)).__name__)


@program
def printing():
    return (
        repr(torch.ones(2)),
        repr(torch.tensor([1.5, float("nan")])),
        f"{torch.tensor(1.5):.2f}",
        repr(nn.Parameter(torch.ones(1))),
        repr(torch.ones(2, device="meta")),
        str(torch.ones(2).untyped_storage())[:30],
    )


@program
def dlpack():
    import numpy as np

    x = torch.arange(3.0)
    return (
        torch.from_dlpack(x),
        np.from_dlpack(x),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
        torch.from_dlpack(np.arange(3)),
        x.__dlpack_device__(),
        torch.from_numpy(np.arange(2)),
        x.numpy(),
    )


@program
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        return (torch.empty(2), torch.ones(2).resize_(4))
    finally:
        torch.use_deterministic_algorithms(False)


@program
def data_assign():
    p = nn.Parameter(torch.ones(2))
    p.data = torch.zeros(3)
    q = torch.ones(2)
    q.data = torch.ones(2, dtype=torch.double)
    return (p, q, p.data)


@program
def data_assign_bad():
    torch.ones(2).data = 3


@program
def data_assign_meta():
    p = nn.Parameter(torch.ones(2))
    p.data = torch.ones(2, device="meta")


@program
def module_moves():
    m = model()
    w = m[0].weight
    m.double()
    a = m[0].weight is w
    m.half()
    m.to("meta")
    return (a, [p.device for p in m.parameters()], m.to_empty(device="cpu")[0].weight.shape)


@program
def module_moves_bad():
    model().to("cuda")


@program
def module_to_bad():
    model().to("nonsense")


@program
def module_swap():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        m = model()
        w = m[0].weight
        m.double()
        return (m[0].weight is w, m.state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@program
def module_hooks_err():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: 1 / 0)
    x.sum().backward()


@program
def backward_errors():
    torch.ones(2, requires_grad=True).backward()


@program
def lazy():
    m = nn.LazyLinear(2)
    m(torch.ones(1, 3))
    return (m.weight.shape, nn.LazyConv2d(1, 1).double().weight.dtype)


@program
def optimizers():
    r = []
    for k in (
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.SGD,
        torch.optim.RMSprop,
        torch.optim.Adafactor,
    ):
        m = model()
        o = k(m.parameters(), lr=0.1)
        m(torch.ones(1, 4)).sum().backward()
        o.step()
        r.append(list(m.parameters()))
        r.append(str(o.state_dict()["param_groups"]))
    return r


@program
def optim_fused():
    m = model()
    o = torch.optim.AdamW(m.parameters(), fused=True)
    m(torch.ones(1, 4)).sum().backward()
    o.step()
    return list(m.parameters())


@program
def optim_foreach():
    m = model()
    o = torch.optim.AdamW(m.parameters(), foreach=True)
    m(torch.ones(1, 4)).sum().backward()
    o.step()
    return list(m.parameters())


@program
def transformer():
    torch.manual_seed(0)
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
    x = torch.ones(2, 3, 4)
    with torch.no_grad():
        return (
            m(x),
            m(x, src_key_padding_mask=torch.tensor([[False, False, True], [False, True, True]])),
        )


@program
def rnn():
    torch.manual_seed(0)
    return nn.LSTM(3, 2)(torch.ones(2, 1, 3))


@program
def sdpa_kernels():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(
            torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4)
        )


@program
def grad_modes():
    with torch.inference_mode():
        x = torch.ones(2)
    return (x.is_inference(), x + 1)


@program
def inference_err():
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(1)


@program
def data_ptrs():
    x = torch.ones(4)
    return (x.data_ptr() == x.untyped_storage().data_ptr(), x[1:].data_ptr() - x.data_ptr())


@program
def subclass():

    class T(torch.Tensor):
        pass

    t = torch.ones(2).as_subclass(T)
    return (
        type(t + 1).__name__,
        type(copy.deepcopy(t)).__name__,
        repr(t),
        t.data_ptr() != 0,
        type(t.data).__name__,
    )


@program
def tensorboardish():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as f:
        torch.ones(2, 2) @ torch.ones(2, 2)
    return f.get_total_flops()


@program
def weak():
    import weakref

    x = torch.ones(2)
    r = weakref.ref(x)
    s = x.untyped_storage()
    del x
    return (r() is None, s.nbytes())


@program
def swa():
    from torch.optim.swa_utils import AveragedModel

    a = AveragedModel(model())
    a.update_parameters(model())
    return a(torch.ones(1, 4))


@program
def mkldnn():
    return torch.ones(2, 2).to_mkldnn().to_dense()


@program
def testing_internal():
    import torch.testing._internal.common_methods_invocations as m

    return len(m.op_db)
