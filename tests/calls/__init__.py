"""A generator of calls: random calls of the operators of models, compared with the CPU.

PyTorch's own database of operators (``op_db``, see :mod:`tests.conformance`) has each operator, and
few ways to call one. Its samples are narrow in these respects:

- *Layouts.* Except for max pooling and two of interpolation, every tensor is contiguous; none is
  expanded, conjugated or, but for ``embedding_bag``, at an offset in its storage.
- *Kinds of argument together.* A sample sets one or two options. Attention has 25 samples: one
  has a mask, of floats and of two dims; none has a bool mask, ``scale`` or ``enable_gqa`` (the loop
  over it never passes it), keys of batch 1 or one head, other than 3 or 4 dims, or a width of
  values of its own.
- *Masks.* Bool tensors are indices in one sample of ``__getitem__`` and two of ``index_put``, which
  has four samples in all; no row is masked wholly.
- *Broadcasts and sizes.* Batch dims of 1 beside others, and zero-size dims, are missing wherever an
  operator has no size of its own to be 0: in convolutions, pooling, losses, embeddings, attention.
- *Dtypes.* All floating arguments of a sample have one dtype: never a mask of float32 with queries
  of bfloat16, or a weight of another dtype, which must be refused.
- *Contexts.* No sample runs under ``autocast``, ``no_grad``, ``inference_mode``, ``sdpa_kernel``.
- *Modules.* Recurrent networks and packed sequences are in the database of modules, with the
  shapes of one example.

A family is a function of a ``random.Random`` that draws a :class:`~tests.calls.call.Call`;
:mod:`tests.calls.families` is the table of them. Each call runs on the CPU and on device jax
(:mod:`tests.calls.compare`), and one that fails prints a line of Python that repeats it.
"""
