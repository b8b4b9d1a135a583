-- name: announce
-- A bundle is to come. One that is not ready takes the new name and kind; one that is ready is left alone.
INSERT INTO udf_bundles (org_id, name, kind, sha256, size_bytes, location, created_by)
VALUES ($1, $2, $3::text::udf_bundle_kind, $4, $5, $6, $7)
ON CONFLICT (org_id, sha256) DO UPDATE
   SET name = excluded.name, kind = excluded.kind, size_bytes = excluded.size_bytes, location = excluded.location,
       created_by = excluded.created_by, created_at = now(), status = 'Pending', error_message = NULL, finalized_at = NULL
 WHERE udf_bundles.status <> 'Ready';

-- name: by_hash
-- A bundle by its content.
SELECT b.id, b.name, b.kind::text, b.sha256, b.size_bytes, b.status::text, b.error_message AS reason, b.location,
       b.entry_points, b.created_at, b.finalized_at, coalesce(u.email, u.external_id) AS created_by
  FROM udf_bundles b LEFT JOIN users u ON u.id = b.created_by
 WHERE b.org_id = $1 AND b.sha256 = $2;

-- name: by_id
-- A bundle by its id.
SELECT b.id, b.name, b.kind::text, b.sha256, b.size_bytes, b.status::text, b.error_message AS reason, b.location,
       b.entry_points, b.created_at, b.finalized_at, coalesce(u.email, u.external_id) AS created_by
  FROM udf_bundles b LEFT JOIN users u ON u.id = b.created_by
 WHERE b.org_id = $1 AND b.id = $2;

-- name: page
-- A page of an organisation's bundles, the newest first; of one name if one is given.
SELECT b.id, b.name, b.kind::text, b.sha256, b.size_bytes, b.status::text, b.error_message AS reason, b.location,
       b.entry_points, b.created_at, b.finalized_at, coalesce(u.email, u.external_id) AS created_by
  FROM udf_bundles b LEFT JOIN users u ON u.id = b.created_by
 WHERE b.org_id = $1 AND ($2::text IS NULL OR b.name = $2)
   AND ($3::uuid IS NULL
        OR (b.created_at, b.id) < (SELECT p.created_at, p.id FROM udf_bundles p WHERE p.org_id = $1 AND p.id = $3))
 ORDER BY b.created_at DESC, b.id DESC
 LIMIT $4;

-- name: decide
-- A bundle that was uploaded becomes ready, or is refused with the reason; one that was decided stays as it is.
UPDATE udf_bundles
   SET status = CASE WHEN $4::text IS NULL THEN 'Ready' ELSE 'Refused' END::udf_bundle_status,
       error_message = $4, entry_points = $5::text[], finalized_at = now()
 WHERE org_id = $1 AND id = $2 AND status = 'Pending' AND kind = $3::text::udf_bundle_kind;

-- name: make_url_key
-- The key of URLs, if there is none yet: the first replica's.
INSERT INTO url_keys (name, key) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: url_key
-- The key of URLs.
SELECT key FROM url_keys WHERE name = $1;

-- name: give_up
-- Bundles that no job of any version names, and that nobody has touched for so long, can be deployed no more. Their rows
-- are locked as for a removal: a deploy that is about to name one is waited for, or passed by.
UPDATE udf_bundles
   SET status = 'Refused', error_message = $2, finalized_at = coalesce(finalized_at, now())
 WHERE id IN (SELECT b.id FROM udf_bundles b
               WHERE greatest(b.created_at, b.finalized_at) < now() - $1::interval AND b.error_message IS DISTINCT FROM $2
                 AND NOT EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
               ORDER BY b.created_at LIMIT $3 FOR UPDATE SKIP LOCKED);

-- name: named_again
-- Those that were given up, and that a job names all the same.
SELECT b.id, b.location
  FROM udf_bundles b
 WHERE b.error_message = $1 AND EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
   FOR UPDATE SKIP LOCKED;

-- name: take_back
-- They are as they were: their bytes are still there.
UPDATE udf_bundles SET status = 'Ready', error_message = NULL WHERE id = ANY ($1::uuid[]);

-- name: given_up
-- Those whose bytes are to go; nobody can announce one anew meanwhile.
SELECT b.id, b.location
  FROM udf_bundles b
 WHERE b.error_message = $1 AND NOT EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
 ORDER BY b.created_at LIMIT $2 FOR UPDATE SKIP LOCKED;

-- name: remove
-- Their bytes are gone.
DELETE FROM udf_bundles WHERE id = ANY ($1::uuid[]);
