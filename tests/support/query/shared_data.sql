-- The datasets of DAG `shop` in the version that is active, with their storage, and the rows of those that never change.
SELECT o.slug,
       d.producer_job_name,
       d.storage ->> 'kind',
       CASE WHEN d.producer_job_name IN ('make', 'hide', 'keep') THEN
         coalesce((SELECT sum(p.row_count)::bigint FROM partition_versions p
                    WHERE p.dataset_version = s.dataset_version AND p.valid_to IS NULL), 0)
       END
  FROM datasets d
  JOIN orgs o ON o.id = d.org_id
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
 WHERE d.producer_dag_name = 'shop'
   AND d.producer_job_name IN ('make', 'hide', 'feed', 'keep', 'think');
