"""Revisions by number. They never import models: history does not change with those."""
