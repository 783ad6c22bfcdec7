"""The version, for those that must not import the package for it."""

__version__ = "0.1.0"
