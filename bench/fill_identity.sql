-- Users of the first organisation; each reader has a tenth of the roles.
INSERT INTO users (org_id, external_id, subject_key, role)
SELECT o.id, 'reader' || n, 'reader' || n, 'reader' FROM orgs o, generate_series(1, :users) n WHERE o.slug = 'default';

INSERT INTO org_roles (org_id, slug, name)
SELECT o.id, 'role' || n, 'Role ' || n FROM orgs o, generate_series(1, :roles) n WHERE o.slug = 'default';

INSERT INTO org_role_memberships (org_id, role_id, user_id)
SELECT r.org_id, r.id, u.id FROM users u JOIN org_roles r ON r.org_id = u.org_id
 WHERE u.external_id LIKE 'reader%' AND (substr(r.slug, 5)::int + substr(u.external_id, 7)::int) % 10 = 0;

-- Half of the datasets are open, half are shared with three roles each.
INSERT INTO datasets (org_id, name, visibility, read_roles, producer_dag_name, producer_job_name, producer_output_index)
SELECT o.id, 'dataset_' || n, CASE WHEN n % 2 = 0 THEN 'org' ELSE 'roles' END::dataset_visibility,
       CASE WHEN n % 2 = 0 THEN '{}' ELSE ARRAY(SELECT 'role:role' || 1 + (n * k) % :roles FROM generate_series(1, 3) k) END,
       'dag_' || n / 50, 'job_' || n, 0
  FROM orgs o, generate_series(1, :datasets) n WHERE o.slug = 'default';

ANALYZE
