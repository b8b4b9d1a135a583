"""One file per verb, in the groups of `trace --help`."""
