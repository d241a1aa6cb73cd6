"""The schema's history: one file a revision, applied by ``persistence.migrate``."""
