-- Personal access tokens: made by a user for programs, beside the tokens of the identity provider.

CREATE TABLE user_tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL,
    user_id uuid NOT NULL,
    name text NOT NULL,
    token_hash bytea NOT NULL,
    role platform_role NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT user_tokens_hash_once UNIQUE (token_hash),
    CONSTRAINT user_tokens_user_of_same_org FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id),
    CONSTRAINT user_tokens_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT user_tokens_hash_is_sha256 CHECK (octet_length(token_hash) = 32),
    CONSTRAINT user_tokens_expire_after_creation CHECK (expires_at > created_at)
);
COMMENT ON TABLE user_tokens IS 'A personal access token: it acts for its user, with at most its own role.';
COMMENT ON COLUMN user_tokens.token_hash IS 'SHA-256 of the token; the token itself is stored nowhere.';
COMMENT ON COLUMN user_tokens.role IS 'The most that it allows; never more than the user''s role at the time of a call.';
COMMENT ON COLUMN user_tokens.last_used_at IS 'Within a minute.';
CREATE UNIQUE INDEX user_tokens_name_once ON user_tokens (user_id, name) WHERE revoked_at IS NULL;
