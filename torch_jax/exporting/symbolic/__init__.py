"""Graphs whose sizes may change: their program, views, and arithmetic of sizes.

May import: graphs and below. Loaded by ``import torch``: no.
"""
