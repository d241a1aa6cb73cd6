"""The command line: reads the environment and the project, and starts the parts with plain values."""

__version__ = "0.1.0"
