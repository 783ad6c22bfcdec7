"""Text to video with diffusers' WanPipeline, run by a node graph over worker threads."""

import os

# Everything is built in code: nothing is looked up, and what else could be installed is not told.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
