"""Fails when it is imported."""

raise RuntimeError("the moon is in the wrong house")
