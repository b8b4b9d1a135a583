"""The two doors of the Dispatcher: who may ask, and what is asked."""
