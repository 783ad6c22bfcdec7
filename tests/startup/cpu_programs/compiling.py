"""Programs that are traced, compiled, exported or transformed."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import nn

from tests.startup.cpu_programs import model, program


def compiled(backend):
    torch._dynamo.reset()
    m = model()
    x = torch.ones(3, 4)
    f = torch.compile(m, backend=backend)
    loss = f(x).sum()
    loss.backward()
    return (loss, [p.grad for p in m.parameters()])


@program
def compile_eager():
    return compiled("eager")


@program
def compile_aot_eager():
    return compiled("aot_eager")


@program
def compile_inductor():
    torch._dynamo.reset()
    return torch.compile(lambda x: (x * 2).sin())(torch.ones(3))


@program
def compile_factory():
    torch._dynamo.reset()
    return torch.compile(lambda: torch.arange(5).sum())()


@program
def compile_random():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.compile(lambda x: x + torch.rand(3), backend="aot_eager")(torch.ones(3))


@program
def compile_explain():
    torch._dynamo.reset()
    e = torch._dynamo.explain(lambda x: (print(""), x + 1)[1])(torch.ones(2))
    return (e.graph_count, e.graph_break_count)


@program
def compile_breaks():
    torch._dynamo.reset()

    def f(x):
        x.untyped_storage()
        torch.Generator().manual_seed(0)
        x.data_ptr()
        x.data = x + 1
        str(x)
        return x * 2

    return torch.compile(f, backend="eager")(torch.ones(2))


@program
def compile_fullgraph():
    torch._dynamo.reset()

    def f(x):
        with torch.no_grad():
            y = x.detach().clone()
        y.data = y.data * 2
        return y * torch.tensor(2.0)

    return torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


@program
def compile_accel():
    torch._dynamo.reset()

    def f(x):
        if torch.cuda.is_available():
            return x + 1
        torch.manual_seed(0)
        return x * 2 + torch.rand(2)

    return torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


@program
def compile_checkpoint():
    from torch.utils.checkpoint import checkpoint

    torch._dynamo.reset()
    m = model()
    x = torch.ones(2, 4, requires_grad=True)
    torch.compile(lambda x: checkpoint(m, x, use_reentrant=False), backend="aot_eager")(
        x
    ).sum().backward()
    return x.grad


@program
def compile_optimizer():
    torch._dynamo.reset()
    m = model()
    o = torch.optim.Adam(m.parameters())
    m(torch.ones(1, 4)).sum().backward()
    torch.compile(o.step, backend="aot_eager")()
    return list(m.parameters())


@program
def compile_autocast():
    torch._dynamo.reset()

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    return torch.compile(f, backend="aot_eager")(torch.ones(2, 2))


@program
def compile_cond():
    torch._dynamo.reset()
    return (
        torch.compile(
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend="eager"
        )(torch.ones(2)),
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),)),
    )


@program
def hops():
    from torch._higher_order_ops.map import map as m
    from torch._higher_order_ops.scan import scan

    return (
        m(lambda r: r * 2, torch.ones(3, 2)),
        scan(lambda c, r: (c + r, c * r), torch.zeros(2), torch.ones(3, 2)),
        torch.while_loop(lambda y: y.sum() < 100, lambda y: (y * 2,), (torch.ones(2),)),
    )


@program
def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.ones(1, 1, 16, 16)
    b = create_block_mask(lambda b, h, q, k: q >= k, None, None, 16, 16, device="cpu")
    return flex_attention(q, q, q, block_mask=b)


@program
def jit_script():

    @torch.jit.script
    def f(x):
        return x * 2

    return (f(torch.ones(2)), torch.jit.script(model())(torch.ones(1, 4)), f.code)


@program
def jit_script2():

    class M(nn.Module):
        def forward(self, x):
            y = torch.zeros([2], device=x.device)
            torch.manual_seed(0)
            if torch.cuda.is_available():
                return x
            return y + x.to(torch.device("cpu")) + torch.rand([2])

    return torch.jit.script(M())(torch.ones(2))


@program
def jit_script_calls():

    def f(x):
        y = x.data
        p = x.data_ptr() != 0
        return (y.clone(), p, x.is_pinned(), x.pin_memory)

    return torch.jit.script(f)(torch.ones(2))


@program
def jit_script_gen():

    def f(x, g: torch.Generator):
        return torch.rand([2], generator=g)

    return torch.jit.script(f)(torch.ones(2), torch.Generator().manual_seed(0))


@program
def jit_script_stream():

    def f(x: torch.Tensor):
        x.pin_memory()
        return x

    return torch.jit.script(f)(torch.ones(2))


@program
def jit_trace():
    m = model()
    t = torch.jit.trace(m, torch.ones(1, 4))
    b = io.BytesIO()
    torch.jit.save(t, b)
    b.seek(0)
    return (
        torch.jit.load(b)(torch.ones(1, 4)),
        t.code,
        torch.jit.freeze(t.eval())(torch.ones(1, 4)),
    )


@program
def fx_trace():
    g = torch.fx.symbolic_trace(model())
    return (g.code, g(torch.ones(1, 4)), pickle.loads(pickle.dumps(g))(torch.ones(1, 4)))


@program
def fx_make():
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x: x.clone().add_(1).sin(), tracing_mode="symbolic")(torch.ones(3)).code


@program
def fakes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3)
        y = x.sin() + torch.rand(3, generator=None)
    return (repr(y), y.untyped_storage().nbytes())


@program
def func_api():
    from torch.func import (
        functionalize,
        grad,
        hessian,
        jacrev,
        jvp,
        stack_module_state,
        vmap,
    )

    def f(x):
        return (x**3).sum()

    x = torch.arange(3.0)
    return (
        grad(f)(x),
        vmap(torch.sin)(x),
        jacrev(torch.sin)(x),
        hessian(f)(x),
        jvp(torch.sin, (x,), (x,)),
        functionalize(lambda x: x.clone().add_(1))(x),
        stack_module_state([model(), model()]),
    )


@program
def forward_ad():
    import torch.autograd.forward_ad as fwAD

    with fwAD.dual_level():
        return fwAD.unpack_dual(torch.sin(fwAD.make_dual(torch.ones(2), torch.ones(2)))).tangent


@program
def export():
    e = torch.export.export(model(), (torch.ones(1, 4),))
    b = io.BytesIO()
    torch.export.save(e, b)
    b.seek(0)
    loaded = torch.export.load(b)
    return (e.graph_module.code, loaded.module()(torch.ones(1, 4)))


@program
def export_dynamic():
    e = torch.export.export(
        model(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim("b")},)
    )
    return (str(e.graph_signature), e.run_decompositions().graph_module.code)


@program
def custom_op():

    @torch.library.custom_op("cpuprog::f", mutates_args=())
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @f.register_fake
    def _(x):
        return torch.empty_like(x)

    return (f(torch.ones(2)), torch.compile(f, backend="aot_eager")(torch.ones(2)))


@program
def autograd_function():

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = torch.ones(2, requires_grad=True)
    F.apply(x).sum().backward()
    return (
        x.grad,
        torch.autograd.gradcheck(torch.sin, torch.ones(2, dtype=torch.double, requires_grad=True)),
    )


@program
def amp_custom():

    class F(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            return g

    x = torch.ones(2, requires_grad=True)
    F.apply(x).sum().backward()
    return x.grad


@program
def amp_custom_noarg():
    torch.amp.custom_fwd(lambda c, x: x)


@program
def anomaly():
    with torch.autograd.detect_anomaly():
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).backward()


@program
def functional_tensor_mode():
    from torch.overrides import TorchFunctionMode

    seen = []

    class M(TorchFunctionMode):
        def __torch_function__(self, f, t, a=(), k=None):
            seen.append(getattr(f, "__name__", str(f)))
            return f(*a, **k or {})

    with M():
        x = torch.ones(2)
        x.data.data_ptr()
        torch.Generator()
        x.cpu()
        torch.save(x, io.BytesIO())
        copy.deepcopy(x)
        repr(x)
    return seen


@program
def dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, f, t, a=(), k=None):
            seen.append(str(f))
            return f(*a, **k or {})

    with M():
        x = torch.ones(2) @ torch.ones(2)
        copy.deepcopy(x)
        repr(x)
        nn.Linear(2, 2).double()
        torch.nn.functional.scaled_dot_product_attention(
            torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4)
        )
    return seen


@program
def cpp_pytree():
    import torch.utils._pytree as p

    return p.tree_map(lambda x: x + 1, {"a": torch.ones(1)})


@program
def vmap_rand():
    torch.manual_seed(0)
    return torch.func.vmap(lambda x: x + torch.rand(1), randomness="different")(torch.ones(3))
