-- name: begin_entry
-- Inserts an entry of a user before the call is made.
INSERT INTO audit_entries (org_id, actor, action, object, origin)
SELECT u.org_id, u.external_id, $2, $3, $4 FROM users u WHERE u.id = $1
RETURNING id;

-- name: end_entry
-- Stores how the call of an entry ended.
UPDATE audit_entries SET outcome = $2, code = $3 WHERE id = $1 AND outcome = 'begun' AND seq IS NULL;

-- name: end_entry_of
-- The same for a service that says whose call of which kind it was.
UPDATE audit_entries e SET outcome = $2, code = $3
  FROM users u
 WHERE e.id = $1 AND e.outcome = 'begun' AND e.seq IS NULL
   AND u.id = $4 AND e.org_id = u.org_id AND e.actor = u.external_id AND e.action = $5
RETURNING e.id;

-- name: lock_chains
-- Only one process links or prunes at a time; it is released with the transaction.
SELECT pg_advisory_xact_lock(hashtext('audit_chains'));

-- name: list_unlinked
-- Entries to link next, in their order. One whose call has not ended waits for it, for an hour at most.
SELECT e.id, e.org_id, audit_text(e) AS text
  FROM audit_entries e
 WHERE e.seq IS NULL AND (e.outcome <> 'begun' OR e.happened_at < now() - interval '1 hour')
 ORDER BY e.id
 LIMIT $1;

-- name: list_ends
-- The ends of chains.
SELECT c.org_id, c.seq, c.hash FROM audit_chains c WHERE c.org_id = ANY ($1::uuid[]);

-- name: link_entries
-- Gives entries their places, and chains their new ends.
WITH linked AS (
    UPDATE audit_entries e SET seq = l.seq, hash = l.hash
      FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS l (id, seq, hash)
     WHERE e.id = l.id
), ends AS (
    INSERT INTO audit_chains (org_id, seq, hash, pruned_hash)
    SELECT n.org_id, n.seq, n.hash, '\x'::bytea FROM unnest($4::uuid[], $5::bigint[], $6::bytea[]) AS n (org_id, seq, hash)
    ON CONFLICT (org_id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash
)
SELECT 1;

-- name: list_before
-- Entries of an organisation before a place, the newest first.
SELECT e.seq, e.id, e.happened_at, e.actor, e.action, e.object, e.origin, e.outcome, e.code, e.detail::text,
       encode(e.hash, 'hex') AS hash, audit_text(e) AS text
  FROM audit_entries e
 WHERE e.org_id = $1 AND e.seq < $2
 ORDER BY e.seq DESC
 LIMIT $3;

-- name: list_after
-- Entries of an organisation after a place, the oldest first.
SELECT e.seq, e.id, e.happened_at, e.actor, e.action, e.object, e.origin, e.outcome, e.code, e.detail::text,
       encode(e.hash, 'hex') AS hash, audit_text(e) AS text
  FROM audit_entries e
 WHERE e.org_id = $1 AND e.seq > $2
 ORDER BY e.seq
 LIMIT $3;

-- name: show_chain
-- Both ends of the chain of an organisation, and how many entries are not linked yet.
SELECT o.id AS org_id, coalesce(c.seq, 0) AS seq, coalesce(c.hash, '\x') AS hash, coalesce(c.pruned_seq, 0) AS pruned_seq,
       coalesce(c.pruned_hash, '\x') AS pruned_hash,
       (SELECT count(*) FROM audit_entries e WHERE e.org_id = o.id AND e.seq IS NULL) AS unlinked
  FROM orgs o
  LEFT JOIN audit_chains c ON c.org_id = o.id
 WHERE o.id = $1;

-- name: cut_chains
-- Moves the beginning of each chain behind its oldest entries that are older than $1, up to $2 of them.
WITH old AS (
    SELECT c.org_id, e.seq, e.hash
      FROM audit_chains c
      CROSS JOIN LATERAL (
          SELECT o.seq, o.hash, o.happened_at, bool_and(o.happened_at < now() - $1::interval) OVER (ORDER BY o.seq) AS is_old
            FROM audit_entries o WHERE o.org_id = c.org_id AND o.seq > c.pruned_seq ORDER BY o.seq LIMIT $2) e
     WHERE e.is_old
), last AS (
    SELECT DISTINCT ON (org_id) org_id, seq, hash FROM old ORDER BY org_id, seq DESC
)
UPDATE audit_chains c SET pruned_seq = l.seq, pruned_hash = l.hash FROM last l WHERE c.org_id = l.org_id;

-- name: delete_cut
-- Deletes the entries before the beginning of their chain.
WITH gone AS (
    DELETE FROM audit_entries e USING audit_chains c
     WHERE c.org_id = e.org_id AND e.seq <= c.pruned_seq
    RETURNING e.id
)
SELECT count(*) FROM gone;

-- name: store_refusals
-- Inserts entries for refused identities ($1), each with how often it was refused: in the organisation of the user, who may
-- be removed, or of the personal token; else in that of the platform admin. How many.
WITH stored AS (
    INSERT INTO audit_entries (org_id, actor, action, object, origin, outcome, code, detail)
    SELECT coalesce(u.org_id, t.org_id, p.org_id),
           CASE WHEN r.who ~ '^[0-9a-f]{64}$' THEN 'token ' || left(r.who, 16) ELSE r.who END,
           'identity', r.kind, r.origin, 'refused', 'unauthenticated', jsonb_build_object('refusals', r.refusals)
      FROM jsonb_to_recordset($1::jsonb) AS r (kind text, who text, origin text, refusals bigint)
      LEFT JOIN LATERAL (SELECT org_id FROM users
                          WHERE r.kind = 'unknown_user' AND external_id = r.who
                          ORDER BY created_at DESC LIMIT 1) u ON true
      LEFT JOIN user_tokens t ON t.token_hash = CASE WHEN r.kind = 'personal_token' AND r.who ~ '^[0-9a-f]{64}$'
                                                     THEN decode(r.who, 'hex') END
      LEFT JOIN LATERAL (SELECT org_id FROM users WHERE platform_admin ORDER BY created_at LIMIT 1) p ON true
     WHERE coalesce(u.org_id, t.org_id, p.org_id) IS NOT NULL
    RETURNING id
)
SELECT count(*) FROM stored;

-- name: store_credentials
-- Inserts an entry for each attempt that gets credentials, with its origin ($4) and what they are for ($5), if it runs; the
-- state of its task, or NULL if the attempt or its lease is not the current one.
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::jsonb[])
        WITH ORDINALITY AS a (task_id, attempt, lease_token, origin, detail, n)
), attempts AS (
    SELECT a.n, t.id, t.org_id, t.status, j.dag_name, j.name, a.attempt, a.origin, a.detail
      FROM asked a
      JOIN tasks t ON t.id = a.task_id
      JOIN jobs j ON j.id = t.job_id
     WHERE holds_lease(t, a.attempt, a.lease_token) -- fence
), stored AS (
    INSERT INTO audit_entries (org_id, actor, action, object, origin, outcome, detail)
    SELECT p.org_id, 'task ' || p.id, 'credentials', format('dag=%s job=%s attempt=%s', p.dag_name, p.name, p.attempt),
           p.origin, 'done', p.detail
      FROM attempts p
     WHERE p.status = 'Running'
)
SELECT p.status::text
  FROM asked a
  LEFT JOIN attempts p USING (n)
 ORDER BY n;
