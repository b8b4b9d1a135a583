-- Names that 0026 left. Changes the catalogue only.

CREATE OR REPLACE TRIGGER query_audit_never_changes BEFORE UPDATE ON query_audit
    FOR EACH ROW WHEN (NEW IS DISTINCT FROM OLD) EXECUTE FUNCTION refuse_change('an audit row never changes');
ALTER TABLE task_logs RENAME COLUMN said_at TO received_at;
ALTER TABLE task_logs RENAME CONSTRAINT task_logs_said_at_not_null TO task_logs_received_at_not_null;
