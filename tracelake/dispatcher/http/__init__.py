"""The two APIs of the Dispatcher, for tasks and for trusted processes: authorisation and routes."""
