"""Rows: the durable truth. Imports nothing else of ours."""
