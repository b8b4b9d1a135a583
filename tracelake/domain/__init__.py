"""The rules of Trace as pure functions and values: no I/O, no clock, no SQL."""
