"""Commands of whoever operates a system: settings, schemas, outbox, tokens, single processes."""
