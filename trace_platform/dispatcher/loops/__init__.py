"""What the Dispatcher does without being asked. Every loop has one skeleton (`loop.py`) and is stepped in tests."""
