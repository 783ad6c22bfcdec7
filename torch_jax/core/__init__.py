"""State of this thread and process: recorder, tracer, errors, policies, waking.

May import: config, _private. Loaded by ``import torch``: in part.
"""
