"""The graph process, seen from inside. Imports nothing else of ours: it is a program of its own."""
