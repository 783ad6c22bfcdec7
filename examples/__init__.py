"""Whole applications on device ``jax``; each is a package with a README of its own."""
