-- Who there is: organisations, their users and roles, and the identities of workers and of the token signer.

-- Ids of rows that arrive in floods are uuidv7 (made in order, so their indexes grow at one end); the others keep the
-- random uuid of the specification.

CREATE TYPE platform_role AS ENUM ('reader', 'writer', 'admin');
COMMENT ON TYPE platform_role IS 'What a user may do in the platform, rising from left to right.';

CREATE TABLE orgs (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    slug text NOT NULL,
    settings jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orgs_slug_once UNIQUE (slug),
    CONSTRAINT orgs_slug_is_snake CHECK (slug ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT orgs_name_says_something CHECK (name <> ''),
    CONSTRAINT orgs_settings_is_object CHECK (jsonb_typeof(settings) = 'object')
);
COMMENT ON TABLE orgs IS 'An organisation: the wall around every other row.';

CREATE TABLE users (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    external_id text NOT NULL,
    email text,
    role platform_role NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT users_external_id_once UNIQUE (external_id),
    CONSTRAINT users_id_within_org UNIQUE (org_id, id),
    CONSTRAINT users_external_id_says_something CHECK (external_id <> '')
);
COMMENT ON TABLE users IS 'A person, known by the subject of an identity provider; belongs to one organisation.';
COMMENT ON COLUMN users.external_id IS 'The subject (`sub`) that the identity provider gives.';
COMMENT ON COLUMN users.role IS 'Permission in the platform; what datasets a user may read is decided by org_roles.';
COMMENT ON CONSTRAINT users_id_within_org ON users IS 'Lets other tables name a user together with its organisation.';

CREATE TABLE org_roles (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    slug text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT org_roles_slug_once UNIQUE (org_id, slug),
    CONSTRAINT org_roles_id_within_org UNIQUE (org_id, id),
    CONSTRAINT org_roles_slug_is_snake CHECK (slug ~ '^[a-z][a-z0-9_]{0,127}$')
);
COMMENT ON TABLE org_roles IS 'A role that an organisation defines for itself, to say who sees which dataset.';
COMMENT ON COLUMN org_roles.slug IS 'Written `role:slug` in a dataset''s read_roles.';

CREATE TABLE org_role_memberships (
    org_id uuid NOT NULL,
    role_id uuid NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role_id, user_id),
    CONSTRAINT org_role_memberships_role_of_same_org
        FOREIGN KEY (org_id, role_id) REFERENCES org_roles (org_id, id) ON DELETE CASCADE,
    CONSTRAINT org_role_memberships_user_of_same_org
        FOREIGN KEY (org_id, user_id) REFERENCES users (org_id, id) ON DELETE CASCADE
);
COMMENT ON TABLE org_role_memberships IS 'Which user has which role; both of one organisation.';
CREATE INDEX idx_org_role_memberships_user ON org_role_memberships (user_id);

CREATE TABLE worker_tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT worker_tokens_hash_once UNIQUE (token_hash),
    CONSTRAINT worker_tokens_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT worker_tokens_hash_is_sha256 CHECK (octet_length(token_hash) = 32),
    CONSTRAINT worker_tokens_expire_after_creation CHECK (expires_at > created_at)
);
COMMENT ON TABLE worker_tokens IS
    'A token by which trusted workers and services are known; several are valid at a time, so that they can be rotated.';
COMMENT ON COLUMN worker_tokens.token_hash IS 'SHA-256 of the token; the token itself is stored nowhere.';
COMMENT ON COLUMN worker_tokens.expires_at IS 'NULL: until revoked.';

CREATE TYPE signing_key_purpose AS ENUM ('task', 'user');
COMMENT ON TYPE signing_key_purpose IS 'Capability tokens of tasks, or user tokens of the local issuer: never both.';
CREATE TYPE signing_key_status AS ENUM ('Pending', 'Active', 'Retiring', 'Retired');
COMMENT ON TYPE signing_key_status IS
    'Published but not signing; signing; verifying only, until the last token has expired; gone from the key set.';

CREATE TABLE signing_keys (
    kid text PRIMARY KEY,
    purpose signing_key_purpose NOT NULL,
    public_jwk jsonb NOT NULL,
    status signing_key_status NOT NULL DEFAULT 'Pending',
    created_at timestamptz NOT NULL DEFAULT now(),
    active_from timestamptz,
    active_until timestamptz,
    verify_until timestamptz,
    CONSTRAINT signing_keys_kid_is_plain CHECK (kid ~ '^[A-Za-z0-9_-]{1,128}$'),
    CONSTRAINT signing_keys_are_es256 CHECK (
        coalesce(public_jwk ->> 'kty' = 'EC' AND public_jwk ->> 'crv' = 'P-256', false)
        AND public_jwk ?& ARRAY['x', 'y']
    ),
    -- `d` is the private part of an EC key.
    CONSTRAINT signing_keys_hold_no_private_part CHECK (NOT public_jwk ? 'd'),
    CONSTRAINT signing_keys_pending_never_signed CHECK ((status = 'Pending') = (active_from IS NULL)),
    CONSTRAINT signing_keys_active_has_no_end CHECK (
        status NOT IN ('Pending', 'Active') OR (active_until IS NULL AND verify_until IS NULL)
    ),
    CONSTRAINT signing_keys_retiring_knows_its_end CHECK (
        status NOT IN ('Retiring', 'Retired')
        OR (active_until IS NOT NULL AND verify_until IS NOT NULL
            AND active_from <= active_until AND active_until <= verify_until)
    )
);
COMMENT ON TABLE signing_keys IS
    'The public half of a key that signs tokens; the private half never comes near a database.';
COMMENT ON COLUMN signing_keys.verify_until IS 'When the last token that it signed has expired, and the key may go.';
CREATE UNIQUE INDEX signing_keys_one_active ON signing_keys (purpose) WHERE status = 'Active';
