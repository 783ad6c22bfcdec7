"""``torchax.config``: what an environment is asked for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Configuration:
    """Settings by torchax's names; of these, ``treat_cuda_as_jax_device`` has something to decide.

    The others ask for what always holds here: dtypes are PyTorch's, views are views, scalars on the
    CPU mix with tensors of the device. ``torch_jax.trace_ops`` shows operators as they are called.
    """

    debug_print_each_op: bool = False
    debug_accuracy_for_each_op: bool = False
    debug_mixed_tensor: bool = False
    debug_print_each_op_operands: bool = False
    use_int32_for_index: bool = False
    allow_mixed_math_with_scalar_tensor: bool = True
    force_materialize_views: bool = False
    use_dlpack_for_data_conversion: bool = False
    treat_cuda_as_jax_device: bool = True
    internal_respect_torch_return_dtypes: bool = False
    use_tpu_flash_attention: bool = False
    shmap_flash_attention: bool = False
