"""Bundles of user code: pushed, checked, listed, and served to the processes that run them."""
