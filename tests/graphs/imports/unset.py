"""Needs a variable that nobody set."""

import os

from good import graph

KEY = os.environ["A_KEY_THAT_NOBODY_SET"]

__all__ = ["KEY", "graph"]
