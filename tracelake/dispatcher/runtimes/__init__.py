"""Where tasks run, and the two runtimes that the Dispatcher serves itself: its own process, and functions."""
