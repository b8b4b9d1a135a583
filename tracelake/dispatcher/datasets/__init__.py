"""Datasets: which files hold them, as of which commit, and who may read them."""
