"""SQL over granted datasets."""
