"""ABI: the events of a contract, and logs decoded into their typed columns."""
