-- The audit: who did what to what, when, from where, with which outcome. Entries are chained by hashes, per organisation.

CREATE TABLE audit_entries (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    happened_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    origin text NOT NULL,
    outcome text NOT NULL DEFAULT 'begun',
    code text,
    detail jsonb NOT NULL DEFAULT '{}',
    seq bigint,
    hash bytea,
    CONSTRAINT audit_entries_place_once UNIQUE (org_id, seq),
    CONSTRAINT audit_entries_known_outcome CHECK (outcome IN ('begun', 'done', 'refused', 'failed')),
    CONSTRAINT audit_entries_code_of_refusals CHECK ((code IS NOT NULL) = (outcome IN ('refused', 'failed'))),
    CONSTRAINT audit_entries_linked_whole CHECK ((seq IS NULL) = (hash IS NULL)),
    CONSTRAINT audit_entries_hash_is_sha256 CHECK (octet_length(hash) = 32)
);
COMMENT ON TABLE audit_entries IS 'Who did what to what, when, from where, with which outcome. Never changed.';
COMMENT ON COLUMN audit_entries.actor IS 'The subject of the user, as it was then.';
COMMENT ON COLUMN audit_entries.outcome IS
    'begun: the answer is not known yet or, if the entry is linked, the process ended before it was.';
COMMENT ON COLUMN audit_entries.seq IS 'The place in the chain of the organisation; NULL: not linked yet.';
COMMENT ON COLUMN audit_entries.hash IS 'SHA-256 of the hash before it and of audit_text.';
CREATE INDEX idx_audit_entries_unlinked ON audit_entries (id) WHERE seq IS NULL;
COMMENT ON INDEX idx_audit_entries_unlinked IS 'What is to be linked next.';

CREATE TABLE audit_chains (
    org_id uuid PRIMARY KEY REFERENCES orgs (id),
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    pruned_seq bigint NOT NULL DEFAULT 0,
    pruned_hash bytea NOT NULL,
    CONSTRAINT audit_chains_pruned_is_past CHECK (0 <= pruned_seq AND pruned_seq <= seq)
);
COMMENT ON TABLE audit_chains IS 'Both ends of the chain of an organisation: its last entry, and the last that was deleted for its age.';

CREATE FUNCTION audit_text(entry audit_entries) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(
        entry.id, entry.org_id, (extract(epoch FROM entry.happened_at) * 1000000)::bigint, entry.actor, entry.action,
        entry.object, entry.origin, entry.outcome, entry.code, entry.detail
    )::text
$$;
COMMENT ON FUNCTION audit_text IS 'What the hash of an entry covers, written the same at any time.';

CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.seq IS NULL
       AND to_jsonb(NEW) - '{seq,hash,outcome,code}'::text[] = to_jsonb(OLD) - '{seq,hash,outcome,code}'::text[]
       AND (OLD.outcome = 'begun' OR (NEW.outcome, NEW.code) IS NOT DISTINCT FROM (OLD.outcome, OLD.code)) THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE'
       AND EXISTS (SELECT FROM audit_chains c WHERE c.org_id = OLD.org_id AND OLD.seq <= c.pruned_seq) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'an entry of the audit stays as it is'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
COMMENT ON FUNCTION refuse_audit_change IS
    'Lets an entry get its outcome and its place once, and be deleted after the chain was cut behind it; nothing else.';
CREATE TRIGGER audit_entries_never_change BEFORE UPDATE OR DELETE ON audit_entries
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();

CREATE FUNCTION refuse_audit_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is not removed'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
COMMENT ON FUNCTION refuse_audit_removal IS 'Refuses to empty the audit, or to delete a chain.';
CREATE TRIGGER audit_entries_never_truncated BEFORE TRUNCATE ON audit_entries
    EXECUTE FUNCTION refuse_audit_removal();
CREATE TRIGGER audit_chains_only_grow BEFORE UPDATE ON audit_chains
    FOR EACH ROW WHEN (NEW.seq < OLD.seq OR NEW.pruned_seq < OLD.pruned_seq OR NEW.org_id <> OLD.org_id)
    EXECUTE FUNCTION refuse_change('a chain of the audit only grows');
CREATE TRIGGER audit_chains_stay BEFORE DELETE ON audit_chains
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_removal();
