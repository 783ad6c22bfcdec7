"""The code that a page of ``docs/`` presupposes, by its name: run before its first block."""
