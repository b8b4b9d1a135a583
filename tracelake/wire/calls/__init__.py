"""The calls of the user API: how one is described and read, and the list of all of them."""
