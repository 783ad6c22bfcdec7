"""What is under way in this thread and process: recorder and tracer, errors, policies, waking.

May import: config, _private. Loaded by ``import torch``: in part.
"""
