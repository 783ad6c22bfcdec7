"""Benchmarks: ``python -m benchmarks`` (``make bench``). They print medians and ratios.

Settings are those that users have; a benchmark of something else changes them in its own code.
"""
