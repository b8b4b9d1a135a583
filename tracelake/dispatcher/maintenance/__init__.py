"""Background loops of the Dispatcher. All run on the skeleton in `loop.py`; tests step them."""
