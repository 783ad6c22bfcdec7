"""A model trained by many processes: PyTorch's ``DistributedDataParallel``, on any device."""
