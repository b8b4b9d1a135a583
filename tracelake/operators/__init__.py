"""Operators of `runtime: dispatcher`: pure functions over events, run inside the Dispatcher. They never see rows."""
