-- What a job reads is found by its id, its version or its input: DISTINCT kept such conditions out of the view, so that each
-- comparison of one input listed the inputs of all versions ever deployed. And a function is called for other DAGs only.
CREATE OR REPLACE VIEW job_reads AS
SELECT j.id AS job_id, j.org_id, j.dag_name, j.name AS job_name, j.lineage_id, j.makes_whole, j.takes_history,
       j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime, i.dataset_uuid, served.dataset_version
  FROM jobs j
  JOIN job_inputs i ON i.job_id = j.id AND i.triggers
  JOIN datasets d ON d.id = i.dataset_uuid
  JOIN dag_version_datasets served
         ON served.dag_version_id = CASE WHEN d.producer_dag_name = j.dag_name THEN j.dag_version_id
                                         ELSE version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name) END
        AND served.dataset_uuid = i.dataset_uuid
 WHERE j.activation = 'reactive'
   -- A job may read one dataset by two inputs.
   AND NOT EXISTS (SELECT FROM job_inputs former
                    WHERE former.job_id = i.job_id AND former.dataset_uuid = i.dataset_uuid AND former.triggers
                      AND former.position < i.position);
