"""One module for each pair of port and backend, so that pairs stand together."""
