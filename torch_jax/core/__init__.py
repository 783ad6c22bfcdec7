"""What is under way in this thread and process: the tracer, numbers, errors, policies, waking.

May import: config, _private. Loaded by ``import torch``: in part.
"""
