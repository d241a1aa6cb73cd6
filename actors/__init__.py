"""Messages, leases and processes: what carries a run from its row to its graph and back."""
