"""Names for the printed line of a call: ``from tests.calls.repeat import *``."""

from tests.calls.call import T
from tests.calls.compare import check

__all__ = ["T", "check"]
