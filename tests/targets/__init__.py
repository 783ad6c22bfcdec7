"""Programs for chips that are elsewhere.

The tests here need no compiler but that of the CPU: its device stands for a chip, so that programs
can be run as well. ``make targets`` asks the chips' own compilers.
"""
