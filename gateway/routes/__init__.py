"""One module a resource: parse, call, answer."""
