"""Credentials for the object store, and the keys of the URLs that the Dispatcher signs."""
