"""Cannot be imported, for a reason that is no Unicode text."""

raise ImportError("no file \udcff")
