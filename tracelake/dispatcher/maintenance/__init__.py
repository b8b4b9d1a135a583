"""Loops that the Dispatcher runs unasked. Every loop has one skeleton (`loop.py`) and is stepped in tests."""
