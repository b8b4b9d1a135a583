"""Events: accepted from tasks and users, and routed to the jobs that depend on them."""
