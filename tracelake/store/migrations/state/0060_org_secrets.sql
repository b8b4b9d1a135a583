-- Secrets of an organisation, for its jobs and its webhook sources: encrypted, with a key that is not in the database.
CREATE TABLE org_secrets (
    org_id uuid NOT NULL REFERENCES orgs (id),
    kind text NOT NULL,
    name text NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    set_by text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, kind, name),
    CONSTRAINT org_secrets_known_kind CHECK (kind IN ('job', 'webhook')),
    CONSTRAINT org_secrets_name_is_snake CHECK (length(name) <= 64 AND name ~ '^[a-z][a-z0-9]*(_[a-z0-9]+)*$'),
    CONSTRAINT org_secrets_sealed_is_whole CHECK (octet_length(sealed) > 28)
);
COMMENT ON TABLE org_secrets IS 'A secret of an organisation, which only its own jobs or webhook sources get.';
COMMENT ON COLUMN org_secrets.key_id IS 'Which key encrypted it; the key itself is stored outside the database.';
COMMENT ON COLUMN org_secrets.sealed IS 'Nonce and AES-256-GCM of the value, bound to organisation, kind and name.';
COMMENT ON COLUMN org_secrets.set_by IS 'The subject of the user who set it, as it was then.';
