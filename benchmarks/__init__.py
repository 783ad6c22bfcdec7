"""Benchmarks: ``python -m benchmarks`` (``make bench``). They print medians and ratios."""
