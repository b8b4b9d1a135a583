-- name: mark_behind
-- The DAG of a version ($1, $2: organisation, version), and active DAGs that read what it makes, are behind from now on.
INSERT INTO dags_behind (org_id, dag_name)
SELECT c.org_id, c.dag_name
  FROM dag_versions v
  JOIN dag_current_versions c ON c.org_id = v.org_id
 WHERE v.id = $2 AND v.org_id = $1
   AND (c.dag_version_id = v.id
        OR EXISTS (SELECT FROM jobs j
                     JOIN job_inputs i ON i.job_id = j.id AND i.triggers
                     JOIN datasets d ON d.id = i.dataset_uuid
                    WHERE j.dag_version_id = c.dag_version_id AND j.takes_history AND d.producer_dag_name = v.dag_name))
 ORDER BY 1, 2
ON CONFLICT (org_id, dag_name) DO UPDATE SET since = excluded.since;

-- name: clear_behind
-- DAGs that are no longer behind: every input of their jobs has been compared since, no task of the past is open, no event of
-- one waits to become tasks, and no DAG that they read is behind. How many.
WITH cleared AS (
    DELETE FROM dags_behind b
     USING (SELECT l.org_id, l.dag_name FROM dags_behind l FOR UPDATE SKIP LOCKED) l,
           dag_current_versions c
     WHERE b.org_id = l.org_id AND b.dag_name = l.dag_name AND c.org_id = l.org_id AND c.dag_name = l.dag_name
       AND NOT EXISTS (SELECT FROM jobs j
                         JOIN catch_ups u ON u.job_id = j.id
                        WHERE j.dag_version_id = c.dag_version_id AND (u.walked_at > b.since) IS NOT TRUE)
       -- Each condition has an index of open tasks, or entries.
       AND NOT EXISTS (SELECT FROM jobs j JOIN tasks t ON t.job_id = j.id AND t.status = 'Queued'
                        WHERE j.dag_version_id = c.dag_version_id AND t.history)
       AND NOT EXISTS (SELECT FROM jobs j
                         JOIN tasks t ON t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL
                        WHERE j.dag_version_id = c.dag_version_id AND t.history)
       AND NOT EXISTS (SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id
                        WHERE t.status = 'Failed' AND t.next_retry_at IS NOT NULL AND t.history
                          AND j.dag_version_id = c.dag_version_id)
       AND NOT EXISTS (SELECT FROM jobs j
                         JOIN job_inputs i ON i.job_id = j.id AND i.triggers
                         JOIN datasets d ON d.id = i.dataset_uuid AND d.producer_dag_name <> c.dag_name
                         JOIN dags_behind f ON f.org_id = c.org_id AND f.dag_name = d.producer_dag_name
                        WHERE j.dag_version_id = c.dag_version_id AND j.takes_history)
       -- Among very many entries it is not looked for one: there may be.
       AND CASE WHEN (SELECT count(*) FROM (SELECT FROM outbox WHERE status = 'Pending' LIMIT 1000) q) < 1000
                THEN NOT EXISTS (
                         SELECT FROM outbox o JOIN events e ON e.id = (o.payload ->> 'event_id')::uuid
                          WHERE o.status = 'Pending' AND o.kind = 'route_event' AND o.org_id = c.org_id AND e.history)
                     AND NOT EXISTS (
                         SELECT FROM outbox o JOIN events e ON e.id = (o.payload ->> 'event_id')::uuid
                          WHERE o.status = 'Processing' AND o.kind = 'route_event' AND o.org_id = c.org_id AND e.history)
                ELSE false END
    RETURNING 1
)
SELECT count(*) FROM cleared;

-- name: list_behind
-- The DAGs of an organisation ($1), all or these ($2), that are behind: since when, and how many tasks of the past are open.
SELECT b.dag_name AS dag, b.since,
       (SELECT count(*) FROM jobs j JOIN tasks t ON t.job_id = j.id AND t.status = 'Queued' AND t.woken_at IS NULL
         WHERE j.dag_version_id = c.dag_version_id AND t.history)
       + (SELECT count(*) FROM jobs j
            JOIN tasks t ON t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL
           WHERE j.dag_version_id = c.dag_version_id AND t.history)
       + (SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
           WHERE t.status = 'Failed' AND t.next_retry_at IS NOT NULL AND t.history
             AND j.dag_version_id = c.dag_version_id) AS tasks
  FROM dags_behind b
  JOIN dag_current_versions c ON c.org_id = b.org_id AND c.dag_name = b.dag_name
 WHERE b.org_id = $1 AND ($2::text[] IS NULL OR b.dag_name = ANY ($2))
 ORDER BY b.dag_name;
