CREATE VIEW wanted_sources AS
SELECT j.id AS job_id, j.org_id
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE j.source ->> 'kind' = 'always_on'
UNION ALL
SELECT j.id, j.org_id
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id
  JOIN dag_current_versions c ON c.org_id = m.org_id AND c.dag_name = m.dag_name
  JOIN jobs active ON active.dag_version_id = c.dag_version_id AND active.name = j.name
 WHERE m.builds AND j.source ->> 'kind' = 'always_on' AND active.source ->> 'kind' = 'always_on'
   AND active.lineage_id <> j.lineage_id AND writes_own_datasets(j.output_datasets);
COMMENT ON VIEW wanted_sources IS
    'Always-on sources that are to run: those of active versions, and changed ones of a release that is built, beside them.';
