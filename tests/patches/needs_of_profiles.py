"""Proofs that PyTorch's profiler needs replacements."""

import json
import pathlib
import tempfile

from torch.autograd import DeviceType
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile

from tests.patches.needs import need, ones
from torch_jax._private import jax_profiler
from torch_jax.device.trace import profile as device_profile

_PROFILE = "torch.autograd.profiler.profile"


def _profiled(**options):
    x = ones(8, 8)
    with profile(**options) as prof:
        (x @ x).cpu()
    return prof


@need(f"{_PROFILE}.__init__")
def a_profile_of_the_device_alone_knows_its_operators():
    names = {e.name for e in _profiled(activities=[ProfilerActivity.PrivateUse1]).events()}
    return "aten::mm" in names


@need(f"{_PROFILE}._start_trace", f"{_PROFILE}._parse_kineto_results")
def profiles_have_kernels():
    return any(e.device_type == DeviceType.PrivateUse1 for e in _profiled().events())


@need(f"{_PROFILE}.__exit__")
def a_profile_ends_the_trace_of_the_device():
    prof = autograd_profile(use_device="jax")
    with prof:
        (ones(8, 8) @ ones(8, 8)).cpu()
    try:
        jax_profiler.stop(jax_profiler.start())
        return True
    finally:
        device_profile.end(prof)


@need(f"{_PROFILE}.export_chrome_trace")
def exported_files_have_kernels():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        _profiled().export_chrome_trace(str(path))
        return any(e.get("cat") == "kernel" for e in json.loads(path.read_text())["traceEvents"])
