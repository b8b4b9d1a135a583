"""Nodes: which there are, how they are asked, and what their responses mean."""
