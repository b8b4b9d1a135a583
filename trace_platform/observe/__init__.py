"""How Trace is seen from outside: what it says (`logs`), counts (`metrics`, `doorway`) and traces (`tracing`)."""
