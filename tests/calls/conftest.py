"""Thousands of shapes, each compiled once: compiled programs are dropped now and then."""

from tests.support.executables import few_executables_at_a_time

__all__ = ["few_executables_at_a_time"]
