"""How a process proves which service it is, and which calls that allows."""
