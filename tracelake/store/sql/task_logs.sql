-- name: store_lines
-- Inserts log lines of the current attempt, each once; also of one that has just ended, whose last lines arrive after its
-- completion. No row: another attempt is the current one.
WITH current AS (
    SELECT t.id
      FROM tasks t
     WHERE t.id = $1
       AND holds_lease(t, $2, $3) -- fence
), kept AS (
    INSERT INTO task_logs (task_id, attempt, n, at, level, text)
    SELECT c.id, $2, l.n, l.at, l.level::log_level, l.text
      FROM current c, unnest($4::int[], $5::timestamptz[], $6::text[], $7::text[]) AS l (n, at, level, text)
    ON CONFLICT DO NOTHING
    RETURNING n
)
SELECT (SELECT count(*) FROM kept) AS kept FROM current;

-- name: read_lines
-- Log lines of an attempt ($3; NULL: the current one) in their order, from number $4 on. At least one row if the task
-- exists.
SELECT t.attempt AS current, t.status::text, l.n, l.at, l.level::text, l.text
  FROM tasks t
  LEFT JOIN LATERAL (
      SELECT * FROM task_logs l
       WHERE l.task_id = t.id AND l.attempt = coalesce($3, t.attempt) AND l.n >= $4
       ORDER BY l.n
       LIMIT $5
  ) l ON true
 WHERE t.id = $1 AND t.org_id = $2
 ORDER BY l.n;

-- name: delete_old_lines
-- Deletes log lines that are older than they are kept ($1), up to $2.
WITH old AS (
    SELECT task_id, attempt, n FROM task_logs WHERE received_at < now() - $1::interval LIMIT $2
), deleted AS (
    DELETE FROM task_logs l USING old o WHERE l.task_id = o.task_id AND l.attempt = o.attempt AND l.n = o.n RETURNING 1
)
SELECT count(*) FROM deleted;
