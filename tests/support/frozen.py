"""Imported last by the process that others are forked from.

Python's garbage collector then leaves alone what has been imported there, and a fork neither copies
that memory nor takes a second more to end.
"""

import gc

gc.freeze()
