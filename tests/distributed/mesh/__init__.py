"""Tests over eight virtual devices, which another process has."""
