-- The audit of queries is kept for a while, and then deleted.

CREATE INDEX idx_query_audit_age ON query_audit (stored_at);
COMMENT ON INDEX idx_query_audit_age IS 'What is old enough to be deleted.';
