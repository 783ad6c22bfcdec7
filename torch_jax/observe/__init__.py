"""Answers for people: implementations of operators, calls, costs, and places of tensors.

May import: capture, graphs and below. Loaded by ``import torch``: no.
"""
