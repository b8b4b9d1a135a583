"""Rules of sources: the slots of a schedule, what becomes of them, and the signatures of webhooks."""
