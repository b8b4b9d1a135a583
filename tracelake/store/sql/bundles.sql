-- name: announce_bundle
-- Inserts a pending bundle. One that is not ready takes the new name and kind; a ready one is left alone.
INSERT INTO udf_bundles (org_id, name, kind, sha256, size_bytes, location, created_by)
VALUES ($1, $2, $3::text::udf_bundle_kind, $4, $5, $6, $7)
ON CONFLICT (org_id, sha256) DO UPDATE
   SET name = excluded.name, kind = excluded.kind, size_bytes = excluded.size_bytes, location = excluded.location,
       created_by = excluded.created_by, created_at = now(), status = 'Pending', error_message = NULL, finalized_at = NULL
 WHERE udf_bundles.status <> 'Ready';

-- name: find_bundle
-- A bundle by its id ($2) or its hash ($3).
SELECT b.id, b.name, b.kind::text, b.sha256, b.size_bytes, b.status::text, b.error_message AS reason,
       b.created_at, b.finalized_at, coalesce(u.email, u.external_id) AS created_by, b.location, b.entry_points
  FROM udf_bundles b LEFT JOIN users u ON u.id = b.created_by
 WHERE b.org_id = $1 AND (b.id = $2::uuid OR b.sha256 = $3::text);

-- name: list_bundles
-- A page of an organisation's bundles, the newest first; only those with this name ($2) unless it is NULL.
SELECT b.id, b.name, b.kind::text, b.sha256, b.size_bytes, b.status::text, b.error_message AS reason,
       b.created_at, b.finalized_at, coalesce(u.email, u.external_id) AS created_by
  FROM udf_bundles b LEFT JOIN users u ON u.id = b.created_by
 WHERE b.org_id = $1 AND ($2::text IS NULL OR b.name = $2)
   AND ($3::uuid IS NULL
        OR (b.created_at, b.id) < (SELECT p.created_at, p.id FROM udf_bundles p WHERE p.org_id = $1 AND p.id = $3))
 ORDER BY b.created_at DESC, b.id DESC
 LIMIT $4;

-- name: decide_bundle
-- Marks a pending bundle as ready, or as refused with the reason.
UPDATE udf_bundles
   SET status = CASE WHEN $4::text IS NULL THEN 'Ready' ELSE 'Refused' END::udf_bundle_status,
       error_message = $4, entry_points = $5::text[], finalized_at = now()
 WHERE org_id = $1 AND id = $2 AND status = 'Pending' AND kind = $3::text::udf_bundle_kind;

-- name: ensure_url_key
-- Inserts a key that signs URLs, unless there is one.
INSERT INTO url_keys (name, key) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: find_url_key
-- A key that signs URLs, by name.
SELECT key FROM url_keys WHERE name = $1;

-- name: refuse_unused
-- Refuses bundles that no job of any version refers to and that were not changed for so long ($1). The row lock
-- conflicts with that of a deploy which is about to refer to the bundle: such a bundle is skipped.
UPDATE udf_bundles
   SET status = 'Refused', error_message = $2, finalized_at = coalesce(finalized_at, now())
 WHERE id IN (SELECT b.id FROM udf_bundles b
               WHERE greatest(b.created_at, b.finalized_at) < now() - $1::interval AND b.error_message IS DISTINCT FROM $2
                 AND NOT EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
               ORDER BY b.created_at LIMIT $3 FOR UPDATE SKIP LOCKED);

-- name: lock_used_again
-- Locks bundles that were refused as unused and that a job refers to all the same.
SELECT b.id, b.location
  FROM udf_bundles b
 WHERE b.error_message = $1 AND EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
   FOR UPDATE SKIP LOCKED;

-- name: mark_ready
-- Marks bundles as ready again: their bytes still exist.
UPDATE udf_bundles SET status = 'Ready', error_message = NULL WHERE id = ANY ($1::uuid[]);

-- name: lock_unused
-- Locks bundles that were refused as unused, to delete their bytes; they cannot be announced again meanwhile.
SELECT b.id, b.location
  FROM udf_bundles b
 WHERE b.error_message = $1 AND NOT EXISTS (SELECT FROM jobs j WHERE j.org_id = b.org_id AND j.udf_bundle_id = b.id)
 ORDER BY b.created_at LIMIT $2 FOR UPDATE SKIP LOCKED;

-- name: delete_bundles
-- Deletes bundles whose bytes were deleted.
DELETE FROM udf_bundles WHERE id = ANY ($1::uuid[]);
