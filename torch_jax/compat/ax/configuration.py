"""``torchax.config``: the settings of an environment."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Configuration:
    """Settings by torchax's names, of which only ``treat_cuda_as_jax_device`` has an effect.

    The others ask for behaviour that is always on here: dtypes are PyTorch's, views are views,
    CPU scalars mix with tensors of the device. ``torch_jax.trace_ops`` shows operators as they run.
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
