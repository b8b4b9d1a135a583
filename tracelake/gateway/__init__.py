"""The only public API."""
