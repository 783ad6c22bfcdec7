"""The programs, a file for each kind of thing that changes between calls.

A file imports :mod:`tests.programs.writing` and nothing of another file.
"""
