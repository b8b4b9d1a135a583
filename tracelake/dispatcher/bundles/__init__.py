"""Bundles of user code: announced, uploaded, checked, listed, and served to whoever runs them."""
