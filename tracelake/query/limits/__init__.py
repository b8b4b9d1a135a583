"""How many queries run at once, for how long, and for whom."""
