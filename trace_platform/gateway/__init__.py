"""The only public door."""
