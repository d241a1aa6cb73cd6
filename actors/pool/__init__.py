"""The graph processes, seen from outside: started, placed, watched, stopped."""
