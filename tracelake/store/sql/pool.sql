-- name: count_busy
-- How many of these sessions run a statement, or have run one in the last $2 seconds.
SELECT count(*)
  FROM pg_stat_activity
 WHERE pid = ANY ($1::int[])
   AND (state = 'active' OR state_change > now() - make_interval(secs => $2));
