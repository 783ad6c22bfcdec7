"""Small programs that change something between the calls of one function, however it is run.

* ``collection/``: programs by what changes. Each is a generator ``program(compile)``, which makes
  its state and ``f = compile(function)``, calls ``f`` again and again, and yields all that can be
  observed.
* ``executors.py``: what ``compile`` may be. Each must give what plain calls on the device give.
* ``generator.py``: programs that nobody wrote, drawn from a seed.
"""
