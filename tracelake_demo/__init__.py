"""`trace demo`: the whole platform on a chain of its own, shown, attacked, and checked row by row."""
