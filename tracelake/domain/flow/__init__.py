"""How much may run at once, and what waits."""
