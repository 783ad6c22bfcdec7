"""Answers for people: what an operator does, what was called, where tensors are.

May import: capture, graphs and below. Loaded by ``import torch``: no.
"""
