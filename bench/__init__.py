"""Benchmarks: scenarios against a running server, and the saver beside LangGraph's own."""
