-- Each process has an identity and tokens of its own, in place of the one token that all processes shared.
DROP TABLE worker_tokens;

CREATE TYPE service_identity AS ENUM (
    'worker', 'runner', 'sink', 'query', 'gateway', 'scheduler', 'delivery', 'supervisor', 'monitor'
);
COMMENT ON TYPE service_identity IS 'A service that calls internal listeners; each may make the calls of its own list.';

CREATE TABLE service_tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    service service_identity NOT NULL,
    name text NOT NULL,
    runtimes text[],
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT service_tokens_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT service_tokens_expire_after_creation CHECK (expires_at > created_at),
    CONSTRAINT service_tokens_runtimes_of_claimers CHECK (
        CASE WHEN service IN ('worker', 'runner') THEN coalesce(cardinality(runtimes), 0) > 0 ELSE runtimes IS NULL END
    )
);
COMMENT ON TABLE service_tokens IS
    'A token of a service; several of one service are valid at a time, so that they can be rotated.';
COMMENT ON COLUMN service_tokens.runtimes IS 'Whose tasks it may claim; only of services that claim.';
COMMENT ON COLUMN service_tokens.expires_at IS 'NULL: until revoked.';
COMMENT ON COLUMN service_tokens.last_used_at IS 'Within a minute or so.';
CREATE UNIQUE INDEX service_tokens_name_once ON service_tokens (service, name) WHERE revoked_at IS NULL;

CREATE TABLE service_token_hashes (
    token_id uuid NOT NULL REFERENCES service_tokens (id),
    listener text NOT NULL,
    token_hash bytea NOT NULL,
    PRIMARY KEY (token_id, listener),
    CONSTRAINT service_token_hashes_hash_once UNIQUE (token_hash),
    CONSTRAINT service_token_hashes_hash_is_sha256 CHECK (octet_length(token_hash) = 32),
    CONSTRAINT service_token_hashes_of_a_listener CHECK (listener IN ('any', 'dispatcher', 'query', 'delivery'))
);
COMMENT ON TABLE service_token_hashes IS
    'What each listener receives of a service''s token, as a hash: a token that is derived for one listener opens no other.';
COMMENT ON COLUMN service_token_hashes.listener IS 'any: the token itself, which no process sends.';
COMMENT ON COLUMN service_token_hashes.token_hash IS 'SHA-256; the token itself is stored nowhere.';
