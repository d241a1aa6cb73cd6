"""The command line: reads environment and project, and starts the parts with plain values."""

__version__ = "0.1.0"
