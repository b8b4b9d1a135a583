-- name: jobs_of
-- The jobs of these tasks, in the given order.
SELECT t.id, t.job_id
  FROM unnest($1::uuid[]) WITH ORDINALITY AS asked (id, n)
  JOIN tasks t ON t.id = asked.id
 ORDER BY asked.n;

-- name: lock_job
-- One task of a job at a time, until the transaction ends: the state that a task reads is the one that it replaces. And
-- no activation meanwhile: it copies that state to the next version.
SELECT pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || t.org_id, 0)),
       pg_advisory_xact_lock(hashtextextended('trace operator ' || t.job_id, 0))
  FROM tasks t
 WHERE t.id = $1;

-- name: serves
-- Whether the task's version is active, or built by a release. Read under the lock: the statement that takes it sees an older snapshot.
SELECT EXISTS (
    SELECT FROM tasks t
      JOIN jobs j ON j.id = t.job_id
      JOIN running_versions c ON c.dag_version_id = j.dag_version_id
     WHERE t.id = $1);
