"""`trace demo`: runs the whole platform on a test chain, attacks it, and checks every row."""
