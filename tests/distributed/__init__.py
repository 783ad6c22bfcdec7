"""Tests of programs of many processes, each compared with the same program over gloo on the CPU."""
