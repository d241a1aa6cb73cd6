"""HTTP and SSE. Never imports a graph."""
