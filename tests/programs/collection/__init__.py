"""The programs, a file for each kind of thing that changes between calls.

A file imports what programs are written with, and nothing of another file.
"""
